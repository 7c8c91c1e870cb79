"""All parameters of a network as one vector.

A step over a network's weights (optimizer, clipping, decay, soft update, publishing) is a handful of elementwise
operations. Done tensor by tensor they cost some twenty small calls each; done on one vector, one call each. So the
parameters are laid one after another in one piece of memory, and every parameter becomes a view into it: the network,
its `state_dict` and autograd notice nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


def flatten_parameters(module: nn.Module) -> Tensor:
    """Lay the parameters of `module` into one vector that shares their memory: writing to it writes to the network.

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
        for parameter, view in zip(parameters, views_of(vector, parameters), strict=True):
            parameter.data = view
    first = parameters[0].detach()
    return first.as_strided((sum(parameter.numel() for parameter in parameters),), (1,), first.storage_offset())


def views_of(vector: Tensor, parameters: Sequence[nn.Parameter]) -> list[Tensor]:
    """Take a vector (P,), laid out as the parameters are, apart into views of their shapes."""
    pieces = vector.split([parameter.numel() for parameter in parameters])
    return [piece.view(parameter.shape) for piece, parameter in zip(pieces, parameters, strict=True)]


def _is_flat(tensors: Sequence[nn.Parameter]) -> bool:
    storage = tensors[0].untyped_storage().data_ptr()
    expected_address = tensors[0].data_ptr()
    for tensor in tensors:
        if tensor.untyped_storage().data_ptr() != storage or tensor.data_ptr() != expected_address:
            return False
        if not tensor.is_contiguous():
            return False
        expected_address += tensor.numel() * tensor.element_size()
    return True
