"""`RunState`, the way of weights, settings and the end of the run from the learner to collectors, in shared memory.

There is no lock that a killed process could hold. `open_channels` opens this channel and `Rollouts`, the other one.
"""

from __future__ import annotations

import ctypes
import logging
import os
import sys
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

import torch
from torch import Tensor, nn
from typing_extensions import override

from trackmania_rl.agents.weights import hex_digest, move_into, packed, unpack
from trackmania_rl.channels.rollouts import (
    ROLLOUT_SLOTS_PER_COLLECTOR,
    SHARED_MEMORY_FOLDER,
    SPAWN,
    ChannelError,
    Rollouts,
    RolloutSink,
    make_stop_flag,
)
from trackmania_rl.errors import UserError, one_line
from trackmania_rl.race.race import CollectorProgress
from trackmania_rl.race.spaces import Spaces
from trackmania_rl.settings import Settings

log = logging.getLogger(__name__)

WeightsKind = Literal["exploration", "evaluation"]
"""Collectors explore with the online network's weights, and evaluate with averaged ones."""
WEIGHTS_KINDS: Final[tuple[WeightsKind, ...]] = ("exploration", "evaluation")
NO_WEIGHTS: Final = 0
"""Version of a network that has pulled no weights yet."""
LEAST_SETTINGS_BYTES: Final = 1 << 18
ROOM_TO_GROW: Final = 8
"""Settings may become that many times as long as the first ones."""
MOST_KEPT: Final = 32
"""Versions of evaluation weights that are kept for the drivers of records."""
MOST_KEPT_BYTES: Final = 1 << 28


class SharedVector:
    """Vector in shared memory, held twice (double buffer): one process writes, any number read.

    Version v is in slot v % 2. A write fills the other slot, and then increments the version. A reader that meets a new
    version while it copies copies again. So a process that is stopped or killed blocks no other one.

    Args:
        vector: its memory is moved into shared memory, as one of the slots; version 1.
        name: of the contents, for errors.
        most_kept: replaced versions that stay, of those that were read.

    Raises:
        ChannelError: if memory is short.
    """

    def __init__(self, vector: Tensor, name: str, most_kept: int = 0) -> None:
        try:
            self._slots = vector.clone().share_memory_(), vector.share_memory_()
        except RuntimeError as error:  # torch's report of what the system says
            needed_mb = 2 * vector.numel() * vector.element_size() / 2**20
            raise ChannelError(
                f"{SHARED_MEMORY_FOLDER} has no room for {name} ({needed_mb:.1f} MB): "
                f"{one_line(error)}; free some, or give the machine more (docker run --shm-size=1g)"
            ) from error
        self._version = SPAWN.RawValue(ctypes.c_int64, 1)
        self._was_read = SPAWN.RawArray(ctypes.c_bool, 2)  # by slot
        self._kept: deque[Tensor] = deque(maxlen=most_kept)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_kept": deque()}  # readers need none

    @property
    def version(self) -> int:
        """Number of the newest version."""
        return int(self._version.value)

    def write(self, values: Tensor) -> None:
        """Publish a new version; `values` may be on any device."""
        slot = (self.version + 1) % 2
        if self._was_read[slot] and self._kept.maxlen:
            self._kept.append(self._slots[slot].clone())
        self._was_read[slot] = False
        with torch.no_grad():
            self._slots[slot].copy_(values)
        self._version.value += 1

    def read_newer(self, known_version: int, into: Tensor) -> int:
        """Copy a version newer than `known_version` into a vector on any device; return the version there is now."""
        while known_version != (version := self.version):
            self._was_read[version % 2] = True
            with torch.no_grad():
                into.copy_(self._slots[version % 2])
            if self.version == version:
                return version
        return known_version

    def with_digest(self, digest: str) -> Tensor | None:
        """Return a version that is still here by its `hex_digest`."""
        for vector in (*self._slots, *self._kept):
            if hex_digest(vector) == digest:
                return vector
        return None


class LearnerFaultError(UserError):
    """The learner refuses a collector, or sends something that cannot be used."""


class RunState(Protocol):
    """A collector's end of the way of weights, settings and the end of the run from the learner."""

    @property
    def settings(self) -> Settings:
        """Settings in force at the last `pull`."""
        ...

    @property
    def frames_total(self) -> int:
        """Frames that the whole run has collected; at least as new as the last `pull`."""
        ...

    @property
    def stop_requested(self) -> bool:
        """True once the run is to end; cheap enough between any two actions."""
        ...

    @property
    def progress(self) -> CollectorProgress | None:
        """Place at which the collector resumes; None for that of its task."""
        ...

    def pull(self) -> bool:
        """Take over new settings; return whether there were any."""
        ...

    def pull_weights(self, kind: WeightsKind, network: nn.Module, known_version: int) -> int:
        """Copy weights newer than `known_version` into `network`, on any device; return the version that it has now."""
        ...


class SharedRunState(RunState):
    """Weights, settings, frame count and stop request of a run: the learner publishes them, collectors pull them.

    Any thread may use it, and spawned processes. Only one process publishes.

    Args:
        settings: the first ones.
        networks: with the first weights, which are moved into shared memory.
    """

    def __init__(self, settings: Settings, networks: Mapping[WeightsKind, nn.Module]) -> None:
        self.stop_flag = make_stop_flag()
        self.weights: dict[WeightsKind, SharedVector] = {}  # as bytes
        for kind, network in networks.items():
            vector = packed(network)
            move_into(vector, network)
            most_kept = min(MOST_KEPT, MOST_KEPT_BYTES // len(vector)) if kind == "evaluation" else 0
            self.weights[kind] = SharedVector(vector, "the network's weights", most_kept)
        text = _as_json(settings)
        self._settings_bytes = max(LEAST_SETTINGS_BYTES, ROOM_TO_GROW * len(text))
        self._settings = SharedVector(self._padded(text), "the settings")
        self._published = settings
        self._pulled = 1, settings  # version and settings in one attribute, for any thread
        self._frames_total = SPAWN.RawValue(ctypes.c_int64, 0)

    def publish(
        self,
        *,
        weights: Mapping[WeightsKind, nn.Module] | None = None,
        settings: Settings | None = None,
        frames_total: int | None = None,
        stop: bool = False,
    ) -> None:
        """Publish the given values; the others stay.

        Args:
            weights: networks, whose parameters and buffers are copied.
            settings: the same object again costs nothing; too large ones are logged and left out.
            frames_total: of the run.
            stop: True is final.
        """
        for kind, network in (weights or {}).items():
            self.weights[kind].write(packed(network))
        if frames_total is not None:
            self._frames_total.value = frames_total
        if stop:
            self.stop_flag.value = True
        if settings is not None and settings is not self._published:
            self._published = settings
            text = _as_json(settings)
            if len(text) <= self._settings_bytes:
                self._settings.write(self._padded(text))
                self._pulled = self._settings.version, settings
            else:  # an edit never ends a run
                log.error(
                    "the edited settings are too long for the collectors (%d bytes, at most %d): start the run again "
                    "to use them",
                    len(text),
                    self._settings_bytes,
                )

    progress = None

    @property
    @override
    def settings(self) -> Settings:
        return self._pulled[1]

    @property
    @override
    def frames_total(self) -> int:
        return int(self._frames_total.value)

    @property
    @override
    def stop_requested(self) -> bool:
        return bool(self.stop_flag.value)

    @override
    def pull(self) -> bool:
        if self._settings.version == self._pulled[0]:
            return False
        text = torch.empty(self._settings_bytes, dtype=torch.uint8)
        version = self._settings.read_newer(self._pulled[0], text)
        self._pulled = version, Settings.model_validate_json(text.numpy().tobytes())
        return True

    @override
    def pull_weights(self, kind: WeightsKind, network: nn.Module, known_version: int) -> int:
        weights = self.weights[kind]
        if weights.version == known_version:
            return known_version
        vector = packed(network)  # of the same length and on the same device
        version = weights.read_newer(known_version, vector)
        unpack(vector, network)
        return version

    def _padded(self, text: bytes) -> Tensor:
        """Return JSON as a vector of the settings' length; spaces are ignored in it."""
        return torch.frombuffer(bytearray(text.ljust(self._settings_bytes)), dtype=torch.uint8)


def _as_json(settings: Settings) -> bytes:
    return settings.model_dump_json(warnings=False).encode()  # pydantic would warn of each `NamedPart`


@dataclass(frozen=True)
class Channels:
    """The learner's ends of both channels of a run."""

    rollouts: Rollouts
    run_state: SharedRunState

    def open_collector(self, collector: int) -> tuple[RolloutSink, RunState]:
        """Return a collector's ends; see `Rollouts.open_collector`."""
        return self.rollouts.open_collector(collector), self.run_state


def open_channels(
    settings: Settings, spaces: Spaces, uncompiled_shared_networks: Mapping[WeightsKind, nn.Module]
) -> Channels:
    """Open the channels of a run whose processes are spawned on this machine.

    Parameters and buffers of the networks, the first weights, are moved into shared memory.

    Raises:
        ChannelError: if there is no shared memory, or too little.
    """
    if sys.platform == "linux" and not os.access(SHARED_MEMORY_FOLDER, os.W_OK):
        raise ChannelError(
            f"{SHARED_MEMORY_FOLDER} cannot be written to, and processes share their memory there: mount it "
            "writable (mount -t tmpfs tmpfs /dev/shm; docker run --shm-size=1g)"
        )
    run_state = SharedRunState(settings, uncompiled_shared_networks)
    rollouts = Rollouts(
        settings.game.most_states,
        spaces,
        ROLLOUT_SLOTS_PER_COLLECTOR,
        games_per_collector=1 if settings.game.is_in_process else settings.game.games_per_collector,
        stop=run_state.stop_flag,
    )
    return Channels(rollouts, run_state)
