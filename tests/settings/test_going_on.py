"""A run goes on: settings that it lacks are as they ship, and none may change what the network means."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from trackmania_rl.errors import UserError
from trackmania_rl.settings import Settings, load_settings, settings_from_flat
from trackmania_rl.settings.live import write_snapshot
from trackmania_rl.settings.of_run import AskedFor, RunConfiguration
from trackmania_rl.settings.since_checkpoint import (
    changes_since,
    in_force_text,
    require_accepted,
    require_known,
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


def test_a_checkpoint_tells_nobodys_paths_and_names(settings: Settings) -> None:
    private = {"username", "game_command", "trackmania_base_path", "tmloader_path", "tmloader_profile_name"}
    assert stored_settings(settings).keys() == settings.flat().keys() - private


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("constant_reward_per_ms", -0.5),
        ("engine_ticks_per_action", 7),
        ("temporal_mini_race_duration_actions", 99),
        ("real_checkpoint_radius_m", 11.0),
        ("expected_reward_per_action", -0.25),
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


def test_other_maps_and_actions_in_another_order_are_refused_but_not_maps_in_another_order(settings: Settings) -> None:
    (first, second) = settings.game.map_cycle
    other = first.model_copy(update={"map_name": "kart", "map_path": "kart.toml", "reference_line": "kart_0.5m.npy"})
    assert refused(settings, changed(settings, map_cycle=(first, second, other))) == ["map_cycle"]
    assert refused(settings, changed(settings, map_cycle=(other,))) == ["map_cycle"]
    more = first.model_copy(update={"repeat": 9, "map_name": "my valley"})
    assert refused(settings, changed(settings, map_cycle=(second, more))) == []
    assert refused(settings, changed(settings, inputs=settings.game.inputs[::-1])) == ["inputs"]


def test_other_changes_are_listed_and_new_settings_are_none(settings: Settings) -> None:
    stored = stored_settings(changed(settings, batch_size=77))
    del stored["n_collectors"]
    (change,) = changes_since(stored, changed(settings, n_collectors=3), {})
    assert str(change) == f"batch_size = {settings.replay.batch_size} (was 77)"
    assert not change.is_refused
    require_accepted([change], Path())
    in_force = json.loads(in_force_text(settings))
    assert changes_since(in_force, settings, {}) == []
    assert json.loads(in_force_text(changed(settings, hooks=(complex,))))["hooks"]
    require_known(["inputs", "map_cycle"])
    with pytest.raises(UserError, match="--accept-change input: there is no such setting"):
        require_known(["inputs", "input"])


def test_a_run_has_the_default_of_what_its_configuration_does_not_set(repository_root: Path, tmp_path: Path) -> None:
    config = repository_root / "config_files" / "config.py"
    file = write_snapshot(config, tmp_path / "config", ["seed=3"])
    file.write_text(re.sub(r"^(batch_size|hooks) = .*$", "", file.read_text(), flags=re.MULTILINE))
    own = RunConfiguration(AskedFor(config, ["temporal_mini_race_duration_actions=90"]), file.parent).write()
    assert (own.replay.batch_size, own.run.hooks, own.run.seed) == (64, (), 3)
    assert own.replay.temporal_mini_race_duration_actions == 90
