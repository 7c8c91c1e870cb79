"""The part of the network in front of the quantiles, with the convolutions' derivative written out.

`IQN_Network.features` computes the same (tests compare it, and autograd through it). Written out, a convolution and its
activation are one pass where the library has that, and the derivative of an activation is taken in place: on a
processor these passes over large images cost a tenth of an update.

Shapes as in `iqn`: B batch, S frames, C channels, H and W an image's height and width, F floats, D features.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trackmania_rl.agents.iqn import IQN_Network
from trackmania_rl.agents.network_layers import LEAKY_RELU_SLOPE

_convolution_backward = torch.ops.aten.convolution_backward
leaky_relu_backward_ = torch.ops.aten.leaky_relu_backward.grad_input


def has_fused_layers(device: torch.device) -> bool:
    """Whether there are layers that end with their activation: processors have them through oneDNN."""
    return device.type == "cpu" and torch.backends.mkldnn.is_available()


def linear_leaky_relu(inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """A linear layer (R, inputs) to (R, outputs) with its activation, where there are fused layers."""
    slope = [LEAKY_RELU_SLOPE]
    return torch.ops.mkldnn._linear_pointwise(inputs, weight, bias, "leaky_relu", slope, "")  # type: ignore[no-any-return]


class _Convolution(NamedTuple):
    module: nn.Conv2d
    weight: Tensor  # (C out, C in, kernel, kernel), channels last, in the precision of large products
    bias: Tensor  # (C out,)


class FeaturePart:
    """Features from images and floats; and gradients, from those of the features.

    What is not plain convolutions is left to the network and to autograd.

    Args:
        network: its gradients must exist (`flatten_gradients`) for `backward`. When weights changed, call `prepare`.
        dtype: precision of convolutions and linear layers.
    """

    def __init__(self, network: IQN_Network, dtype: torch.dtype) -> None:
        self._network = network
        self._dtype = dtype
        self._fused = has_fused_layers(network.float_mean.device)
        self._modules = plain_convolutions(network.img_head)
        self._by_autograd: Tensor | None = None
        self._outputs: list[Tensor] = []
        self.prepare()

    def prepare(self) -> None:
        """Bring the convolutions' weights, as they are now, into their precision and order in memory."""
        self._convolutions = [
            _Convolution(
                module,
                module.weight.detach().to(self._dtype, memory_format=torch.channels_last),
                _of(module.bias).detach().to(self._dtype),
            )
            for module in self._modules
        ]

    def forward(self, img: Tensor, floats: Tensor, *, recorded: bool) -> Tensor:
        """Features.

        Args:
            img: (B, S, H, W) uint8.
            floats: (B, F) float32.
            recorded: whether `backward` follows.

        Returns:
            (B, D) without gradient, in the precision of large products where that is safe.
        """
        network, autocast = self._network, self._dtype != torch.float32
        with torch.set_grad_enabled(recorded), torch.autocast(floats.device.type, dtype=self._dtype, enabled=autocast):
            by_autograd = network.float_features(floats) if self._modules else network.features(img, floats)
        if recorded:
            self._by_autograd = by_autograd
        if not self._modules:
            return by_autograd.detach()
        with torch.no_grad():
            return torch.cat((self._image_features(img, recorded=recorded), by_autograd.detach()), dim=1)

    def backward(self, grad_features: Tensor) -> None:
        """Add to the gradients of this part's parameters those of the last recorded `forward`.

        Args:
            grad_features: (B, D), of the loss with respect to the features.
        """
        by_autograd, self._by_autograd = self._by_autograd, None
        assert by_autograd is not None
        n_image_features = grad_features.shape[1] - by_autograd.shape[1]
        by_autograd.backward(grad_features[:, n_image_features:].to(by_autograd.dtype))
        if self._modules:
            with torch.no_grad():
                self._backward_image(grad_features[:, :n_image_features].to(self._dtype))

    def _image_features(self, img: Tensor, *, recorded: bool) -> Tensor:
        """(B, features of the image)."""
        # Channels last is the order in which convolutions are fastest, on processors as on GPUs.
        outputs = img.to(torch.float32, memory_format=torch.channels_last).sub_(128).div_(128).to(self._dtype)
        recorded_outputs = [outputs]
        for convolution in self._convolutions:
            outputs = self._convolve(outputs, convolution)
            if recorded:
                recorded_outputs.append(outputs)
        if recorded:
            self._outputs = recorded_outputs
        return outputs.flatten(1)

    def _convolve(self, inputs: Tensor, convolution: _Convolution) -> Tensor:
        module, weight, bias = convolution
        if self._fused:
            return torch.ops.mkldnn._convolution_pointwise(  # type: ignore[no-any-return]
                inputs,
                weight,
                bias,
                module.padding,
                module.stride,
                module.dilation,
                module.groups,
                "leaky_relu",
                [LEAKY_RELU_SLOPE],
                "",
            )
        return F.leaky_relu_(F.conv2d(inputs, weight, bias, module.stride, module.padding), LEAKY_RELU_SLOPE)

    def _backward_image(self, grad_features: Tensor) -> None:
        """From (B, features of the image)."""
        *inputs, outputs = self._outputs
        self._outputs = []
        grad = grad_features.reshape(outputs.shape).contiguous(memory_format=torch.channels_last)
        for number, (module, weight, bias) in reversed(list(enumerate(self._convolutions))):
            leaky_relu_backward_(grad, outputs, LEAKY_RELU_SLOPE, True, grad_input=grad)
            outputs = inputs.pop()  # of the layer before, which this one reads
            wants = (number > 0, True, True)  # nobody asks for the gradient of the image
            geometry = (module.stride, module.padding, module.dilation, False, (0, 0), module.groups)
            grad, of_weight, of_bias = _convolution_backward(grad, outputs, weight, bias.shape, *geometry, wants)
            _of(module.weight.grad).add_(of_weight)
            _of(_of(module.bias).grad).add_(of_bias)


def plain_convolutions(img_head: nn.Sequential | None) -> list[nn.Conv2d]:
    """The convolutions of an image head of nothing but convolutions, each followed by its activation; else none."""
    layers = [] if img_head is None else list(img_head)[:-1]
    convolutions = [layer for layer in layers if isinstance(layer, nn.Conv2d)]
    is_plain = [type(layer) for layer in layers] == [nn.Conv2d, nn.LeakyReLU] * len(convolutions)
    return convolutions if is_plain else []


def _of(tensor: Tensor | None) -> Tensor:
    assert tensor is not None
    return tensor
