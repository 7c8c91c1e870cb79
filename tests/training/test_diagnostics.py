"""Diagnostics of a run: their numbers against a computation by hand, and when a set is drawn, of which races."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from trackmania_rl.agents.flat_parameters import flatten_parameters
from trackmania_rl.agents.iqn import Taus, Transitions
from trackmania_rl.checkpoints import RunFolder
from trackmania_rl.experience_replay.mini_race import MiniRaceRules
from trackmania_rl.race.observation import ObservationLayout
from trackmania_rl.race.policy import ELAPSED_ACTIONS_FLOAT
from trackmania_rl.race.rewards import RewardedRace
from trackmania_rl.settings.live import LiveSettings
from trackmania_rl.telemetry.mind.index import Entry, add_to_index, read_index
from trackmania_rl.telemetry.mind.numbers import MindNumbers, load_numbers
from trackmania_rl.training import mind_numbers
from trackmania_rl.training.hooks import figures, pictures
from trackmania_rl.training.hooks.checkpoints import SaveCheckpoints
from trackmania_rl.training.hooks.pictures import DrawPictures
from trackmania_rl.training.mind_numbers import N_STATES, Mind, RecentRace, gather_numbers, realised_returns

from .conftest import LocalRun, MakeRace, MakeRun, edit, live_in, race_maker

RNG = np.random.default_rng(3)


class Gathered:
    """A trained run, races of it, and the numbers gathered of them."""

    run: LocalRun
    mind: Mind
    evaluated: RecentRace
    cut_off: RecentRace
    numbers: MindNumbers


@pytest.fixture(scope="module")
def gathered(tmp_path_factory: pytest.TempPathFactory, repository_root: Path) -> Gathered:
    folder, found = tmp_path_factory.mktemp("trained"), Gathered()
    live = live_in(folder, repository_root)
    layout = ObservationLayout.from_settings(live.current.observation)
    make_race = race_maker(live, layout)
    run = found.run = LocalRun(live, layout, RunFolder.create(folder, "run"))
    run.train_on(make_race(60, True) for _ in range(4))
    run.close_files()

    def recent(n_actions: int, race_finished: bool, **stats: Any) -> RecentRace:
        race = make_race(n_actions, race_finished, **stats)
        return RecentRace(race.rollout_results, race.end_race_stats)

    found.evaluated = recent(40, True, is_explo=False)
    found.cut_off, of_another_map = recent(45, False), recent(30, False, map_name="kart")
    context = run.context
    found.mind = Mind(run.agent, context.settings, context.spaces, context.reward, run.buffer.rules, 4321, 65.0)
    before, generator = flatten_parameters(run.agent.exploration_network).clone(), run.buffer.generator.get_state()
    recent_races = [of_another_map, found.evaluated]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mind_numbers, "N_SAMPLED_WITH_IMAGE", 1000)  # all
        found.numbers = gather_numbers(found.mind, found.evaluated, recent_races, found.cut_off, None, context.memory)
    assert torch.equal(flatten_parameters(run.agent.exploration_network), before)
    assert torch.equal(run.buffer.generator.get_state(), generator), "a training draws the same random numbers after it"
    return found


def counted_by_hand(rewarded: RewardedRace, gamma: float, duration: int | None, is_terminal: bool, at: int) -> float:
    """The return of the mini-race that begins at one action."""
    total, ends_at = 0.0, len(rewarded.rewards)
    for ahead in range(ends_at if duration is None else duration):
        if at + ahead == ends_at:
            if not is_terminal:
                return float("nan")
            break
        total += gamma**ahead * float(rewarded.rewards[at + ahead])
    if duration is None and not is_terminal:
        return float("nan")
    return total - float(rewarded.potentials[at])


@pytest.mark.parametrize("duration", [None, 1, 5, 40])
@pytest.mark.parametrize("is_terminal", [False, True])
def test_realised_returns_are_the_rewards_of_each_mini_race(duration: int | None, is_terminal: bool) -> None:
    rewarded = RewardedRace(*(RNG.standard_normal(n).astype(np.float32) for n in (17, 18)))
    realised = realised_returns(rewarded, MiniRaceRules(0.9, duration), is_terminal=is_terminal)
    expected = [counted_by_hand(rewarded, 0.9, duration, is_terminal, at) for at in range(17)]
    np.testing.assert_allclose(realised, expected, rtol=1e-6, atol=1e-6)


def test_errors_are_those_of_the_loss_and_cost_no_random_number(make_run: MakeRun, make_race: MakeRace) -> None:
    run = make_run()
    run.train_on([make_race(60, True)])
    agent, loss = run.agent, run.agent.loss_module
    batch = run.buffer.sample()
    before, generator = copy.deepcopy(agent.state_dict()), loss.generator.get_state()
    errors = agent.errors_of(batch.clone())
    assert errors is not None
    assert errors.predicted is not None
    assert errors.target is not None
    assert torch.equal(loss.generator.get_state(), generator)
    tau = ((torch.arange(loss.settings.iqn_n) + 0.5) / loss.settings.iqn_n).unsqueeze(0)
    settings = loss.settings
    loss.settings = settings.model_copy(update={"use_target_self_loss_scaling": False})
    loss.eval()
    batch["weight"] = torch.ones(len(batch))
    with torch.no_grad():
        total, td_error, mean_q = loss.compute_losses(
            Transitions.from_batch(batch, loss.device), Taus(tau, tau if settings.use_ddqn else None, tau)
        )
    torch.testing.assert_close(errors.loss.sum(), total)
    torch.testing.assert_close((errors.target - errors.predicted).abs(), td_error)
    torch.testing.assert_close(errors.predicted.mean(), mean_q)
    for name in ("online", "target", "averaged"):
        for weight, weight_before in zip(agent.state_dict()[name].values(), before[name].values(), strict=True):
            assert torch.equal(weight, weight_before)


def test_expectations_are_what_the_network_says_of_the_states(gathered: Gathered) -> None:
    seen, race, states = gathered.numbers.expectations, gathered.evaluated, [5, 15, 25, 35]
    assert seen is not None
    np.testing.assert_allclose(seen.time_s, np.array(states) * 0.05)
    np.testing.assert_allclose(seen.meters, race.columns["meters_advanced_along_centerline"][states])
    frames = torch.from_numpy(race.columns["frames"][states])
    floats = torch.from_numpy(race.columns["state_float"][states]).clone()
    network, taus = gathered.run.agent.evaluation_network, torch.from_numpy(seen.taus).float().unsqueeze(0)
    with torch.no_grad():
        returns = network(frames, floats, taus)
        np.testing.assert_allclose(seen.returns, returns.numpy(), rtol=1e-4, atol=1e-5)
        floats[:, ELAPSED_ACTIONS_FLOAT] = float(seen.elapsed_actions[7])
        values = network(frames, floats, taus).mean(dim=1)
    np.testing.assert_allclose(seen.values[:, 7], values.numpy(), rtol=1e-4, atol=1e-5)
    assert seen.returns.shape[0] == N_STATES
    assert seen.elapsed_actions[[0, -1]].tolist() == [0, gathered.run.buffer.rules.duration_actions - 1]


def test_predicted_is_q_of_the_action_taken(gathered: Gathered) -> None:
    compared, finished, mind = gathered.numbers.comparison, gathered.evaluated, gathered.mind
    assert compared is not None
    assert (compared.race == 1).all(), "of the race that was cut off the mini-races' ends are not known"
    assert len(compared.race) == 40
    for at in (0, 17, 39):
        action = finished.columns["actions"][at]
        assert compared.predicted[at] == pytest.approx(finished.columns["q_values"][at, action])
    by_hand = counted_by_hand(mind.rewarded(finished), mind.rules.gamma, mind.rules.duration_actions, True, 3)
    assert compared.realised[3] == pytest.approx(by_hand, rel=1e-5)


def test_surprises_are_the_transitions_with_the_largest_errors(gathered: Gathered) -> None:
    worst = gathered.numbers.surprises
    assert worst is not None
    np.testing.assert_allclose(worst.error, worst.target - worst.predicted, rtol=1e-5)
    assert (np.diff(np.abs(worst.error)) <= 0).all()
    race = gathered.evaluated if worst.kind[0] == "evaluated" else gathered.cut_off
    at, n_taus = round(worst.time_s[0] / 0.05), gathered.run.agent.loss_module.settings.iqn_n
    floats = torch.from_numpy(race.columns["state_float"][[at]])
    taus = ((torch.arange(n_taus) + 0.5) / n_taus)[None]
    with torch.no_grad():
        returns = gathered.run.agent.exploration_network(torch.from_numpy(race.columns["frames"][[at]]), floats, taus)
    action = race.columns["actions"][at]
    assert worst.predicted[0] == pytest.approx(float(returns[0, :, action].mean()), rel=1e-4)
    np.testing.assert_array_equal(worst.frames[0], race.columns["frames"][at, 0])
    np.testing.assert_array_equal(worst.position_m[0], race.columns["position_m"][at])
    assert worst.action[0] == gathered.numbers.about.action_names[action]
    assert np.isnan(worst.realised[worst.kind == "explored"]).all()  # shorter than a mini-race, and cut off
    errors = gathered.numbers.errors
    assert errors is not None
    assert set(errors.actions_left.tolist()) == set(range(1, gathered.mind.rules.duration_actions + 1))


# ------------------------------------------------------------------------------------------------ when a set is drawn


class KeepingLogger:
    """Keeps the names of pictures."""

    def __init__(self) -> None:
        self.pictures: list[tuple[str, tuple[int, ...]]] = []

    def log_picture(self, name: str, picture: np.ndarray, _: int) -> None:
        if name.startswith("rollout/mind/"):
            self.pictures.append((name, picture.shape))

    def __getattr__(self, _: str) -> Any:
        return lambda *_: None


class Drawn:
    """A drawing process that has ended; it left one picture of the numbers that it was given."""

    def __init__(self, returncode: int = 0) -> None:
        self.returncode = returncode
        self.numbers: list[MindNumbers] = []

    def __call__(self, module: str, numbers: str, folder: str, *, gives_way: bool) -> "Drawn":
        assert (module, gives_way) == ("trackmania_rl.telemetry.mind", True)
        self.numbers.append(load_numbers(Path(numbers)))
        about = self.numbers[-1].about
        file = f"{about.frames_total:012d}_{about.map_name}_a.png"
        Image.new("RGB", (7, 5)).save(Path(folder) / file)
        add_to_index(Path(folder), [Entry(file, "a", about.map_name, "", "", about.frames_total, 1.0, "")])
        return self

    def poll(self) -> int:
        return self.returncode

    def wait(self, _: float) -> int:
        return self.returncode

    def communicate(self) -> tuple[str, str]:
        return "", "first line\nerror: no paper"


@pytest.fixture
def logger(monkeypatch: pytest.MonkeyPatch) -> KeepingLogger:
    logger = KeepingLogger()
    monkeypatch.setattr(figures, "open_loggers", lambda *_: [logger])
    return logger


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch, logger: KeepingLogger) -> Drawn:
    drawn = Drawn()
    monkeypatch.setattr(pictures, "start_in_background", drawn)
    return drawn


def make_due(run: LocalRun) -> None:
    """Make the next set due, which the clock does not within a test."""
    run.hook(DrawPictures)._is_due = True


def test_a_set_is_of_an_evaluated_race_beside_the_best_one_which_is_resumed(
    make_run: MakeRun, make_race: MakeRace, logger: KeepingLogger, drawn: Drawn
) -> None:
    run = make_run()
    run.train_on([make_race(30, True), make_race(60, True)])
    make_due(run)
    run.train_on([make_race(31, True, is_explo=False)])  # an explored race of the map is to come first
    run.train_on([make_race(32, False), make_race(33, False, is_explo=False, is_demonstration=True)])
    assert not drawn.numbers
    run.train_on([make_race(34, True, is_explo=False)])
    run.hook(DrawPictures).tick()
    assert logger.pictures == [("rollout/mind/a/valley", (5, 7, 3))]
    [numbers] = drawn.numbers
    assert numbers.about.frames_total == 30 + 60 + 31 + 32 + 33 + 34
    assert numbers.race is not None
    assert (numbers.race.kind, len(numbers.race.meters)) == ("evaluated", 34)
    assert numbers.best is not None
    assert (numbers.best.kind, len(numbers.best.meters)) == ("explored", 30), "the first finish was the fastest"
    assert run.hook(SaveCheckpoints).try_to_save()
    best = [one.hook(DrawPictures)._best["valley"] for one in (run, make_run())]
    np.testing.assert_array_equal(best[0].position_m, best[1].position_m)


def test_maps_take_turns_and_zero_draws_nothing(
    live: LiveSettings, make_run: MakeRun, make_race: MakeRace, drawn: Drawn
) -> None:
    entry = live.current.game.map_cycle[0]
    cycle = [entry.model_copy(update={"map_name": name, "is_explo": False}) for name in ("valley", "kart")]
    edit(live, map_cycle=tuple(cycle))
    run = make_run()
    run.train_on([make_race(60, True)])
    for name in ("valley", "valley", "kart", "kart", "valley"):
        make_due(run)
        run.train_on([make_race(20, True, is_explo=False, map_name=name)])
        run.hook(DrawPictures).tick()
    maps = [entry.map for entry in read_index(run.context.folder.pictures)]
    assert maps == ["valley", "kart", "kart", "valley"], "newest first; the second race had to wait for the other map"
    edit(live, pictures_interval_s=0.0)
    make_due(run)
    run.train_on([make_race(20, True, is_explo=False, map_name="kart")])
    assert len(drawn.numbers) == 4


def test_a_drawing_that_fails_is_told_in_one_line(
    make_run: MakeRun, make_race: MakeRace, logger: KeepingLogger, drawn: Drawn, caplog: pytest.LogCaptureFixture
) -> None:
    drawn.returncode = 1
    run = make_run()
    run.train_on([make_race(60, True)])
    make_due(run)
    run.train_on([make_race(20, True, is_explo=False)])
    run.hook(DrawPictures).end()
    assert f"the pictures in {run.context.folder.pictures} could not be drawn: error: no paper" in caplog.text
    assert not logger.pictures
