"""`RunState` between machines: the relay holds the newest news, and collectors keep a call for newer news open.

Weights are put into the store at limited intervals, and a thread of each collector fetches them: neither `publish` nor
`pull_weights` waits for a network.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import ray
from ray.exceptions import RayError
from typing_extensions import override

from trackmania_rl.channels.over_ray.relay import ASK_AGAIN_AFTER_S, OPEN_QUESTION_S, UNREACHABLE, News, start_relay
from trackmania_rl.channels.over_ray.rollouts import RayRolloutSource
from trackmania_rl.channels.protocols import (
    NO_WEIGHTS,
    ROLLOUT_SLOTS_PER_COLLECTOR,
    Channels,
    RunStatePublisher,
    RunStateView,
    WeightsKind,
    settings_as_json,
)
from trackmania_rl.settings import Settings

if TYPE_CHECKING:
    from torch import nn

log = logging.getLogger(__name__)

WEIGHTS_EVERY_S: Final = 0.5
WEIGHTS_BYTES_PER_S: Final = 5 << 20
"""Weights are published at most this often, and at most so many bytes a second of each kind."""
PUBLISH_AT_MOST_EVERY_S: Final = 0.02
"""The frame count grows with every race."""


class RayRunState(RunStatePublisher):
    """Learner's end; see `RunStatePublisher`.

    Args:
        relay: of the run.
        settings: in force.
        networks: by kind; the first weights.
    """

    def __init__(self, relay: Any, settings: Settings, networks: Mapping[WeightsKind, nn.Module]) -> None:
        self._relay = relay
        self._settings = settings
        self._weights_due_s: dict[WeightsKind, float] = {}
        self._news = News(0, settings_as_json(settings), 0, is_over=False, weights={})
        self._lock = threading.Lock()
        self._is_new = threading.Event()
        self.publish(weights=networks)
        threading.Thread(target=self._send, name="news", daemon=True).start()

    @override
    def publish(
        self,
        *,
        weights: Mapping[WeightsKind, nn.Module] | None = None,
        settings: Settings | None = None,
        frames_total: int | None = None,
        stop: bool = False,
    ) -> None:
        parcels = self._put(weights or {})
        with self._lock:
            news = self._news
            for kind, parcel in parcels.items():
                version = news.weights.get(kind, (NO_WEIGHTS, parcel))[0] + 1
                news = replace(news, weights={**news.weights, kind: (version, parcel)})
            if settings is not None and settings is not self._settings:
                self._settings = settings
                news = replace(news, settings=settings_as_json(settings))
            if frames_total is not None and frames_total != news.frames_total:
                news = replace(news, frames_total=frames_total)
            if stop and not news.is_over:
                news = replace(news, is_over=True)
            if news is not self._news:
                self._news = replace(news, number=news.number + 1)
                self._is_new.set()

    def require_relay_has(self, news_number: int) -> None:
        """Publish again unless the relay has the newest news."""
        if news_number < self._news.number:
            self._is_new.set()

    def view(self) -> RayRunStateView:
        """Make a collector's view."""
        return RayRunStateView(self._relay, self._news)

    def _put(self, weights: Mapping[WeightsKind, nn.Module]) -> dict[WeightsKind, list[Any]]:
        """Put the weights that are due into the store."""
        from trackmania_rl.agents.flat_parameters import flatten_parameters

        parcels: dict[WeightsKind, list[Any]] = {}
        for kind, network in weights.items():
            now_s = time.monotonic()
            if now_s >= self._weights_due_s.get(kind, now_s):
                flat = flatten_parameters(network).cpu().numpy()
                self._weights_due_s[kind] = now_s + max(WEIGHTS_EVERY_S, flat.nbytes / WEIGHTS_BYTES_PER_S)
                parcels[kind] = [ray.put(flat)]
        return parcels

    def _send(self) -> None:
        """Send the newest news, in a thread."""
        while self._is_new.wait():
            self._is_new.clear()
            try:
                ray.get(self._relay.publish.remote(self._news))
            except UNREACHABLE:
                self._is_new.set()
                time.sleep(ASK_AGAIN_AFTER_S)
            except RayError:
                return
            time.sleep(PUBLISH_AT_MOST_EVERY_S)


class RayRunStateView(RunStateView):
    """Collector's end; see `RunStateView`. `RayRunState.view` makes it.

    Args:
        relay: of the run.
        news: the first.
    """

    def __init__(self, relay: Any, news: News) -> None:
        self._relay = relay
        self._news = news
        self._pulled = news.settings, Settings.model_validate_json(news.settings)
        self._weights: dict[str, tuple[int, Any]] = {}
        self._follower: threading.Thread | None = None
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type[RayRunStateView], tuple[Any, ...]]:
        return RayRunStateView, (self._relay, self._news)

    @property
    @override
    def settings(self) -> Settings:
        return self._pulled[1]

    @property
    @override
    def frames_total(self) -> int:
        return self._news.frames_total

    @property
    @override
    def stop_requested(self) -> bool:
        if self._follower is None:
            self._follow()
        return self._news.is_over

    @override
    def pull(self) -> bool:
        self._follow()
        text = self._news.settings
        if text == self._pulled[0]:
            return False
        self._pulled = text, Settings.model_validate_json(text)
        return True

    @override
    def pull_weights(self, kind: WeightsKind, network: nn.Module, known_version: int) -> int:
        from torch import as_tensor

        from trackmania_rl.agents.flat_parameters import flatten_parameters

        self._follow()
        version, vector = self._weights.get(kind, (known_version, None))
        if version == known_version:
            return known_version
        flatten_parameters(network).copy_(as_tensor(np.array(vector)))  # a copy, as the store's own is read-only
        return version

    def _follow(self) -> None:
        """Wait for the first weights, and start the thread that waits for news."""
        with self._lock:
            if self._follower is None:
                self._fetch(self._news)
                self._follower = threading.Thread(target=self._await_news, name="news", daemon=True)
                self._follower.start()

    def _fetch(self, news: News) -> None:
        for kind, (version, parcel) in news.weights.items():
            if version != self._weights.get(kind, (NO_WEIGHTS, None))[0]:
                self._weights[kind] = version, ray.get(parcel[0])
        self._news = news  # last, so that its weights are here

    def _await_news(self) -> None:
        while ray.is_initialized() and not self._news.is_over:
            try:
                news = ray.get(self._relay.await_news.remote(self._news.number, OPEN_QUESTION_S))
                if news is not None:
                    self._fetch(news)
            except UNREACHABLE:
                time.sleep(ASK_AGAIN_AFTER_S)
            except RayError as error:  # weights of a learner that is gone, or this process ends
                log.warning("no news of the learner: %s", type(error).__name__)
                return


def open_ray_channels(
    settings: Settings,
    frames_shape: tuple[int, int, int, int],
    networks: Mapping[WeightsKind, nn.Module],
    games_per_collector: int,
) -> Channels:
    """Open the channels of a run whose collectors are actors of the connected cluster.

    Args:
        settings: in force at the beginning.
        frames_shape: of the room for one race, (states of the longest race, 1, H, W).
        networks: by kind; the first weights.
        games_per_collector: races that leave a collector independently; 1 if it steps its games together.
    """
    relay = start_relay()
    run_state = RayRunState(relay, settings, networks)
    rollouts = RayRolloutSource(
        relay,
        frames_shape,
        ROLLOUT_SLOTS_PER_COLLECTOR,
        games_per_collector,
        on_news_number=run_state.require_relay_has,
    )
    return Channels(rollouts, run_state)
