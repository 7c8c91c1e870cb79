"""When pictures of a run are drawn, of what, and who is told; the drawing itself is in tests/telemetry."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from trackmania_rl.agents.flat_parameters import flatten_parameters
from trackmania_rl.settings.live import LiveSettings
from trackmania_rl.telemetry.mind.index import INDEX, Entry, add_to_index, read_index
from trackmania_rl.telemetry.mind.numbers import load_numbers
from trackmania_rl.training.hooks import figures, pictures
from trackmania_rl.training.hooks.checkpoints import SaveCheckpoints
from trackmania_rl.training.hooks.pictures import DrawPictures

from .conftest import LocalRun, MakeRace, MakeRun, edit


class KeepingLogger:
    """Keeps the names of pictures."""

    def __init__(self) -> None:
        self.told: list[tuple[str, tuple[int, ...], int]] = []

    def log_picture(self, name: str, picture: np.ndarray, step: int) -> None:
        self.told.append((name, picture.shape, step))

    def __getattr__(self, _: str) -> Any:
        return lambda *_: None


class Drawn:
    """A drawing process that has ended; it left one picture of the numbers that it was given."""

    def __init__(self, returncode: int = 0) -> None:
        self.returncode = returncode
        self.files: list[Path] = []

    def __call__(self, module: str, numbers: str, folder: str, *, gives_way: bool) -> "Drawn":
        assert module == "trackmania_rl.telemetry.mind"
        assert gives_way
        self.files.append(Path(numbers))
        about = load_numbers(Path(numbers)).about
        file = f"{about.frames_total:012d}_{about.map_name}_a.png"
        Image.new("RGB", (7, 5)).save(Path(folder) / file)
        entry = Entry(file, "a", about.map_name, "", "", about.frames_total, 1.0, "")
        add_to_index(Path(folder), [entry])
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
def drawn(monkeypatch: pytest.MonkeyPatch) -> Drawn:
    drawn = Drawn()
    monkeypatch.setattr(pictures, "start_in_background", drawn)
    return drawn


def make_due(run: LocalRun) -> None:
    """Let the next set be due; by the clock, none is in a test."""
    run.hook(DrawPictures)._is_due = True


def take_up(run: LocalRun) -> None:
    """Let the hook look after what was drawn."""
    run.hook(DrawPictures).tick()


def test_a_set_is_of_an_evaluated_race_and_handed_on(
    live: LiveSettings, make_run: MakeRun, make_race: MakeRace, logger: KeepingLogger, drawn: Drawn
) -> None:
    run = make_run()
    run.train_on([make_race(30, True), make_race(60, True)])
    make_due(run)
    run.train_on([make_race(31, True, is_explo=False)])  # an explored race of the map is to come first
    assert not drawn.files
    run.train_on([make_race(32, False), make_race(33, False, is_explo=False, is_demonstration=True)])
    assert not drawn.files
    run.train_on([make_race(34, True, is_explo=False)])
    take_up(run)
    assert [name for name, *_ in logger.told if name.startswith("rollout/mind/")] == ["rollout/mind/a/valley"]
    assert [shape for name, shape, _ in logger.told if name.startswith("rollout/mind/")] == [(5, 7, 3)]
    numbers = load_numbers(drawn.files[0])
    assert numbers.about.frames_total == 30 + 60 + 31 + 32 + 33 + 34
    assert numbers.race is not None
    assert (numbers.race.kind, len(numbers.race.meters)) == ("evaluated", 34)
    assert numbers.best is not None  # the first finish was the fastest
    assert (numbers.best.kind, len(numbers.best.meters)) == ("explored", 30)
    assert numbers.comparison is not None
    assert len(np.unique(numbers.comparison.race)) == 2


def test_a_set_is_due_once_there_was_something_to_learn(
    live: LiveSettings, make_run: MakeRun, make_race: MakeRace, logger: KeepingLogger
) -> None:
    edit(live, pictures_interval_s=1e-6)
    run = make_run()
    hook = run.hook(DrawPictures)
    hook.tick()
    assert not hook._is_due
    run.train_on([make_race(60, True)])
    assert run.agent.updates > 0
    hook.tick()
    assert hook._is_due


def test_a_new_best_race_is_beside_the_one_before(
    live: LiveSettings, make_run: MakeRun, make_race: MakeRace, logger: KeepingLogger, drawn: Drawn
) -> None:
    run = make_run()
    run.train_on([make_race(50, True), make_race(40, True)])
    make_due(run)
    run.train_on([make_race(45, True), make_race(35, True, is_explo=False)])
    best = load_numbers(drawn.files[0]).best
    assert best is not None
    assert len(best.meters) == 40


def test_maps_take_turns(
    live: LiveSettings, make_run: MakeRun, make_race: MakeRace, logger: KeepingLogger, drawn: Drawn
) -> None:
    entry = live.current.game.map_cycle[0]
    cycle = [entry.model_copy(update={"map_name": name, "is_explo": False}) for name in ("valley", "kart")]
    edit(live, map_cycle=tuple(cycle))
    run = make_run()
    run.train_on([make_race(60, True)])
    for name in ("valley", "valley", "kart", "kart", "valley"):
        make_due(run)
        run.train_on([make_race(20, True, is_explo=False, map_name=name)])
        take_up(run)
    maps = [entry.map for entry in read_index(run.context.folder.pictures)]
    assert maps == ["valley", "kart", "kart", "valley"]  # the newest first; the second race had to wait for the other


def test_zero_draws_nothing(
    live: LiveSettings, make_run: MakeRun, make_race: MakeRace, logger: KeepingLogger, drawn: Drawn
) -> None:
    edit(live, pictures_interval_s=0.0)
    run = make_run()
    run.train_on([make_race(60, True), make_race(60, True)])
    make_due(run)
    run.train_on([make_race(20, True, is_explo=False)])
    assert not drawn.files
    assert not run.context.folder.pictures.exists()


def test_a_drawing_that_fails_is_told_in_one_line(
    live: LiveSettings,
    make_run: MakeRun,
    make_race: MakeRace,
    logger: KeepingLogger,
    drawn: Drawn,
    caplog: pytest.LogCaptureFixture,
) -> None:
    drawn.returncode = 1
    run = make_run()
    run.train_on([make_race(60, True), make_race(50, True)])
    make_due(run)
    run.train_on([make_race(32, False), make_race(20, True, is_explo=False)])
    run.hook(DrawPictures).end()
    assert f"the pictures in {run.context.folder.pictures} could not be drawn: error: no paper" in caplog.text
    assert not [name for name, *_ in logger.told if name.startswith("rollout/mind/")]


def test_a_run_learns_the_same_with_pictures_and_without(
    live: LiveSettings, make_run: MakeRun, make_race: MakeRace, logger: KeepingLogger, drawn: Drawn
) -> None:
    races = [make_race(40, True, is_explo=bool(number % 2)) for number in range(8)]
    learned = []
    for name, every_s in (("with", 1e6), ("without", 0.0)):
        edit(live, pictures_interval_s=every_s)
        run = make_run(name=name)
        for race in races:
            make_due(run)
            run.train_on([race])
        learned.append(flatten_parameters(run.agent.exploration_network).clone())
    assert drawn.files
    assert torch.equal(*learned)


def test_the_best_race_is_in_checkpoints(
    live: LiveSettings, make_run: MakeRun, make_race: MakeRace, logger: KeepingLogger
) -> None:
    run = make_run()
    run.train_on([make_race(40, True), make_race(30, True), make_race(35, True)])
    assert run.hook(SaveCheckpoints).try_to_save()
    best = make_run().hook(DrawPictures)._best["valley"]
    assert (best.kind, best.is_finished, len(best.position_m)) == ("explored", True, 30)
    np.testing.assert_array_equal(best.position_m, run.hook(DrawPictures)._best["valley"].position_m)


def test_the_index_keeps_the_newest_sets_and_nothing_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[add_to_index.__module__], "MOST_SETS", 2)
    for name in ("mine.png", "000000000000_valley_left_behind.png"):
        (tmp_path / name).touch()
    for frames in (1, 2, 3):
        entry = Entry(f"{frames:012d}_valley_a.png", "a", "valley", "", "", frames, 1.0, "")
        (tmp_path / entry.file).touch()
        add_to_index(tmp_path, [entry])
    assert [entry.frames for entry in read_index(tmp_path)] == [3, 2]
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "000000000002_valley_a.png",
        "000000000003_valley_a.png",
        INDEX,
        "mine.png",
    ]
    (tmp_path / INDEX).write_text((tmp_path / INDEX).read_text().replace("000000000002", "../2"))
    assert [entry.frames for entry in read_index(tmp_path)] == [3]
    (tmp_path / INDEX).write_text("{")
    assert read_index(tmp_path) == []
