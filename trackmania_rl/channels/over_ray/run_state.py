"""`RunState` from machine to machine: the relay puts up the newest news, and collectors keep one question open.

Weights are put into the store at most every so often, and fetched by a thread of each collector: neither `publish` nor
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

from trackmania_rl.channels.over_ray.reaching import ASK_AGAIN_AFTER_S, UNREACHABLE
from trackmania_rl.channels.over_ray.relay import OPEN_QUESTION_S, News
from trackmania_rl.channels.protocols import NO_WEIGHTS, WeightsKind
from trackmania_rl.channels.settings_text import settings_as_json
from trackmania_rl.settings import Settings

if TYPE_CHECKING:
    from torch import nn

log = logging.getLogger(__name__)

WEIGHTS_EVERY_S: Final = 0.5
WEIGHTS_BYTES_PER_S: Final = 5 << 20
"""Weights are published at most this often, and at most so many bytes a second of each kind."""
PUBLISH_AT_MOST_EVERY_S: Final = 0.02
"""The count of frames grows with every race; more often nobody needs to know."""


class RayRunState:
    """The learner's end; see `RunStatePublisher`.

    Args:
        relay: the run's.
        settings: those in force.
        networks: by kind; what they hold is published first.
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

    def publish(
        self,
        *,
        weights: Mapping[WeightsKind, nn.Module] | None = None,
        settings: Settings | None = None,
        frames_total: int | None = None,
        stop: bool = False,
    ) -> None:
        """Publish what is given, weights not too often; see `RunStatePublisher`."""
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

    def publish_again(self) -> None:
        """Tell a relay that was started again what it has forgotten."""
        self._is_new.set()

    def view(self) -> RayRunStateView:
        """Make what a collector is handed when it is started."""
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


class RayRunStateView:
    """A collector's end; see `RunStateView`. `RayRunState.view` makes it.

    Args:
        relay: the run's.
        news: what is known at first.
    """

    def __init__(self, relay: Any, news: News) -> None:
        self._relay = relay
        self._news = news
        self._seen = news.settings, Settings.model_validate_json(news.settings)
        self._weights: dict[str, tuple[int, Any]] = {}
        self._follower: threading.Thread | None = None
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type[RayRunStateView], tuple[Any, ...]]:
        return RayRunStateView, (self._relay, self._news)

    @property
    def settings(self) -> Settings:
        """Those in force; see `RunStateView`."""
        return self._seen[1]

    @property
    def frames_total(self) -> int:
        """The whole run's; see `RunStateView`."""
        return self._news.frames_total

    @property
    def stop_requested(self) -> bool:
        """Whether the run is to end; see `RunStateView`."""
        if self._follower is None:
            self._follow()
        return self._news.is_over

    def pull(self) -> bool:
        """Take over settings that have come since the last look; see `RunStateView`."""
        self._follow()
        text = self._news.settings
        if text == self._seen[0]:
            return False
        self._seen = text, Settings.model_validate_json(text)
        return True

    def pull_weights(self, kind: WeightsKind, network: nn.Module, known_version: int) -> int:
        """Copy weights that have come since the last look; see `RunStateView`."""
        from torch import as_tensor

        from trackmania_rl.agents.flat_parameters import flatten_parameters

        self._follow()
        version, vector = self._weights.get(kind, (known_version, None))
        if version == known_version:
            return known_version
        flatten_parameters(network).copy_(as_tensor(np.array(vector)))  # a copy, as the store's own is read-only
        return version

    def _follow(self) -> None:
        """Keep a question at the relay from now on; the first weights are waited for."""
        with self._lock:
            if self._follower is None:
                self._fetch(self._news)
                self._follower = threading.Thread(target=self._ask_on_and_on, name="news", daemon=True)
                self._follower.start()

    def _fetch(self, news: News) -> None:
        for kind, (version, parcel) in news.weights.items():
            if version != self._weights.get(kind, (NO_WEIGHTS, None))[0]:
                self._weights[kind] = version, ray.get(parcel[0])
        self._news = news  # last, so that who sees it finds its weights

    def _ask_on_and_on(self) -> None:
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
