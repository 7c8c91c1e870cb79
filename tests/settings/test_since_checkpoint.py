"""What has changed since a checkpoint, and what of it would change what the network means."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trackmania_rl.errors import UserError
from trackmania_rl.settings import Settings, load_settings, settings_from_flat
from trackmania_rl.settings.since_checkpoint import (
    changes_since,
    in_force_text,
    require_accepted,
    require_known,
    settings_of_meaning,
    stored_settings,
)


@pytest.fixture
def settings(repository_root: Path) -> Settings:
    return load_settings(repository_root / "config_files" / "config.py")


def changed(settings: Settings, **values: Any) -> Settings:
    return settings_from_flat(settings.flat() | values)


def refused(settings: Settings, new: Settings, in_force: Settings | None = None, accepted: tuple[str, ...] = ()) -> Any:
    known = stored_settings(in_force) if in_force is not None else {}
    stored = json.loads(json.dumps(stored_settings(settings)))  # as a manifest has them
    return [change.name for change in changes_since(stored, new, known, accepted) if change.is_refused]


def test_nothing_has_changed(settings: Settings) -> None:
    assert changes_since(json.loads(in_force_text(settings)), settings, {}) == []


def test_a_checkpoint_tells_nobodys_paths_and_names(settings: Settings) -> None:
    private = {"username", "game_command", "trackmania_base_path", "tmloader_path", "tmloader_profile_name"}
    assert stored_settings(settings).keys() == settings.flat().keys() - private


def test_what_the_network_means_is_known() -> None:
    named = {"inputs", "engine_ticks_per_action", "state_normalization", "observation_blocks", "map_cycle", "reward"}
    named |= {"temporal_mini_race_duration_actions", "constant_reward_per_ms", "actions", "expected_reward_per_action"}
    assert named <= settings_of_meaning()
    others = {
        "batch_size",
        "lr_schedule",
        "float_hidden_dim",
        "n_collectors",
        "gamma_schedule",
        "checkpoint_interval_s",
    }
    assert not others & settings_of_meaning()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("constant_reward_per_ms", -0.5),
        ("engine_ticks_per_action", 7),
        ("temporal_mini_race_duration_actions", 99),
        ("real_checkpoint_radius_m", 11.0),
    ],
)
def test_what_changes_the_meaning_is_refused_unless_it_is_asked_for(
    settings: Settings, name: str, value: Any, tmp_path: Path
) -> None:
    new = changed(settings, **{name: value})
    assert refused(settings, new) == [name]
    assert refused(settings, new, accepted=(name,)) == []
    assert refused(settings, new, in_force=new) == []  # an edit that was applied while the run went on
    assert refused(settings, new, in_force=settings) == [name]
    old = settings.flat()[name]
    with pytest.raises(UserError) as caught:
        require_accepted(changes_since(stored_settings(settings), new, {}), tmp_path)
    text = f"{name} = {value} (was {old})"
    assert text in str(caught.value)
    assert str(caught.value).endswith(f"go on all the same: --accept-change {name}")
    assert str(tmp_path / "config") in str(caught.value)


def test_actions_in_another_order_are_refused(settings: Settings) -> None:
    game = settings.game
    assert refused(settings, changed(settings, inputs=game.inputs[::-1])) == ["inputs"]


def test_other_maps_are_refused_but_not_another_order_of_them(settings: Settings) -> None:
    (first, second) = settings.game.map_cycle
    other = first.model_copy(update={"map_name": "kart", "map_path": "kart.toml", "reference_line": "kart_0.5m.npy"})
    assert refused(settings, changed(settings, map_cycle=(first, second, other))) == ["map_cycle"]
    assert refused(settings, changed(settings, map_cycle=(other,))) == ["map_cycle"]
    more = first.model_copy(update={"repeat": 9, "map_name": "my valley"})
    assert refused(settings, changed(settings, map_cycle=(second, more))) == []


def test_other_changes_are_listed_and_new_settings_are_none(settings: Settings) -> None:
    stored = stored_settings(changed(settings, batch_size=77))
    del stored["n_collectors"]
    (change,) = changes_since(stored, changed(settings, n_collectors=3), {})
    assert str(change) == f"batch_size = {settings.replay.batch_size} (was 77)"
    assert not change.is_refused
    require_accepted([change], Path())


def test_long_values_are_shortened(settings: Settings) -> None:
    (change,) = changes_since(stored_settings(settings), changed(settings, inputs=settings.game.inputs[::-1]), {})
    assert len(str(change)) < 300


def test_names_that_are_no_settings_are_told() -> None:
    require_known(["inputs", "map_cycle"])
    with pytest.raises(UserError, match="--accept-change input: there is no such setting"):
        require_known(["inputs", "input"])


def test_arguments_of_parts_that_json_has_not_are_texts(settings: Settings, repository_root: Path) -> None:
    with_part = changed(settings, hooks=(complex,))
    assert json.loads(in_force_text(with_part))["hooks"]
