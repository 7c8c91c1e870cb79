"""Numbers that are not finite: counted, warned of, refused, and the end of a run before they are saved."""

import contextlib
import copy
import errno

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from trackmania_rl.agents.weights import hex_digest, packed
from trackmania_rl.errors import ExitCode, UserError
from trackmania_rl.race.rewards import Rewarded
from trackmania_rl.runs.log import iterate_races
from trackmania_rl.runs.manifest import CheckpointError
from trackmania_rl.runs.reading import find_manifests
from trackmania_rl.runs.store import save_checkpoint
from trackmania_rl.telemetry.figures import progress_figures
from trackmania_rl.training import learner, updates
from trackmania_rl.training.hooks.checkpoints import SaveCheckpoints, state_of
from trackmania_rl.training.hooks.hook import Hook
from trackmania_rl.training.updates import NumbersNotFiniteError, publish_weights

from .conftest import edit

NAN, INF = float("nan"), float("inf")


@pytest.fixture
def run(make_run):
    return make_run()


def losses(loss, grad_norm=1.0):
    figures = {"loss": loss, "loss_of_mine": 0.5, "mean_q": NAN, "grad_norm": grad_norm}
    return TensorDict({name: torch.tensor(value) for name, value in figures.items()})


def test_updates_are_counted_and_warned_of_at_the_tenth(run, caplog):
    numbers, statistics = run.context.numbers, run.context.statistics
    for number in range(12):
        numbers.check(losses(1.0))
        numbers.check(losses(*((NAN, 1.0), (1.0, INF), (-INF, INF))[number % 3]))
        assert (statistics.updates_not_finite, statistics.updates_not_finite_in_a_row) == (number + 1, 1)
        assert ("a loss or a gradient that is not finite" in caplog.text) == (number >= 9)
    assert caplog.text.count("not finite") == 1
    assert progress_figures(statistics, run.context.settings, {})["train/total/updates_not_finite"] == 12
    numbers.check(losses(1.0))
    assert statistics.updates_not_finite_in_a_row == 0


def test_so_many_in_a_row_end_the_run_and_its_checkpoint_stays(live, make_run):
    edit(live, checkpoint_interval_s=1e-9)
    run = make_run()
    numbers, checkpoints = run.context.numbers, run.hook(SaveCheckpoints)
    assert checkpoints.try_to_save()
    sound = find_manifests(run.context.folder.path)
    for _ in range(99):
        numbers.check(losses(NAN))
    checkpoints.tick()
    assert find_manifests(run.context.folder.path) == sound, "in doubt, none is written"
    with pytest.raises(NumbersNotFiniteError, match=r"^100 updates in a row had a loss or a gradient"):
        numbers.check(losses(NAN))
    with pytest.raises(NumbersNotFiniteError, match="100 updates in a row"):
        checkpoints.end()
    assert find_manifests(run.context.folder.path) == sound


def spoil(run, *path):
    """Make one number of a tensor of the agent's state NaN."""
    value = run.agent.state_dict()
    for name in path:
        value = value[name]
    value.view(-1)[-1] = NAN


PLACES = [
    ("online", "A_head.0.weight"),
    ("target", "V_head.2.bias"),
    ("averaged", "iqn_fc.0.bias"),
    ("step", "optimizer", "exp_avg_sq"),
    ("scaling", "mean"),
]


@pytest.mark.parametrize("path", PLACES, ids="/".join)
def test_spoilt_weights_are_named_never_saved_and_not_resumed_from(make_run, path):
    run = make_run()
    run.context.numbers.require_sound()
    spoil(run, *path)
    named = rf"weights are no longer finite numbers.*\({'/'.join(path)}\)"
    with pytest.raises(NumbersNotFiniteError, match=named):
        run.hook(SaveCheckpoints).try_to_save()
    run.agent.updates = updates.CHECK_WEIGHTS_EVERY
    with pytest.raises(NumbersNotFiniteError, match=named):
        run.context.numbers.check(losses(1.0))
    assert not find_manifests(run.context.folder.path)
    save_checkpoint(run.context.folder.path, state_of(run.context), 0)
    with pytest.raises(CheckpointError, match=rf"the weights to begin with are not finite.*\({'/'.join(path)}\)"):
        make_run()


def test_a_replay_memory_that_is_not_finite_is_refused_by_name(make_run, make_race):
    run = make_run()
    run.train_on([make_race(37, True)])
    run.buffer.ring.columns.rewards[5] = NAN
    save_checkpoint(run.context.folder.path, state_of(run.context), 0)
    with pytest.raises(CheckpointError, match=r"the replay memory to begin with .*columns/rewards"):
        make_run()


def newest_weights(run):
    vectors = {kind: torch.empty_like(one._slots[0]) for kind, one in run.run_state.weights.items()}
    return {kind: (one.read_newer(0, vectors[kind]), vectors[kind]) for kind, one in run.run_state.weights.items()}


@pytest.mark.parametrize("network", ["online", "averaged"])
def test_weights_that_are_not_finite_are_never_published(live, make_run, network):
    edit(live, evaluation_weights_decay=0.9)
    run = make_run()
    agent = run.agent
    agent.average_weights()
    publish_weights(run.context)
    published = newest_weights(run)
    averaged = {name: weight.clone() for name, weight in agent.state_dict()["averaged"].items()}
    spoil(run, network, "A_head.2.weight")
    with pytest.raises(NumbersNotFiniteError, match=f"{network}/A_head.2.weight"):
        publish_weights(run.context)
    for kind, (version, vector) in newest_weights(run).items():
        assert published[kind][0] == version
        assert torch.equal(published[kind][1], vector)
        assert torch.isfinite(vector).all()
    if network == "online":
        assert all(torch.equal(weight, averaged[name]) for name, weight in agent.state_dict()["averaged"].items())


def test_a_batch_with_a_nan_is_counted_and_the_count_is_resumed(run, make_run, make_race):
    run.train_on([make_race(60, True), make_race(17, True, meters=INF)])
    updates = run.agent.updates
    assert updates > 5
    assert run.context.statistics.updates_not_finite == 0
    floats = run.buffer.ring.columns.state_floats
    sound = floats.clone()
    floats[:] = NAN
    run.train_on([make_race(60, True)])
    floats[:] = torch.where(torch.isnan(floats), sound, floats)  # the race that came meanwhile is sound
    not_finite = run.context.statistics.updates_not_finite
    assert 0 < not_finite <= run.agent.updates - updates
    assert run.hook(SaveCheckpoints).try_to_save()
    resumed = make_run().context.statistics
    assert (resumed.updates_not_finite, resumed.races_refused) == (not_finite, 1)


def _set(name, row, value):
    def change(rollout):
        rollout[name] = rollout[name].copy()
        rollout[name].reshape(len(rollout[name]), -1)[row, 0] = value

    return change


BROKEN = {
    "state_float": _set("state_float", 3, NAN),
    "q_values": _set("q_values", 4, INF),
    "action_log_prob": _set("action_log_prob", 4, -INF),
    "meters_advanced_along_centerline": _set("meters_advanced_along_centerline", -1, NAN),
    "rewards": lambda rollout: rollout.update(rewards=np.array([1.0, -INF, *[0.0] * 15], dtype=np.float32)),
    "state_float beyond float32": lambda rollout: rollout.update(state_float=rollout["state_float"] + np.float64(1e60)),
    "rewards beyond float32": lambda rollout: rollout.update(rewards=np.full(17, 1e60)),
    "rewards that are objects": lambda rollout: rollout.update(rewards=np.array([INF] * 17, dtype=object)),
    "rewards that are no numbers": lambda rollout: rollout.update(rewards=np.array([None] * 17)),
}


def test_a_race_that_is_not_finite_never_enters_the_memory(run, make_race, caplog):
    statistics = run.context.statistics
    for name, change in BROKEN.items():
        race = make_race(17, True)
        change(race.columns)
        statistics.races_refused = 0  # so that each one is warned of
        run.train_on([race])
        assert statistics.races_refused == 1
        assert f"valley is refused, since its {name.split()[0]} holds numbers that are not finite" in caplog.text
        caplog.clear()
    run.train_on([make_race(21, False)])
    assert len(run.buffer) + len(run.buffer_test) == 21
    assert (statistics.races_total, statistics.frames_total, run.frames_total) == (1, 21, 21)
    assert len(list(iterate_races(run.context.folder.run_log))) == 1
    of_no_values = make_race(17, True)
    of_no_values.columns["q_values"] = np.full((17, 1), NAN, dtype=np.float32)
    run.train_on([of_no_values])
    assert statistics.races_total == 2, "an agent that values no actions is no reason to refuse a race"


@pytest.mark.parametrize(
    ("name", "value"),
    [("rewards", NAN), ("potentials", 1e60), ("rewards", np.array(10**60, dtype=object))],
    ids=["NaN", "beyond float32", "object"],
)
def test_a_race_whose_reward_is_not_finite_is_not_learned_from_and_the_run_resumes(make_run, make_race, name, value):
    def reward(rollout_results, *_):
        n_actions = len(rollout_results["actions"])
        rewarded = Rewarded(np.ones(n_actions), np.zeros(n_actions + 1))
        if n_actions == 17:
            rewarded = rewarded._replace(**{name: np.full(len(getattr(rewarded, name)), value)})
        return rewarded

    run = make_run()
    run.context.reward = reward
    run.train_on([make_race(17, True), make_race(21, True)])
    assert run.context.statistics.races_refused == 1
    assert len(run.buffer) + len(run.buffer_test) == 21
    assert run.context.statistics.races_total == 1
    assert run.hook(SaveCheckpoints).try_to_save()
    assert len(make_run().buffer.ring) == 22


@pytest.mark.parametrize(
    ("rewarded", "message"),
    [
        (None, r"the reward gives a NoneType; it has to give a Rewarded .* of \(17,\) rewards and \(18,\)"),
        (np.ones(17), "the reward gives a ndarray; it has"),
        (Rewarded(np.ones((17, 1)), np.zeros(18)), r"the reward gives rewards of the shape \(17, 1\); it has"),
        (Rewarded(1.0, np.zeros(18)), r"the reward gives rewards of the shape \(\); it has"),
        (Rewarded(np.ones(17), None), r"the reward gives potentials of the shape \(\); it has"),
        (Rewarded(np.array(["1"] * 17), np.zeros(18)), "the reward gives rewards that are no numbers"),
        (Rewarded([[1.0], [2.0, 3.0]], np.zeros(18)), "the reward gives rewards that are no numbers"),
    ],
)
def test_a_reward_of_another_form_ends_the_run_in_one_line(run, make_race, rewarded, message):
    run.context.reward = lambda *_: rewarded
    with pytest.raises(UserError, match=message) as caught:
        run.train_on([make_race(17, True)])
    assert "\n" not in str(caught.value)


def test_refused_races_in_a_row_end_the_run(run, make_race, caplog):
    broken = make_race(17, True)
    BROKEN["state_float"](broken.columns)
    most = learner.MOST_REFUSED_IN_A_ROW
    run.train_on([broken] * (most - 1) + [make_race(21, False)] + [broken] * (most - 1))
    with pytest.raises(UserError, match=rf"^{most} races in a row are refused, the last one on valley since its state"):
        run.train_on([broken])
    assert caplog.text.count("is refused, since its state_float holds") == 2, "the first and the tenth"
    assert UserError.exit_code == ExitCode.NEEDS_A_PERSON
    assert run.context.statistics.races_total == 1


def test_a_driver_that_is_not_finite_is_not_kept_beside_a_record(run, make_race, caplog):
    spoil(run, "online", "A_head.2.weight")
    published = copy.deepcopy(run.agent.evaluation_network)
    published.A_head[2].weight.data[:] = NAN
    run.run_state.publish(weights={"evaluation": published})
    digest = hex_digest(packed(published))
    run.put(make_race(17, True, is_explo=False, weights_digest=digest))
    with contextlib.suppress(NumbersNotFiniteError):  # the training ends as well, sooner or later
        run.train()
    assert "is not kept: its weights A_head.2.weight are not finite numbers" in caplog.text
    assert not list(run.context.folder.best_runs.rglob("*.driver"))


def test_worker_race_that_raises_is_refused_and_counted(make_run, make_race, caplog):
    class Faulty(Hook):
        def on_race(self, race):
            raise OverflowError("int too large")

    run = make_run(hooks=[Faulty()])
    race = make_race(37, True)
    race.facts = race.facts.with_changes(sequence=1)
    run.train_on([race])
    assert run.context.statistics.races_refused == 1
    assert "is refused, since it raises OverflowError: int too large" in caplog.text
    with pytest.raises(OverflowError):
        run.train_on([make_race(37, True)])


def test_training_continues_without_free_files(run, caplog, monkeypatch):
    class Saving(Hook):
        def tick(self):
            raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(learner, "POLL_S", 0.0)
    tick = learner.make_tick(run.context, [Saving()])
    tick()
    tick()
    assert caplog.text.count("too many open files") == 1
