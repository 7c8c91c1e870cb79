"""What is searched is held against the typed settings before anything is trained."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from research.search.space import Space, read_space, scaled
from trackmania_rl.errors import UserError

ReadSpace = Callable[..., Space]


@pytest.fixture
def read(tmp_path: Path, repository_root: Path) -> ReadSpace:
    """`read(text, *overrides, clones=True)`: the space of a file with this text, around the default."""

    def read_text(text: str, *overrides: str, clones: bool = True) -> Space:
        file = tmp_path / "space.toml"
        file.write_text(text)
        return read_space(file, repository_root / "config_files" / "config.py", overrides, clones=clones)

    return read_text


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('"lr_shedule*" = {low = 0.5, high = 2}', "did you mean lr_schedule?"),
        ("bath_size = {low = 8, high = 16}", "did you mean batch_size?"),
        ("batch_size = {low = 0, high = 16}", "batch_size = 0: input should be greater than 0"),
        ("batch_size = {low = 8.5, high = 16.0}", "batch_size is a whole number"),
        ("batch_size = {low = 16, high = 8}", "low = 16 is not below high = 8"),
        ("soft_update_tau = {low = 0, high = 1, log = true}", "log = true is for numbers above 0"),
        ('"batch_size*" = {low = 0.5, high = 2}', "batch_size is no schedule: leave out the star"),
        ("lr_schedule = {low = 0.5, high = 2}", 'multiply it: "lr_schedule*"'),
        ('lr_schedule = {choices = [[[0, 1]], [[0, 2]]]}\n"lr_schedule*" = {low = 0.5, high = 2}', "is there twice"),
        ('"epsilon_schedule*" = {low = 0.5, high = 2}', "the values are probabilities"),
        ("use_ddqn = {low = 0, high = 1}", "use_ddqn = False is no number: name its choices"),
        ("seed = {low = 0, high = 9}", "seed is each trial's or each machine's own"),
        ('username = {choices = ["a", "b"]}', "username is each trial's or each machine's own"),
        ("float_hidden_dim = {low = 8, high = 16}", "shapes networks or memory, which with pbt are copied"),
        ("n_steps = {low = 1, high = 3}", "shapes networks or memory, which with pbt are copied"),
        ("batch_size = {choices = [8]}", "at least 2 items"),
        ("batch_size = 8", "write {low = 0.1, high = 10.0, log = true}"),
        ("batch_size = ", "space.toml"),
        ("", "names no setting"),
    ],
)
def test_what_cannot_be_searched_is_refused(read: ReadSpace, text: str, told: str) -> None:
    with pytest.raises(UserError) as error:
        read(text)
    assert told in str(error.value)
    assert "\n" not in str(error.value)


def test_without_clones_networks_may_differ(read: ReadSpace) -> None:
    space = read("float_hidden_dim = {low = 8, high = 16}\nn_steps = {choices = [1, 3]}", clones=False)
    assert space.settings_of({"float_hidden_dim": 9, "n_steps": 3}) == {"float_hidden_dim": 9, "n_steps": 3}


def test_two_settings_that_do_not_fit_together_are_refused(read: ReadSpace) -> None:
    text = (
        "oversample_long_term_steps = {low = 10, high = 60}\n"
        "temporal_mini_race_duration_actions = {low = 50, high = 140}\n"
    )
    with pytest.raises(UserError, match=r"oversample_long_term_steps = 60.*temporal_mini_race_duration_actions = 50"):
        read(text, clones=False)


def test_values_of_a_schedule_are_multiplied_and_its_frame_counts_stay() -> None:
    assert scaled(((0, 0.5), (70, 0.25)), 3.0) == ((0, 1.5), (70, 0.75))
    assert scaled(((0, 7), (30, 10)), 1.5) == ((0, 10), (30, 15))  # whole numbers stay whole


def test_a_stretched_schedule_is_not_stretched_twice(read: ReadSpace) -> None:
    space = read(
        '"lr_schedule*" = {low = 0.5, high = 2.0}', "schedule_stretch=2", "lr_schedule=((0, 1e-3), (50, 1e-4))"
    )
    assert space.settings_of({"lr_schedule*": 2.0})["lr_schedule"] == ((0, 2e-3), (50, 2e-4))


def test_what_left_its_range_is_put_back(read: ReadSpace) -> None:
    space = read(
        "batch_size = {low = 8, high = 16}\n"
        "soft_update_tau = {low = 0.01, high = 0.5}\n"
        "use_ddqn = {choices = [true, false]}"
    )
    held = space.within({"batch_size": 16.9, "soft_update_tau": 0.001, "use_ddqn": True})
    assert held == {"batch_size": 16, "soft_update_tau": 0.01, "use_ddqn": True}
    assert space.within({"batch_size": 9.4})["batch_size"] == 9


def test_the_spaces_that_ship_can_be_searched_by_pbt(repository_root: Path) -> None:
    files = sorted((repository_root / "research" / "search" / "spaces").glob("*.toml"))
    assert files
    for file in files:
        read_space(file, repository_root / "config_files" / "config.py", (), clones=True)
