"""Parameters in one vector: same network, same names, same gradients."""

import pytest
import torch
from torch import nn

from trackmania_rl.agents.flat_parameters import as_one, flatten_gradients, flatten_parameters


def small_module():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))


def test_the_vector_is_the_parameters():
    module, plain = small_module(), small_module()
    vector = flatten_parameters(module)
    assert torch.equal(vector, nn.utils.parameters_to_vector(plain.parameters()))
    vector.mul_(2)
    for name, value in plain.state_dict().items():
        assert torch.equal(module.state_dict()[name], 2 * value)


def test_flattening_again_returns_the_same_memory():
    module = small_module()
    vector = flatten_parameters(module)
    assert flatten_parameters(module).data_ptr() == vector.data_ptr()
    assert flatten_parameters(module).shape == vector.shape


def test_loading_weights_keeps_the_vector():
    module = small_module()
    vector = flatten_parameters(module)
    module.load_state_dict({name: torch.ones_like(value) for name, value in module.state_dict().items()})
    assert torch.equal(vector, torch.ones(len(vector)))


def test_parameters_that_moved_are_flattened_anew():
    module = small_module()
    flatten_parameters(module)
    module.to(torch.float64)
    vector = flatten_parameters(module)
    assert vector.dtype == torch.float64
    vector.zero_()
    assert all(not parameter.any() for parameter in module.parameters())


def test_autograd_writes_the_gradient_vector():
    module, plain = small_module(), small_module()
    flatten_parameters(module)
    gradient = flatten_gradients(module)
    inputs = torch.randn(4, 5)
    for _ in range(2):
        gradient.zero_()
        module(inputs).square().sum().backward()
    plain(inputs).square().sum().backward()
    expected = torch.cat([parameter.grad.reshape(-1) for parameter in plain.parameters()])
    assert torch.equal(gradient, expected)


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(5, 7), nn.Linear(5, 3)

    def parameters_side_by_side(self):
        return [self.first.weight, self.second.weight]


def test_parameters_side_by_side_are_read_and_written_as_one():
    module, plain = TwoHeads(), TwoHeads()
    vector = flatten_parameters(module)
    both = as_one(module.first.weight, module.second.weight)
    assert torch.equal(both, torch.cat((plain.first.weight, plain.second.weight)))
    both.mul_(2)
    assert torch.equal(vector[: both.numel()].view(10, 5), both)
    assert torch.equal(module.second.weight, 2 * plain.second.weight)
    assert torch.equal(module.second.bias, plain.second.bias)
    assert len(vector) == 5 * 10 + 10
    assert list(module.state_dict()) == list(plain.state_dict())


def test_parameters_apart_are_not_one():
    module = TwoHeads()
    with pytest.raises(ValueError, match="do not lie one after another"):
        as_one(module.first.weight, module.second.weight)
    flatten_parameters(module)
    with pytest.raises(ValueError, match="do not lie one after another"):
        as_one(module.second.weight, module.first.weight)
