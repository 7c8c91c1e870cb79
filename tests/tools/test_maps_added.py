"""Entries that `maps.py add` writes into a configuration's map cycle; nothing else changes."""

import pytest

from trackmania_rl.errors import UserError
from trackmania_rl.settings import load_settings
from trackmania_rl.track.named_maps import add_to_map_cycle

ENTRY = {
    "map_name": "mine",
    "map_path": 'a "quoted" \\ folder/mine.npy',
    "reference_line": "mine_0.5m.npy",
    "is_explo": True,
    "fill_buffer": True,
    "repeat": 3,
}
GREEDY = {**ENTRY, "is_explo": False, "repeat": 1}


@pytest.mark.parametrize(
    ("name", "line_break", "beginning"),
    [
        ("config.py", "\r\n", "\ufeff"),
        ("config_tmnf.py", "\n", "\ufeff"),
        ("config_many_tracks.py", "\r\n", ""),
        ("config_sac.py", "\n", ""),
    ],
)
def test_entries_are_added_at_the_end_and_no_line_of_the_user_changes(config, name, line_break, beginning):
    config = config.with_name(name)
    before_text = (beginning + config.read_text().replace("\n", line_break)).encode()
    config.write_bytes(before_text)
    before = load_settings(config).game.map_cycle
    backup = add_to_map_cycle(config, [ENTRY, GREEDY])
    after = load_settings(config).game.map_cycle
    assert after[:-2] == before
    assert [entry.model_dump(exclude={"generator"}) for entry in after[-2:]] == [ENTRY, GREEDY]
    assert backup.read_bytes() == before_text
    text = config.read_bytes()
    assert text.startswith(before_text)
    assert text.count(b"\n") == text.count(line_break.encode())
    for number in range(3):
        add_to_map_cycle(config, [{**ENTRY, "map_name": f"more{number}"}])
    assert config.read_bytes().count(b"map_cycle = ") == before_text.count(b"map_cycle = ") + 1, "written once"


def test_a_name_is_added_once_and_every_backup_is_kept(config):
    texts, backups = [], []
    for name in ("a", "b", "c"):
        texts.append(config.read_text())
        backups.append(add_to_map_cycle(config, [{**ENTRY, "map_name": name}]))
    assert [backup.read_text() for backup in backups] == texts
    with pytest.raises(UserError, match="'a' already"):
        add_to_map_cycle(config, [{**GREEDY, "map_name": "a"}])
    add_to_map_cycle(config, [ENTRY, GREEDY], replace=True)
    assert [entry.map_name for entry in load_settings(config).game.map_cycle] == ["mine", "mine"]
