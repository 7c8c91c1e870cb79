"""The run's network and where it runs, for every process: nothing here imports torchrl, which takes seconds."""

from __future__ import annotations

import torch

from trackmania_rl.agents.fourier_features import Wave
from trackmania_rl.agents.iqn import IQN_Network
from trackmania_rl.errors import UserError
from trackmania_rl.features import ObservationLayout
from trackmania_rl.seeds import SeedTree
from trackmania_rl.settings import Settings


def make_network(settings: Settings, layout: ObservationLayout, seeds: SeedTree) -> IQN_Network:
    """The run's network with its initial weights, on the CPU."""
    return IQN_Network(
        settings.agent,
        float_mean=layout.mean.tolist(),
        float_std=layout.std.tolist(),
        n_actions=len(settings.game.inputs),
        image_height_px=settings.game.image_height_px,
        image_width_px=settings.game.image_width_px,
        mini_race_duration_actions=settings.replay.temporal_mini_race_duration_actions,
        generator=torch.Generator().manual_seed(seeds.integer("network")),
        frames_per_state=settings.game.frames_per_state,
        waves=[Wave(*wave) for wave in layout.waves],
    )


def pick_device(torch_device: str) -> torch.device:
    """The device that the setting names; "auto" is a GPU where there is one.

    Raises:
        UserError: if torch cannot use that device on this machine.
    """
    if torch_device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(torch_device)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:  # torch built without CUDA fails an assertion
        reason = str(error).splitlines()[0]
        raise UserError(
            f'torch_device = "{torch_device}" cannot be used here: {reason}; try "auto" or "cpu"'
        ) from error
    return device
