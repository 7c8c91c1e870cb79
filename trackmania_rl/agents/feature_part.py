"""The part of the network in front of the quantiles, with the derivatives of floats and convolutions written out.

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

from trackmania_rl.agents.float_part import FloatPart, present
from trackmania_rl.agents.iqn import IQN_Network
from trackmania_rl.agents.network_layers import LEAKY_RELU_SLOPE
from trackmania_rl.agents.products import has_onednn

_convolution_backward = torch.ops.aten.convolution_backward
leaky_relu_backward_ = torch.ops.aten.leaky_relu_backward.grad_input


class _Convolution(NamedTuple):
    module: nn.Conv2d
    weight: Tensor  # (C out, C in, kernel, kernel), channels last, in the precision of large products
    bias: Tensor  # (C out,)


class FeaturePart:
    """Features from images and floats; and gradients, from those of the features.

    An image head that is not plain convolutions is left to the network and to autograd.

    Args:
        network: its gradients must exist (`flatten_gradients`) for `backward`. When weights changed, call `prepare`.
        dtype: precision of convolutions and linear layers.
    """

    def __init__(self, network: IQN_Network, dtype: torch.dtype) -> None:
        self._network = network
        self._dtype = dtype
        self._fused = has_onednn(network.float_mean.device, dtype)
        self._floats = FloatPart(network, dtype)
        self._modules = plain_convolutions(network.img_head)
        self._by_autograd: Tensor | None = None
        self._outputs: list[Tensor] = []
        self.prepare()

    def prepare(self) -> None:
        """Bring the weights, as they are now, into their precision and order in memory."""
        self._floats.prepare()
        self._convolutions = [
            _Convolution(
                module,
                module.weight.detach().to(self._dtype, memory_format=torch.channels_last),
                present(module.bias).detach().to(self._dtype),
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
        float_features = self._floats.forward(floats, recorded=recorded)
        if self._network.img_head is None:
            return float_features
        with torch.no_grad():
            return torch.cat((self._image_features(img, recorded=recorded), float_features), dim=1)

    def backward(self, grad_features: Tensor) -> None:
        """Add to the gradients of this part's parameters those of the last recorded `forward`.

        Args:
            grad_features: (B, D), of the loss with respect to the features.
        """
        n_image_features = grad_features.shape[1] - self._floats.width
        self._floats.backward(grad_features[:, n_image_features:])
        grad_image_features = grad_features[:, :n_image_features]
        if self._modules:
            with torch.no_grad():
                self._backward_convolutions(grad_image_features.to(self._dtype))
        elif self._by_autograd is not None:
            by_autograd, self._by_autograd = self._by_autograd, None
            by_autograd.backward(grad_image_features.to(by_autograd.dtype))

    def _image_features(self, img: Tensor, *, recorded: bool) -> Tensor:
        """(B, features of the image)."""
        if self._modules:
            return self._through_convolutions(img, recorded=recorded)
        autocast = torch.autocast(img.device.type, dtype=self._dtype, enabled=self._dtype != torch.float32)
        with torch.set_grad_enabled(recorded), autocast:
            features = self._network.image_features(img)
        if recorded:
            self._by_autograd = features
        return features.detach()

    def _through_convolutions(self, img: Tensor, *, recorded: bool) -> Tensor:
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

    def _backward_convolutions(self, grad_features: Tensor) -> None:
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
            present(module.weight.grad).add_(of_weight)
            present(present(module.bias).grad).add_(of_bias)


def plain_convolutions(img_head: nn.Sequential | None) -> list[nn.Conv2d]:
    """The convolutions of an image head of nothing but convolutions, each followed by its activation; else none."""
    layers = [] if img_head is None else list(img_head)[:-1]
    convolutions = [layer for layer in layers if isinstance(layer, nn.Conv2d)]
    is_plain = [type(layer) for layer in layers] == [nn.Conv2d, nn.LeakyReLU] * len(convolutions)
    return convolutions if is_plain else []
