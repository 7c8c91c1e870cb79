"""A collector with real game instances behind real sockets: what happens to one is no matter for the others."""

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil
import pytest

from trackmania_rl.agents.inference import Inferer
from trackmania_rl.agents.run_network import make_network
from trackmania_rl.games.socket_games import SocketGames
from trackmania_rl.race.observation import ObservationLayout
from trackmania_rl.race.policy import PolicyDecision
from trackmania_rl.race.spaces import race_spaces
from trackmania_rl.seeds import SeedTree
from trackmania_rl.settings.live import LiveSettings
from trackmania_rl.tmi_interaction.game_instance_manager import GameInstanceManager
from trackmania_rl.tmi_interaction.launchers.launcher import SimulatedGameLauncher, find_free_port
from trackmania_rl.training.collector import Collector, CollectorParts, WeightPuller

from .conftest import WatchedRunState

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

N_GAMES = 3
KILLED, HUNG, UNDISTURBED = range(N_GAMES)


class RacesOfGames:
    """Who sent how many races."""

    def __init__(self, frames_shape: tuple[int, ...]) -> None:
        self.waited_s = 0.0
        self.sent = [0] * N_GAMES
        self._frames_shape = frames_shape

    def acquire_frames(self, game: int, timeout_s: float = 0.0) -> npt.NDArray[np.uint8] | None:
        return np.empty((500, *self._frames_shape), dtype=np.uint8)

    def put(self, game: int, rollout_results: Mapping[str, Any], end_race_stats: Mapping[str, Any]) -> None:
        assert len(rollout_results["actions"]) + 1 == len(rollout_results["frames"])
        assert rollout_results["frames"].any(axis=(1, 2, 3)).all()
        self.sent[game] += 1

    def close(self) -> None:
        """Nothing to let go of."""


@pytest.fixture
def managers(live: LiveSettings, repository_root: Path) -> Iterator[list[GameInstanceManager]]:
    made = []

    def make(timeout_s: float) -> GameInstanceManager:
        changes = {"cutoff_no_progress_within_ms": 1000, "running_speed": 1000.0, "tmi_protection_timeout_s": timeout_s}
        game = live.current.game.model_copy(update=changes)
        live.current = live.current.model_copy(update={"game": game})
        made.append(
            GameInstanceManager(
                game, live.current.observation, SimulatedGameLauncher(find_free_port(), repository_root / "maps")
            )
        )
        return made[-1]

    patient = make(timeout_s=120.0)  # may have to compile, which others then need not
    entry = live.current.game.map_cycle[0]
    n_actions = len(live.current.game.inputs)
    patient.rollout(entry, lambda frame, floats: PolicyDecision(0, True, np.zeros(n_actions, dtype=np.float32)))
    patient.close()
    yield [make(timeout_s=10.0) for _ in range(N_GAMES)]
    for manager in made:
        manager.close()


def make_parts(live: LiveSettings, layout: ObservationLayout, is_over: Callable[[], bool]) -> CollectorParts:
    settings, seeds = live.current, SeedTree(1)
    run_state = WatchedRunState(settings)
    run_state.is_over = is_over
    pullers = [
        WeightPuller(
            Inferer(
                make_network(settings, race_spaces(settings), SeedTree(1)),
                n_quantiles=settings.agent.iqn_k,
                throttle_actions=race_spaces(settings).throttle_actions,
                exploration_settings=settings.exploration,
                rng=seeds.rng(name),
            ),
            run_state,
            kind,
        )
        for name, kind in (("explorer", "exploration"), ("evaluator", "evaluation"))
    ]
    frame_shape = (1, settings.game.image_height_px, settings.game.image_width_px)
    return CollectorParts(run_state, RacesOfGames(frame_shape), *pullers)


def test_killed_and_hung_games_come_back_while_others_play(
    live: LiveSettings, layout: ObservationLayout, managers: list[GameInstanceManager]
) -> None:
    def script() -> Iterator[None]:
        """What happens between two decisions; one step of it each time the collector looks for the end."""
        while min(sink.sent) < 1:
            yield
        os.kill(managers[KILLED]._launcher.pid, signal.SIGKILL)
        os.kill(managers[HUNG]._launcher.pid, signal.SIGSTOP)
        before = list(sink.sent)
        while sink.sent[UNDISTURBED] < before[UNDISTURBED] + 4:
            yield
        assert sink.sent[KILLED] <= before[KILLED] + 1
        assert sink.sent[HUNG] <= before[HUNG] + 1
        while min(sink.sent[KILLED] - before[KILLED], sink.sent[HUNG] - before[HUNG]) < 2:
            yield
        os.kill(managers[UNDISTURBED]._launcher.pid, signal.SIGSTOP)
        began_to_end_s.append(time.monotonic())

    began_to_end_s: list[float] = []
    steps = script()
    parts = make_parts(live, layout, lambda: next(steps, "over") == "over")
    assert isinstance(parts.rollouts, RacesOfGames)
    sink = parts.rollouts
    games = SocketGames(managers)
    Collector(parts, games).run()
    assert not games.close(), "one hangs"
    assert time.monotonic() - began_to_end_s[0] < 3
    assert [manager.game_starts for manager in managers] == [2, 2, 1]
    for child in psutil.Process().children():
        if child.pid == managers[UNDISTURBED]._launcher.pid:
            child.kill()
