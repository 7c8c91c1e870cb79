"""The learner's process: the processes that it starts and supervises, and its end."""

import contextlib
import operator
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from trackmania_rl.multiprocess import learner_process


@pytest.mark.parametrize("failing", [None, "learn", "second_hook.end", "first_hook.end", "collectors.stop"])
def test_training_ends_everything_in_order_whatever_fails(live, monkeypatch, failing):
    assert live.current.run.use_torch_compile
    asked = MagicMock()
    run = SimpleNamespace(
        settings=live.current,
        agent=asked.agent,
        memory=SimpleNamespace(blank_batch=lambda: "blank batch"),
        has_collectors=True,
        channels=asked.channels,
    )
    learned = []

    def learn(run, hooks, should_stop, compilation):
        asked.learn()
        learned.append((hooks, compilation))

    monkeypatch.setattr(learner_process, "learn", learn)
    if failing is not None:
        operator.attrgetter(failing)(asked).side_effect = RuntimeError(failing)
    hooks = [asked.first_hook, asked.second_hook]
    with contextlib.nullcontext() if failing is None else pytest.raises(RuntimeError, match=failing):
        learner_process.learner_process_fn(run, hooks, asked.collectors, lambda: False)
    if learned:
        [(all_hooks, compilation)] = learned
        assert all_hooks[:2] == hooks
        assert not compilation.is_alive()
    asked.agent.compile_update.assert_called_once_with("blank batch")
    assert [name for name, _, _ in asked.mock_calls if name != "agent.compile_update"] == [
        "collectors.start",
        "learn",
        "channels.run_state.publish",  # collectors end while the checkpoint is written
        "second_hook.end",
        "first_hook.end",
        "collectors.stop",
        "channels.rollouts.close",
    ]
    asked.channels.run_state.publish.assert_called_once_with(stop=True)
