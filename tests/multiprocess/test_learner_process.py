"""The learner's process: what it starts, what it looks after, and how it ends."""

import contextlib
import operator
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from trackmania_rl.channels.local import LocalRunState
from trackmania_rl.channels.protocols import Channels
from trackmania_rl.multiprocess.learner_process import WatchCollectors, learner_process_fn
from trackmania_rl.settings import Settings, settings_from_flat
from trackmania_rl.settings.live import LiveSettings


class NotedRunState(LocalRunState):
    """Notes when the end is published."""

    def __init__(self, settings: Settings, note: Mock) -> None:
        super().__init__(settings)
        self._note = note

    def publish(self, **news: Any) -> None:
        super().publish(**news)
        if news.get("stop"):
            self._note()


class Rig:
    """A learner's process whose surroundings note, in one list, what is asked of them; nothing is really learned."""

    def __init__(self, live: LiveSettings) -> None:
        self.asked = Mock()
        self.live = live
        self.edit(use_torch_compile=False)

    def edit(self, **values: Any) -> None:
        self.live.current = settings_from_flat(self.live.current.flat() | values)

    def run(self, interruptibly: Any = None) -> None:
        settings = self.live.current
        run_state = NotedRunState(settings, self.asked.request_stop)
        trainer = SimpleNamespace(
            run=SimpleNamespace(
                settings=settings,
                agent=self.asked.agent,
                memory=SimpleNamespace(buffer=SimpleNamespace(blank_batch=lambda: "blank batch")),
                channels=Channels(self.asked.rollouts, run_state),
            ),
            hooks=[self.asked.first_hook, self.asked.second_hook],
            train=self.asked.train,
            register_op=lambda *_: None,
            register_module=lambda *_: None,
        )
        logs: Any = contextlib.nullcontext()
        learner_process_fn(trainer, self.asked.supervisor, logs, interruptibly)  # type: ignore[arg-type]

    @property
    def asked_in_order(self) -> list[str]:
        return [name for name, _, _ in self.asked.mock_calls]


@pytest.fixture
def rig(live: LiveSettings) -> Rig:
    return Rig(live)


def test_the_supervisor_hears_whose_race_came_in_and_looks_after_the_collectors() -> None:
    supervisor = Mock(restarts=7, n_alive=2)
    hook = WatchCollectors(supervisor)
    statistics = SimpleNamespace()
    hook.run = SimpleNamespace(race=SimpleNamespace(collector=3), statistics=statistics)  # type: ignore[assignment]
    hook.batch_process({})  # type: ignore[arg-type]
    supervisor.delivered.assert_called_once_with(3)
    supervisor.check.assert_not_called()
    hook.tick()
    supervisor.check.assert_called_once_with()
    assert (statistics.collector_restarts, statistics.collectors_alive) == (7, 2)


@pytest.mark.parametrize("failing", [None, "train", "second_hook.end", "first_hook.end", "supervisor.stop"])
def test_however_training_ends_everything_is_closed_in_order(rig: Rig, failing: str | None) -> None:
    if failing is not None:
        operator.attrgetter(failing)(rig.asked).side_effect = RuntimeError(failing)
    with contextlib.nullcontext() if failing is None else pytest.raises(RuntimeError, match=failing):
        rig.run()
    assert rig.asked_in_order == [
        "supervisor.start",
        "train",
        "request_stop",  # collectors end while the checkpoint is written
        "second_hook.end",
        "first_hook.end",
        "supervisor.stop",
        "rollouts.close",
    ]


def test_the_update_is_compiled_while_collectors_start(rig: Rig) -> None:
    rig.edit(use_torch_compile=True)
    rig.run(rig.asked.interruptibly)
    assert rig.asked_in_order[:3] == ["supervisor.start", "agent.rehearse_update", "train"]
    rig.asked.agent.rehearse_update.assert_called_once_with("blank batch", rig.asked.interruptibly)
