"""The learner's process: what it starts, what it looks after, and how it ends."""

import contextlib
import operator
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from trackmania_rl.multiprocess.learner_process import learner_process_fn


@pytest.mark.parametrize("failing", [None, "train", "second_hook.end", "first_hook.end", "collectors.stop"])
def test_however_training_ends_everything_is_closed_in_order(live, failing):
    assert live.current.run.use_torch_compile
    asked = MagicMock()
    run = SimpleNamespace(
        settings=live.current,
        agent=asked.agent,
        memory=SimpleNamespace(blank_batch=lambda: "blank batch"),
        has_collectors=True,
        channels=asked.channels,
    )
    trainer = SimpleNamespace(
        run=run,
        hooks=[asked.first_hook, asked.second_hook],
        train=asked.train,
        register_op=lambda *_: None,
        register_module=lambda *_: None,
    )
    if failing is not None:
        operator.attrgetter(failing)(asked).side_effect = RuntimeError(failing)
    with contextlib.nullcontext() if failing is None else pytest.raises(RuntimeError, match=failing):
        learner_process_fn(trainer, asked.collectors)
    assert not trainer.compilation.is_alive()
    asked.agent.compile_update.assert_called_once_with("blank batch")
    assert [name for name, _, _ in asked.mock_calls if name != "agent.compile_update"] == [
        "collectors.register",
        "collectors.start",
        "train",
        "channels.run_state.publish",  # collectors end while the checkpoint is written
        "second_hook.end",
        "first_hook.end",
        "collectors.stop",
        "channels.rollouts.close",
    ]
    asked.channels.run_state.publish.assert_called_once_with(stop=True)
