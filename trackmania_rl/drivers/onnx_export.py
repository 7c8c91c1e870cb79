"""Export for a driver's greedy policy as ONNX, for programs without torch."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn

from trackmania_rl.agents.inference import Inferer
from trackmania_rl.agents.iqn import midpoints
from trackmania_rl.agents.torchrl_agent import TorchRLActor
from trackmania_rl.drivers.evaluation import TrainedDriver
from trackmania_rl.errors import UserError, one_line

EXPORTED_STATES: Final = 2
"""States in the example; their number is free in the file."""


class GreedyPolicy(nn.Module):
    """A driver's greedy actions as a tensor function.

    Raises:
        UserError: if the driver's actor is neither a quantile actor nor a torchrl actor.
    """

    def __init__(self, driver: TrainedDriver) -> None:
        super().__init__()
        actor = driver.actor
        if not isinstance(actor, Inferer | TorchRLActor):
            raise UserError(f"{driver.file}: an agent with an actor of its own ({type(actor).__name__}) has no export")
        self._actor = actor
        self.network = actor.network
        self._action_shape = driver.spaces.action_shape
        self.register_buffer("tau", midpoints(driver.settings.agent.iqn_k, torch.device("cpu")))

    def forward(self, floats: Tensor, image: Tensor | None = None) -> Tensor:
        """Return the actions (B,) int64, or (B, D) float32, for floats (B, F) and images (B, S, H, W) uint8."""
        if image is None:
            image = torch.zeros((floats.shape[0], 1, 0, 0), dtype=torch.uint8)
        if isinstance(self._actor, Inferer):
            returns: Tensor = self.network(image, floats, self.tau)  # (B, K, A)
            return returns.mean(dim=1).argmax(dim=1)
        actions: Tensor = self._actor.greedy(self._actor.states(image, floats))["action"]
        if not self._action_shape:
            return actions.reshape(-1).long()
        return actions.reshape(-1, *self._action_shape).float()


def export_onnx(driver: TrainedDriver, file: Path) -> None:
    """Write a driver's greedy policy as one ONNX file.

    The inputs are `floats` (batch, F) float32, not normalized, the time in the mini-race (the first one) 0, and with an
    image `image` (batch, S, H, W) uint8. The output is `action`: (batch,) int64, or (batch, D) float32 for analog ones.

    Args:
        driver: on the processor.
        file: overwritten.

    Raises:
        UserError: if packages are missing (extra `onnx`), the network cannot be exported, or writing fails.
    """
    spaces = driver.spaces
    policy = GreedyPolicy(driver).eval()
    inputs = [torch.zeros((EXPORTED_STATES, spaces.n_floats))]
    if driver.settings.game.has_image:
        inputs.append(torch.zeros((EXPORTED_STATES, *spaces.image_shape), dtype=torch.uint8))
    names = ["floats", "image"][: len(inputs)]
    batch = torch.export.Dim("batch")
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                policy,
                tuple(inputs),
                file,
                input_names=names,
                output_names=["action"],
                dynamic_shapes=tuple({0: batch} for _ in inputs),
                external_data=False,
                dynamo=True,
                verbose=False,
            )
    except ImportError as error:
        raise UserError(f"an export needs onnx and onnxscript: pip install onnx onnxscript ({error})") from error
    except torch.onnx.OnnxExporterError as error:
        raise UserError(f"{driver.file}: its network cannot be exported: {one_line(error)}") from error
    except OSError as error:
        raise UserError(f"cannot write {file}: {error.strerror}") from error
