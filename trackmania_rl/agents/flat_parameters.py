"""All parameters of a network as one vector.

A step over a network's weights (optimizer, clipping, decay, soft update, publishing) is a handful of elementwise
operations. Done tensor by tensor they cost some twenty small calls each; done on one vector, one call each. So the
parameters are laid behind one another in one piece of memory, and every parameter becomes a view into it: the network,
its `state_dict` and autograd notice nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


def flatten_parameters(module: nn.Module) -> Tensor:
    """The parameters of `module` as one vector that shares their memory: writing to it writes to the network.

    The first call moves the parameters; later calls find them in place and only return the vector. Moving the module
    (`module.to(...)`) takes the parameters apart again, so flatten after that.

    Args:
        module: its parameters must be of one dtype and on one device.

    Returns:
        (P,) without gradient, in the order of `module.parameters()`.
    """
    parameters = list(module.parameters())
    if not _is_flat(parameters):
        vector = torch.cat([parameter.detach().reshape(-1) for parameter in parameters])
        for parameter, view in zip(parameters, _views(vector, parameters), strict=True):
            parameter.data = view
    first = parameters[0].detach()
    size = sum(parameter.numel() for parameter in parameters)
    return first.as_strided((size,), (1,), first.storage_offset())


def flatten_gradients(module: nn.Module) -> Tensor:
    """Give every parameter a `grad` that is a view into one vector of zeros, and return that vector.

    Autograd adds to an existing `grad` in place, so the whole gradient arrives in the vector. Clear it with `zero_()`;
    `zero_grad()` would drop the views.

    Returns:
        (P,) in the order of `module.parameters()`.
    """
    parameters = list(module.parameters())
    vector = torch.zeros_like(torch.cat([parameter.detach().reshape(-1) for parameter in parameters]))
    for parameter, view in zip(parameters, _views(vector, parameters), strict=True):
        parameter.grad = view
    return vector


def _views(vector: Tensor, parameters: list[nn.Parameter]) -> list[Tensor]:
    pieces = vector.split([parameter.numel() for parameter in parameters])
    return [piece.view(parameter.shape) for piece, parameter in zip(pieces, parameters, strict=True)]


def _is_flat(parameters: list[nn.Parameter]) -> bool:
    storage = parameters[0].untyped_storage().data_ptr()
    expected_address = parameters[0].data_ptr()
    for parameter in parameters:
        if parameter.untyped_storage().data_ptr() != storage or parameter.data_ptr() != expected_address:
            return False
        if not parameter.is_contiguous():
            return False
        expected_address += parameter.numel() * parameter.element_size()
    return True
