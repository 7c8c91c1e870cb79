"""The run's network and where it runs, for every process."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import logging
import platform
from typing import Final

import torch

from trackmania_rl.agents.iqn import QuantileNetwork, Sizes
from trackmania_rl.errors import UserError, warn_once
from trackmania_rl.parts import make_part
from trackmania_rl.race.spaces import Spaces
from trackmania_rl.seeds import SeedTree
from trackmania_rl.settings import AgentSettings, Settings, SettingsError

log = logging.getLogger(__name__)

M_TRIM_THRESHOLD: Final = -1
M_TOP_PAD: Final = -2
M_MMAP_MAX: Final = -4
KEPT_BYTES: Final = 2**31 - 1
"""The most that `mallopt` can be told."""
GROWS_BY_BYTES: Final = 64 << 20


def sizes_of(settings: Settings, spaces: Spaces) -> Sizes:
    """Say what the run's network reads and answers."""
    return Sizes(
        float_mean=spaces.float_mean,
        float_std=spaces.float_std,
        n_actions=spaces.n_values,
        image_shape=spaces.image_shape,
        mini_race_duration_actions=settings.replay.temporal_mini_race_duration_actions,
        waves=spaces.waves,
    )


def make_network(settings: Settings, spaces: Spaces, seeds: SeedTree) -> QuantileNetwork:
    """Make the run's network, as `network_of_seed` does, with the initial weights of the run's seed."""
    return network_of_seed(settings, spaces, seeds.integer("network"))


def network_of_seed(settings: Settings, spaces: Spaces, seed: int) -> QuantileNetwork:
    """Make the network that the setting `network` names, on the CPU, with initial weights drawn from a seed.

    Raises:
        SettingsError: if the setting names no network.
        UserError: if the image is too small for the convolutions.
    """
    generator = torch.Generator().manual_seed(seed)
    arguments = (settings.agent, sizes_of(settings, spaces), generator)
    try:
        network = make_part(settings.agent.network, "network", *arguments, takes="settings, sizes, generator")
    except SettingsError:
        raise
    except ValueError as error:
        raise UserError(str(error)) from error
    if not isinstance(network, QuantileNetwork):
        raise SettingsError(
            f"network = {str(settings.agent.network)!r} made a {type(network).__name__}; derive it from "
            "QuantileNetwork (trackmania_rl/agents/iqn.py)"
        )
    return network


def pick_device(torch_device: str, setting: str = "torch_device") -> torch.device:
    """The device that a setting names, made the current one; "auto" is a GPU where there is one that works.

    Args:
        torch_device: the setting's value.
        setting: its name, for errors.

    Raises:
        UserError: if torch cannot use the device that is named.
    """
    if torch_device == "auto":
        if not torch.cuda.is_available():
            return torch.device("cpu")
        if (reason := why_unusable("cuda")) is not None:
            warn_once(f"the GPU cannot be used ({reason}); the network runs on the processor", log)
            return torch.device("cpu")
        return torch.device("cuda")
    if (reason := why_unusable(torch_device)) is not None:
        raise UserError(f'{setting} = "{torch_device}" cannot be used here: {reason}; try "auto" or "cpu"')
    device = torch.device(torch_device)
    if device.type == "cuda" and device.index is not None:  # else streams and questions are about another GPU
        torch.cuda.set_device(device)
    return device


def pick_playing_device(settings: Settings, spaces: Spaces) -> torch.device:
    """Where collectors decide: as `collector_device` says; "auto" is the processor, unless there is an image.

    A few states of floats pass the network in a fraction of a millisecond there. On a GPU, starting the pass's many
    small operations takes longer than that, and they wait for the learner's.

    Raises:
        UserError: if torch cannot use the device that is named.
    """
    run = settings.run
    if run.collector_device != "auto":
        return pick_device(run.collector_device, "collector_device")
    return pick_device(run.torch_device) if spaces.has_image else torch.device("cpu")


@functools.cache
def why_unusable(device: str) -> str | None:
    """Why torch cannot compute on a device, in one line; None if it can.

    torch finds GPUs that are older than its compiled kernels, or newer than the driver: only a computation tells.
    """
    try:
        torch.ones(1, device=device).add_(1).item()
    except torch.OutOfMemoryError:  # it works, but is full, which is told by what finds no room there
        return None
    except (RuntimeError, AssertionError) as error:  # torch built without CUDA fails an assertion
        return str(error).splitlines()[0]
    return None


def arithmetic_dtype(device: torch.device, settings: AgentSettings) -> torch.dtype:
    """The precision of the networks' large products.

    A GPU computes as configured, but in float16 where it would have to imitate bfloat16. Of processors, those with
    matrix instructions (Intel's AMX) are several times faster in bfloat16 than in float32, so they follow that setting;
    all others compute in float32, whatever is configured.
    """
    dtype: torch.dtype = getattr(torch, settings.autocast_dtype)
    if device.type == "cuda":
        imitates = dtype == torch.bfloat16 and not torch.cuda.is_bf16_supported(including_emulation=False)
        return torch.float16 if imitates else dtype
    has_matrix_instructions = torch.cpu.get_capabilities().get("amx_bf16", False)
    return dtype if dtype == torch.bfloat16 and has_matrix_instructions else torch.float32


def keep_freed_memory() -> None:
    """Keep freed memory for the next update, on Linux with the GNU C library; elsewhere nothing changes.

    By itself it gives large tensors back to the system, and asks for them again: page by page, each filled with zeros,
    which takes a seventh of a full-size update on a processor.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        for parameter, value in ((M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, KEPT_BYTES), (M_TOP_PAD, GROWS_BY_BYTES)):
            library.mallopt(parameter, value)
