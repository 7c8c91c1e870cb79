"""Pictures of the mind: the numbers in them, the file of these, and that each kind is drawn from tiny ones."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from trackmania_rl.errors import UserError
from trackmania_rl.telemetry.driven_run import controls_over_time
from trackmania_rl.telemetry.mind import style
from trackmania_rl.telemetry.mind.album import KINDS, draw_set
from trackmania_rl.telemetry.mind.error_pictures import means_by_bin, quantiles_by_bin
from trackmania_rl.telemetry.mind.expectation_pictures import density
from trackmania_rl.telemetry.mind.index import read_index
from trackmania_rl.telemetry.mind.numbers import (
    About,
    Comparison,
    DrivenRace,
    ErrorsByHorizon,
    Expectations,
    MindNumbers,
    Surprises,
    key_action_name,
    load_numbers,
    save_numbers,
    speeds_m_s,
)
from trackmania_rl.telemetry.mind.race_pictures import events_of_controls, with_line
from trackmania_rl.telemetry.mind.style import action_styles

RNG = np.random.default_rng(8)
KEYS = np.array([[1, 0, 0], [1, 0, -1], [0, 0, 0], [0, 1, 1]], dtype=np.float64)


def driven(n_actions: int, kind: str = "evaluated") -> DrivenRace:
    way_m = np.linspace(0, 90, n_actions)
    position_m = np.stack([np.sin(way_m / 20), 0 * way_m, way_m], axis=1)
    controls = KEYS[RNG.integers(0, 4, n_actions)]
    return DrivenRace(kind, True, n_actions * 50 - 20, np.array([n_actions * 50 - 20]), position_m, way_m, controls)


def tiny_numbers() -> MindNumbers:
    """All sections, with 4 actions, 3 states and 8 taus."""
    race = driven(40)
    names = np.array([key_action_name(*row) for row in KEYS.tolist()])
    n = 60
    return MindNumbers(
        about=About("valley", "valley", 12345, 61.5, 50, 100, names, KEYS, race.position_m),
        expectations=Expectations(
            time_s=np.array([0.5, 1.0, 1.5]),
            meters=race.meters[[10, 20, 30]],
            position_m=race.position_m[[10, 20, 30]],
            speed_km_h=np.array([100.0, 120.0, 140.0]),
            taus=(np.arange(8) + 0.5) / 8,
            returns=RNG.standard_normal((3, 8, 4)),
            elapsed_actions=np.arange(0.0, 100.0, 9.0),
            values=RNG.standard_normal((3, 12, 4)),
        ),
        comparison=Comparison(
            np.repeat([0, 1], 30), np.ones(n, dtype=bool), RNG.uniform(0, 90, n), RNG.normal(size=n), RNG.normal(size=n)
        ),
        errors=ErrorsByHorizon(RNG.random(n) < 0.5, RNG.integers(1, 101, n), RNG.random(n), RNG.normal(size=n)),
        surprises=Surprises(
            kind=np.array(["explored", "evaluated"]),
            time_s=np.array([0.5, 1.0]),
            meters=np.array([20.0, np.nan]),
            position_m=np.array([[0.0, 0, 20], [np.nan] * 3]),
            direction=np.array([[0.0, 1], [np.nan] * 2]),
            speed_km_h=np.array([100.0, np.nan]),
            action=np.array(["gas", "brake right"]),
            n_steps=np.array([3, 1]),
            reward=np.array([-0.1, 0.2]),
            error=np.array([1.5, 0.7]),
            predicted=np.array([-1.0, np.nan]),
            target=np.array([0.5, np.nan]),
            realised=np.array([np.nan, 0.2]),
            frames=RNG.integers(0, 256, (2, 9, 11)).astype(np.uint8),
        ),
        race=race,
        best=driven(36, "explored"),
    )


def test_numbers_come_back_as_they_were_saved(tmp_path: Path) -> None:
    numbers = dataclasses.replace(tiny_numbers(), errors=None)
    save_numbers(tmp_path / "numbers.npz", numbers)
    loaded = load_numbers(tmp_path / "numbers.npz")
    assert loaded.errors is None
    assert (loaded.about.map_name, loaded.about.frames_total, loaded.about.training_s) == ("valley", 12345, 61.5)
    assert loaded.race is not None
    assert loaded.race.is_finished is True
    for section in ("expectations", "comparison", "surprises", "best"):
        for field in dataclasses.fields(getattr(numbers, section)):
            before, after = (getattr(getattr(each, section), field.name) for each in (numbers, loaded))
            np.testing.assert_array_equal(after, before)


@pytest.mark.parametrize("content", [None, b"", b"PK\x03\x04 nonsense"])
def test_a_file_without_numbers_is_told_in_one_line(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "numbers.npz"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(UserError, match="holds no numbers of a run's pictures") as told:
        load_numbers(file)
    assert "\n" not in str(told.value)


def test_every_kind_is_drawn_and_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(style, "DOTS_PER_INCH", 40)  # which is soon done
    files = draw_set(tiny_numbers(), tmp_path / "pictures")
    assert [file.name for file in files] == [f"000000012345_valley_{kind.name}.png" for kind in KINDS]
    for file in files:
        with Image.open(file) as picture:
            assert min(picture.size) > 100
    listed = read_index(tmp_path / "pictures")
    assert [(entry.file, entry.title) for entry in listed] == [
        (file.name, kind.title) for file, kind in zip(files, KINDS, strict=True)
    ]
    assert all(entry.map == "valley" and entry.frames == 12345 and entry.caption for entry in listed)


def test_what_there_is_nothing_of_is_left_out(tmp_path: Path) -> None:
    about = dataclasses.replace(tiny_numbers().about, action_controls=np.zeros((0, 3)), line_m=np.zeros((0, 3)))
    assert draw_set(MindNumbers(about), tmp_path / "pictures") == []
    assert [kind.draw(MindNumbers(about)) for kind in KINDS] == [None] * len(KINDS)


def test_an_agent_without_quantiles_gets_its_values(tmp_path: Path) -> None:
    numbers = tiny_numbers()
    assert numbers.expectations is not None
    means = dataclasses.replace(numbers.expectations, taus=np.zeros(0), returns=np.zeros((3, 1, 4)))
    only = MindNumbers(numbers.about, expectations=means)
    assert [kind.name for kind in KINDS if kind.draw(only) is not None] == ["values_over_elapsed_time"]


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot be written"):
        draw_set(tiny_numbers(), tmp_path / "file" / "pictures")


def test_a_generated_track_has_its_line() -> None:
    numbers = tiny_numbers()
    about = dataclasses.replace(numbers.about, track="generated_0.300_5", line_m=np.zeros((0, 3)))
    line_m = with_line(MindNumbers(about)).about.line_m
    assert line_m.shape[1] == 3
    assert len(line_m) > 100


def test_density_is_a_sum_of_bells() -> None:
    samples, points = RNG.normal(size=40), np.linspace(-4, 4, 33)
    quarter, three_quarters = np.percentile(samples, [25, 75])
    width = 0.9 * min(samples.std(), (three_quarters - quarter) / 1.34) * 40**-0.2
    expected = [sum(np.exp(-0.5 * ((point - sample) / width) ** 2) for sample in samples) for point in points]
    np.testing.assert_allclose(density(samples, points), np.array(expected) / max(expected))
    assert density(np.zeros(5), points).max() == 1  # without any spread


def test_bins_are_those_counted_by_hand() -> None:
    at, values, edges = RNG.uniform(-1, 11, 50), RNG.normal(size=50), np.array([0.0, 2, 5, 5.001, 10])
    for index in range(4):
        inside = values[(at >= edges[index]) & (at < edges[index + 1])]
        mean, quantiles = means_by_bin(at, values, edges)[index], quantiles_by_bin(at, values, edges, (0.1, 0.5))[index]
        if len(inside) == 0:
            assert np.isnan([mean, *quantiles]).all()
        else:
            np.testing.assert_allclose([mean, *quantiles], [inside.mean(), *np.quantile(inside, [0.1, 0.5])])


def test_events_bring_back_the_controls() -> None:
    controls = KEYS[RNG.integers(0, 4, 30)]
    changed_ms, values = controls_over_time(events_of_controls(controls, 50))
    times_ms = np.arange(30) * 50
    np.testing.assert_array_equal(values[np.searchsorted(changed_ms, times_ms, side="right") - 1], controls)


def test_speeds_are_those_between_neighbours() -> None:
    position_m = np.array([[0.0, 0, 0], [1, 0, 0], [3, 0, 0], [3, 0, 4]])
    expected = [1 / 0.5, 3 / 1.0, np.hypot(2, 4) / 1.0, 4 / 0.5]
    np.testing.assert_allclose(speeds_m_s(position_m, 0.5), expected)
    assert speeds_m_s(position_m[:1], 0.5).tolist() == [0]


def test_actions_are_told_apart() -> None:
    names = [key_action_name(*row) for row in KEYS.tolist()]
    assert names == ["gas", "gas left", "no pedal", "brake right"]
    for controls in (KEYS, np.zeros((0, 3))):
        styles = action_styles(names, controls)
        assert len({(style.colour, style.dash) for style in styles}) == len(names)
