"""Resuming: from which checkpoint, with which settings, kept and refused changes."""

import logging
import re
import shutil

import pytest

from trackmania_rl.errors import ExitCode, UserError
from trackmania_rl.runs.log import iterate_races
from trackmania_rl.runs.manifest import CheckpointError
from trackmania_rl.runs.reading import find_manifests
from trackmania_rl.telemetry.terminal_view import plain_line
from trackmania_rl.training.hooks.checkpoints import NotSavedError, SaveCheckpoints, score_of
from trackmania_rl.training.hooks.status import WriteStatus

from .conftest import edit

pytestmark = pytest.mark.usefixtures("no_writers")


@pytest.fixture
def no_writers(live):
    edit(live, loggers=())


def save(run):
    assert run.hook(SaveCheckpoints).try_to_save()


@pytest.mark.parametrize("lost", ["a link that leads nowhere", "an empty folder", "no folder"])
def test_a_run_whose_checkpoints_are_gone_does_not_begin_anew(make_run, make_race, lost):
    run = make_run()
    run.train_on([make_race(17, True)])
    save(run)
    run.hook(WriteStatus).end()
    folder = run.context.folder
    away = folder.checkpoints.rename(folder.path / "away")
    assert re.search(r"checkpoint 0:\d\d:\d\d ago$", plain_line(run.context.statistics))
    if lost == "an empty folder":
        folder.checkpoints.mkdir()
    elif lost != "no folder":
        folder.checkpoints.symlink_to(folder.path / "not mounted")
    races = list(iterate_races(folder.run_log))
    with pytest.raises(
        CheckpointError, match=r"has raced before, but .*checkpoints holds no checkpoint: mount its disk"
    ):
        make_run()
    assert list(iterate_races(folder.run_log)) == races
    if lost != "no folder":
        (folder.checkpoints.rmdir if lost == "an empty folder" else folder.checkpoints.unlink)()
    away.rename(folder.checkpoints)
    resumed = make_run()
    assert resumed.frames_total == 17
    assert run.context.heartbeat.saved >= 17, "as --supervised reads it"
    assert resumed.context.heartbeat.saved == 0, "a resumed checkpoint is no progress"
    assert re.search(r"checkpoint 0:\d\d:\d\d ago$", plain_line(resumed.context.statistics))


def test_a_run_that_was_killed_before_its_first_checkpoint_begins_anew(make_run, make_race):
    make_run().train_on([make_race(17, True)])
    assert make_run().frames_total == 0


def test_a_change_of_meaning_is_refused_until_it_is_accepted(live, make_run, caplog):
    save(make_run())
    edit(live, constant_reward_per_ms=-0.5, batch_size=17)
    with pytest.raises(UserError, match=r"constant_reward_per_ms = -0\.5 \(was -0\.0012\).*--accept-change") as caught:
        make_run()
    assert "batch_size" not in str(caught.value)
    caplog.set_level(logging.INFO)
    save(make_run(accepted_changes=["constant_reward_per_ms"]))
    changed = [record.getMessage() for record in caplog.records if record.msg.startswith("changed since")]
    assert changed == [
        "changed since the checkpoint: constant_reward_per_ms = -0.5 (was -0.0012)",
        "changed since the checkpoint: batch_size = 17 (was 13)",
    ]
    make_run()  # from now on it is the run's


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("image_width_px", 25, r"does not fit .*image_width_px = 25 \(was 17\)"),
        ("float_hidden_dim", 12, r"000001 does not fit .*float_hidden_dim = 12 \(was 11\)"),
    ],
)
def test_a_change_of_sizes_is_refused_without_advice_to_accept_it(live, make_run, name, value, message):
    save(make_run())
    edit(live, **{name: value, "constant_reward_per_ms": -0.5})
    for accepted in ([], [name, "constant_reward_per_ms"]):
        with pytest.raises(CheckpointError, match=message) as caught:
            make_run(accepted_changes=accepted)
        assert "--accept-change" not in str(caught.value)


def test_an_edit_that_was_applied_while_the_run_went_on_is_accepted(live, make_run):
    run = make_run()
    save(run)
    edit(live, constant_reward_per_ms=-0.5)
    run.hook(SaveCheckpoints).tick()
    make_run()  # although the run was killed before its next checkpoint was due
    edit(live, constant_reward_per_ms=-0.7)
    with pytest.raises(UserError, match=r"-0\.7 \(was -0\.5\)"):
        make_run()


def test_the_last_three_checkpoints_and_the_best_are_kept(live, make_run, make_race):
    edit(live, number_times_single_memory_is_used_before_discard=0.05)
    run = make_run()
    assert score_of(run.context.statistics) is None
    run.train_on([make_race(30, False, is_explo=False) for _ in range(4)])
    assert score_of(run.context.statistics) is None, "too few races"
    for n_actions in (30, 20, 60, 61, 62):
        run.train_on([make_race(n_actions, True, is_explo=False) for _ in range(10)])
        save(run)
    kept = find_manifests(run.context.folder.path)
    facts = [(manifest.number, manifest.frames, manifest.session) for manifest in kept.values()]
    assert facts == [(5, 2450, 1), (4, 1830, 1), (3, 1220, 1), (2, 620, 1)]
    scores = [manifest.score for manifest in kept.values()]
    assert [score and score[:2] for score in scores] == [(1.0, -3.1), (1.0, -3.05), (1.0, -3.0), (1.0, -1.0)]


def test_a_damaged_checkpoint_is_told_and_the_one_before_is_taken(make_run, make_race, caplog):
    run = make_run()
    for _ in range(2):
        run.train_on([make_race(60, True)])
        save(run)
    folder = run.context.folder
    newest = folder.checkpoints / "000002"
    (newest / "weights.safetensors").unlink()
    resumed = make_run()
    assert resumed.frames_total == 60
    assert f"cannot read the checkpoint {newest}: weights.safetensors: cannot be read: No such file" in caplog.text
    assert "; resuming from" in caplog.text
    assert sorted(path.name for path in folder.checkpoints.iterdir()) == ["000001", "000002.damaged", "memory"]
    resumed.train_on([make_race(60, True)])
    save(resumed)
    assert make_run().frames_total == 120


def test_an_end_that_is_not_saved_is_an_error_that_names_the_last_good_one(live, make_run, make_race):
    run = make_run()
    run.train_on([make_race(60, True)])
    save(run)
    edit(live, minimum_free_disk_mb=10**9)
    with pytest.raises(NotSavedError, match=r"is not saved: no checkpoint written.* free some") as caught:
        run.hook(SaveCheckpoints).end()
    last_good = run.context.folder.checkpoints / "000001"
    assert f"The last good one is {last_good} of " in str(caught.value)
    assert ", at frame 60: the same command goes on from there" in str(caught.value)
    assert caught.value.exit_code is ExitCode.NOT_SAVED
    run.close_files()
    shutil.rmtree(run.context.folder.path)
    run.context.folder.path.touch()  # a missing folder would be made again
    edit(live, minimum_free_disk_mb=0)
    with pytest.raises(NotSavedError, match=r"No such file or directory.* has no other checkpoint"):
        run.hook(SaveCheckpoints).end()
