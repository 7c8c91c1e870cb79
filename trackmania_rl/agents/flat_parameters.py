"""All parameters of a network as one vector.

A step over a network's weights (optimizer, clipping, decay, soft update, publishing) is a handful of elementwise
operations. Done tensor by tensor they cost some twenty small calls each; done on one vector, one call each. So the
parameters are laid one after another in one piece of memory, and every parameter becomes a view into it: the network,
its `state_dict` and autograd notice nothing.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn


@runtime_checkable
class SideBySide(Protocol):
    """A module that wants some of its parameters one after another in memory, so that they can be read as one."""

    def parameters_side_by_side(self) -> list[nn.Parameter]:
        """These parameters, in their order."""


def flatten_parameters(module: nn.Module) -> Tensor:
    """The parameters of `module` as one vector that shares their memory: writing to it writes to the network.

    The first call moves the parameters; later calls find them in place and only return the vector. Moving the module
    (`module.to(...)`) takes the parameters apart again, so flatten after that.

    Args:
        module: its parameters must be of one dtype and on one device.

    Returns:
        (P,) without gradient, in the order of `in_memory_order`.
    """
    parameters = in_memory_order(module)
    if not _is_flat(parameters):
        vector = torch.cat([parameter.detach().reshape(-1) for parameter in parameters])
        for parameter, view in zip(parameters, _views(vector, parameters), strict=True):
            parameter.data = view
    first = parameters[0].detach()
    return first.as_strided((sum(parameter.numel() for parameter in parameters),), (1,), first.storage_offset())


def flatten_gradients(module: nn.Module) -> Tensor:
    """Give every parameter a `grad` that is a view into one vector of zeros, and return that vector.

    Autograd adds to an existing `grad` in place, so the whole gradient arrives in the vector. Clear it with `zero_()`;
    `zero_grad()` would drop the views.

    Returns:
        (P,) in the order of `in_memory_order`.
    """
    parameters = in_memory_order(module)
    vector = torch.zeros_like(torch.cat([parameter.detach().reshape(-1) for parameter in parameters]))
    for parameter, view in zip(parameters, _views(vector, parameters), strict=True):
        parameter.grad = view
    return vector


def in_memory_order(module: nn.Module) -> list[nn.Parameter]:
    """The parameters of `module` in the order in which they are laid into memory.

    It is the order of `module.parameters()`, but that the parameters that a module wants `SideBySide` come first.
    """
    first = module.parameters_side_by_side() if isinstance(module, SideBySide) else []
    taken = {id(parameter) for parameter in first}
    return first + [parameter for parameter in module.parameters() if id(parameter) not in taken]


def as_one(*tensors: Tensor) -> Tensor:
    """Tensors that lie one after another in memory as one tensor, joined along their first dimension.

    Args:
        tensors: contiguous, of equal shapes but for the first dimension; views into one flat vector.

    Raises:
        ValueError: if one does not begin where the one before it ends.
    """
    if not _is_flat(tensors):
        raise ValueError("the tensors do not lie one after another: flatten the module after it was moved")
    first = tensors[0].detach()
    length = sum(len(tensor) for tensor in tensors)
    return first.as_strided((length, *first.shape[1:]), first.stride(), first.storage_offset())


def _views(vector: Tensor, parameters: list[nn.Parameter]) -> list[Tensor]:
    pieces = vector.split([parameter.numel() for parameter in parameters])
    return [piece.view(parameter.shape) for piece, parameter in zip(pieces, parameters, strict=True)]


def _is_flat(tensors: list[nn.Parameter] | tuple[Tensor, ...]) -> bool:
    storage = tensors[0].untyped_storage().data_ptr()
    expected_address = tensors[0].data_ptr()
    for tensor in tensors:
        if tensor.untyped_storage().data_ptr() != storage or tensor.data_ptr() != expected_address:
            return False
        if not tensor.is_contiguous():
            return False
        expected_address += tensor.numel() * tensor.element_size()
    return True
