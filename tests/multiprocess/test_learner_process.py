"""The learner's process: what it hands to learning, what it does meanwhile, and how it ends."""

import contextlib
import operator
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, call

import pytest
import torch

from trackmania_rl.channels.local import LocalRunState
from trackmania_rl.channels.protocols import Channels
from trackmania_rl.multiprocess import learner_process
from trackmania_rl.multiprocess.learner_process import learner_process_fn
from trackmania_rl.settings import Settings, settings_from_flat
from trackmania_rl.settings.live import LiveSettings
from trackmania_rl.telemetry.terminal_view import TerminalView


class NotedView(TerminalView):
    """Shows nothing, and notes when it is to and when it gives the terminal back."""

    def __init__(self, note: Mock) -> None:
        super().__init__()
        self._note = note

    def update(self, figures: Any) -> None:
        self._note.update(figures)

    def __exit__(self, *_: object) -> None:
        self._note.close()


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
        self.asked.should_stop.return_value = False
        self.asked.rollouts.get.return_value = None
        self.monitor = self.asked.monitor
        self.monitor.statistics.frames_total = 0
        self.run_state = NotedRunState(live.current, self.asked.request_stop)
        self.learning = SimpleNamespace(trainer=self.asked.trainer, rehearse=self.asked.rehearse)
        self.handed_over: dict[str, Any] = {}
        self.live = live
        self.edit(learner_threads=torch.get_num_threads())  # neither tried out nor changed for other tests

    def edit(self, **values: Any) -> None:
        self.live.current = settings_from_flat(self.live.current.flat() | values)

    def build_learning(self, *_: object, **named: Any) -> Any:
        self.handed_over = named
        return self.learning

    def while_training(self, do: Callable[[], None]) -> None:
        self.asked.trainer.train.side_effect = do

    def run(self, interruptibly: Any = None) -> None:
        surroundings: dict[str, Any] = {
            "live": self.live,
            **dict.fromkeys(("network", "layout", "seeds"), object()),
            "channels": Channels(self.asked.rollouts, self.run_state),
            "logs": contextlib.nullcontext(),
            "supervisor": self.asked.supervisor,
            "monitor": self.monitor,
            "view": NotedView(self.asked.view),
            "should_stop": self.asked.should_stop,
            "interruptibly": interruptibly,
        }
        learner_process_fn(**surroundings)

    @property
    def asked_in_order(self) -> list[str]:
        return [name for name, _, _ in self.asked.mock_calls]


@pytest.fixture
def rig(live: LiveSettings, monkeypatch: pytest.MonkeyPatch) -> Rig:
    rig = Rig(live)
    monkeypatch.setattr(learner_process, "build_learning", rig.build_learning)
    return rig


def test_collectors_are_told_the_frame_count_before_they_start_and_while_the_run_goes_on(rig: Rig) -> None:
    told: list[int] = []

    def resume(learning: object) -> None:
        assert learning is rig.learning
        rig.monitor.statistics.frames_total = 1000

    def train() -> None:
        rig.monitor.statistics.frames_total = 1700
        rig.handed_over["housekeeping"]()
        told.append(rig.run_state.frames_total)

    rig.monitor.attach.side_effect = resume
    rig.asked.supervisor.start.side_effect = lambda: told.append(rig.run_state.frames_total)
    rig.while_training(train)
    rig.run()
    assert told == [1000, 1700]


def test_collectors_are_told_of_edited_settings(rig: Rig) -> None:
    def train() -> None:
        rig.run_state.pull()
        rig.edit(running_speed=7.0)
        rig.handed_over["housekeeping"]()

    rig.while_training(train)
    rig.run()
    assert rig.run_state.pull()
    assert rig.run_state.settings.game.running_speed == 7


@pytest.mark.parametrize(("poll_s", "n_looks"), [(0.0, 2), (1000.0, 0)])
def test_the_run_is_looked_after_now_and_then(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, poll_s: float, n_looks: int
) -> None:
    monkeypatch.setattr(learner_process, "POLL_S", poll_s)

    def train() -> None:
        for _ in range(2):
            rig.handed_over["housekeeping"]()

    rig.while_training(train)
    rig.run()
    assert rig.monitor.observe.call_count == n_looks
    assert rig.asked.supervisor.check.call_count == n_looks
    assert rig.asked.view.update.call_args_list == [call(rig.monitor.statistics)] * n_looks


def test_the_supervisor_hears_whose_race_came_in(rig: Rig) -> None:
    race = SimpleNamespace(collector=3)
    rig.asked.rollouts.get.side_effect = [None, race]

    def train() -> None:
        receive = rig.handed_over["receive"]
        assert receive() is None
        rig.asked.supervisor.delivered.assert_not_called()
        assert receive() is race
        rig.asked.supervisor.delivered.assert_called_once_with(3)

    rig.while_training(train)
    rig.run()
    rig.asked.trainer.train.assert_called_once_with()


def test_learning_publishes_where_collectors_look_for_it(rig: Rig) -> None:
    rig.run()
    assert rig.handed_over["run_state"] is rig.run_state
    assert rig.handed_over["on_race"] is rig.monitor.on_race
    assert rig.handed_over["should_stop"] is rig.asked.should_stop


@pytest.mark.parametrize("failing", [None, "trainer.train", "monitor.try_to_save", "supervisor.stop"])
def test_however_training_ends_everything_is_closed_in_order(rig: Rig, failing: str | None) -> None:
    if failing is not None:
        operator.attrgetter(failing)(rig.asked).side_effect = RuntimeError(failing)
    with contextlib.nullcontext() if failing is None else pytest.raises(RuntimeError, match=failing):
        rig.run()
    assert rig.asked_in_order == [
        "monitor.attach",
        "supervisor.start",
        "trainer.train",
        "request_stop",  # collectors end while the checkpoint is written
        "monitor.try_to_save",
        "supervisor.stop",
        "rollouts.close",
        "monitor.close",
        "view.close",
    ]


@pytest.mark.parametrize("is_to_end", [False, True])
def test_the_update_is_compiled_while_collectors_start_unless_the_run_is_to_end(rig: Rig, is_to_end: bool) -> None:
    rig.edit(use_torch_compile=True)
    rig.asked.should_stop.return_value = is_to_end
    rig.run(rig.asked.interruptibly)
    asked = [name for name in rig.asked_in_order if name in ("supervisor.start", "rehearse", "trainer.train")]
    if is_to_end:
        assert asked == ["supervisor.start", "trainer.train"]
    else:
        assert asked == ["supervisor.start", "rehearse", "trainer.train"]
        rig.asked.rehearse.assert_called_once_with(rig.asked.interruptibly)
