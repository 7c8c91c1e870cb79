"""Parameters in one vector: same network, same names, same gradients."""

import torch
from torch import nn

from trackmania_rl.agents.flat_parameters import flat_leaf, flatten_parameters


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


def test_autograd_writes_the_leafs_gradient():
    module, plain = small_module(), small_module()
    leaf = flat_leaf(module)
    inputs = torch.randn(4, 5)
    for _ in range(2):
        leaf.grad.zero_()
        module(inputs).square().sum().backward()
    plain(inputs).square().sum().backward()
    expected = torch.cat([parameter.grad.reshape(-1) for parameter in plain.parameters()])
    assert torch.equal(leaf.grad, expected)


def test_a_step_on_the_leaf_moves_the_network():
    module, plain = small_module(), small_module()
    leaf, inputs = flat_leaf(module), torch.randn(4, 5)
    for network, parameters in ((module, [leaf]), (plain, plain.parameters())):
        network(inputs).square().sum().backward()
        torch.optim.SGD(parameters, lr=0.1).step()
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(module.state_dict()[name], value)
