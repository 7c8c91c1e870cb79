"""What the page knows of a run: maps from above, records that are driven again, settings, messages."""

import os
from pathlib import Path

import numpy as np
import pytest

from tests.dashboard.conftest import RECORD_MS, make_run, race_line
from trackmania_rl.dashboard.log_messages import LogMessages
from trackmania_rl.dashboard.page import RunPage
from trackmania_rl.dashboard.race_sections import race_sections
from trackmania_rl.dashboard.run_on_disk import RunOnDisk, find_run
from trackmania_rl.errors import UserError
from trackmania_rl.settings.rows import comments_of
from trackmania_rl.simulator.tracks.track_generator import TrackRecipe
from trackmania_rl.telemetry.live import LiveRace


def test_a_map_is_seen_from_above_with_its_gates(page: RunPage) -> None:
    shape = page.shape("valley")
    points, gates = np.array(shape["points"]), np.array(shape["gates"])
    assert shape["length_m"] == pytest.approx(978.5)
    assert np.linalg.norm(np.diff(points[:, :2], axis=0), axis=1).max() < 2.1
    assert gates[:, 5] == pytest.approx([0.0, 241.8, 420.8, 654.1, 978.5], abs=0.1)
    assert np.linalg.norm(gates[:, 2:4], axis=1) == pytest.approx(1.0, abs=0.01)
    assert page.shape("valley") is shape, "it is made once"


def test_generated_tracks_are_seen_by_their_names(page: RunPage) -> None:
    assert page.shape(TrackRecipe(seed=3, difficulty=0.0).name)["length_m"] > 500


@pytest.mark.parametrize("name", ["nowhere", "../../etc/passwd"])
def test_a_map_that_is_not_there_is_told(page: RunPage, name: str) -> None:
    with pytest.raises(UserError, match="no such map"):
        page.shape(name)


def test_a_real_map_is_seen_along_its_line(tmp_path: Path, repository_root: Path) -> None:
    run = make_run(tmp_path, repository_root)
    config = run.config_file
    config.write_text(config.read_text() + 'game = "tmnf"\n')
    page = RunPage(run)
    shape = page.shape("valley")
    assert len(shape["gates"]) == 2, "start and finish: its file is not there"
    assert shape["length_m"] == pytest.approx(978.5, abs=1.0)
    with pytest.raises(UserError, match="in the real game"):
        page.record(f"valley_{RECORD_MS}")


def test_a_record_is_driven_again_with_its_values_and_pictures(page: RunPage) -> None:
    race = page.watched.columns(page.record(f"valley_{RECORD_MS}"))
    assert race is not None
    assert race["t"] == list(range(0, RECORD_MS + 50, 50))
    assert race["gas"] == [1] * 61
    steer = dict(zip(race["t"], race["steer"], strict=True))
    assert (steer[950], steer[1000], steer[1250], steer[1300]) == (0, 1, 1, 0)
    assert race["m"][-1] > 10
    assert np.shape(race["q"]) == (61, 12)
    picture = page.watched.picture(race["id"], 1000)
    assert picture is not None
    assert picture[:2] == b"\xff\xd8", "a JPEG"
    assert page.watched.picture("live-0-0-0-0", 1000) is None
    with pytest.raises(UserError, match="no such record"):
        page.record("../valley_1")


def test_a_snapshot_and_what_comes_after_it(page: RunPage, run: RunOnDisk) -> None:
    page.read()
    told = page.snapshot()
    assert told["run"]["maps"] == ["valley"]
    assert told["run"]["actions"][:3] == ["↑", "↑←", "↑→"]
    assert told["state"]["races"] == 20
    assert told["state"]["is_running"]
    assert [message["level"] for message in told["log"]["messages"]] == ["INFO", "WARNING"]
    assert told["log"]["messages"][1]["text"] == "collector 0 has died\nTraceback of it"
    assert told["files"]["best_runs"][0]["file"] == f"best_runs/valley_{RECORD_MS}/valley_{RECORD_MS}.inputs"
    with run.races.open("a") as file:
        file.write(race_line(21))
    told = page.read()
    assert sorted(told) == ["races", "state"]
    assert len(told["races"]["curves"]["valley/evaluated"]) == 1


def test_an_edit_is_seen_and_a_mistake_in_the_file_leaves_the_last_good_settings(page: RunPage) -> None:
    page.read()
    assert page.edit("adam_beta1", "0.8") == {"adam_beta1": "0.9 -> 0.8"}
    assert page.read()["run"]["settings_error"] == ""
    rows = {row["name"]: row for row in page.settings()["rows"]}
    assert rows["adam_beta1"]["text"] == "0.8"
    assert rows["adam_beta1"]["about"].startswith("RAdam's epsilon and betas.")
    assert rows["constant_reward_per_ms"]["text"] == "-0.0012", "what is no literal is shown as its value"
    assert rows["n_collectors"]["restart"]
    assert "game_command" not in rows
    page.run.config_file.write_text(page.run.config_file.read_text() + "adam_beta1 = 3\n")
    assert "adam_beta1 = 3" in page.read()["run"]["settings_error"]
    assert page.settings()["rows"]


def test_an_edited_map_cycle_is_driven_or_refused(page: RunPage) -> None:
    entry = {"map_name": "x", "map_path": "x.toml", "reference_line": "x.npy", "is_explo": True, "fill_buffer": True}
    before = page.run.config_file.read_bytes()
    with pytest.raises(UserError, match=r"x\.toml"):
        page.edit("map_cycle", f"({entry!r},)")
    assert page.run.config_file.read_bytes() == before


def test_only_what_is_listed_can_be_taken_away(page: RunPage, run: RunOnDisk) -> None:
    film = run.path / "evaluation" / "valley.mp4"
    film.parent.mkdir()
    film.write_bytes(b"film")
    assert page.files.listed()["films"] == [{"name": "valley.mp4", "file": "evaluation/valley.mp4", "mb": 0.0}]
    assert page.files.file("evaluation/valley.mp4") == film
    for name in ("races.jsonl", "config/config.py", "../tested/races.jsonl", "/etc/passwd", ""):
        assert page.files.file(name) is None


def test_messages_of_a_long_log_are_those_of_its_end(tmp_path: Path) -> None:
    file = tmp_path / "train.log"
    file.write_text("".join(f"2026-11-24 02:33:42 INFO message {k} {'x' * 200}\n" for k in range(3000)))
    messages = LogMessages(file)
    texts = [message["text"].split()[1] for message in messages.read()]
    assert texts[-1] == "2999"
    assert len(messages.snapshot()) == 300


def test_comments_above_settings_are_what_is_said_of_them() -> None:
    text = "# ===== first\n\n# Of both:\n# two lines.\na = 1\nb = 2\n\nc = 3\n# last\nd = 4\n"
    assert comments_of(text) == {"a": "Of both: two lines.", "b": "Of both: two lines.", "c": "", "d": "last"}


def test_the_newest_run_is_shown_or_the_one_that_is_named(tmp_path: Path, repository_root: Path) -> None:
    make_run(tmp_path, repository_root, "first")
    make_run(tmp_path, repository_root, "second")
    os.utime(tmp_path / "first" / "races.jsonl", (4e9, 4e9))
    assert find_run(None, tmp_path, repository_root).name == "first"
    assert find_run("second", tmp_path, repository_root).name == "second"
    assert find_run(str(tmp_path / "second"), tmp_path / "elsewhere", repository_root).name == "second"


def test_a_race_is_compared_by_section(page: RunPage, run: RunOnDisk) -> None:
    slower = run.best_runs / "valley_4000"
    slower.mkdir()
    (slower / "valley_4000.inputs").write_text("0.50 press up\n")  # half a second later
    page.read()
    compared = page.sections(page.record("valley_4000"))
    assert compared is not None
    assert [row["name"] for row in compared["rows"]] == ["CP 1", "CP 2", "CP 3", "finish"]
    assert compared["rows"][0]["at_ms"] is None, "the race ends before"
    assert compared["rows"][1]["recent_lost_ms"] is None
    assert compared["behind"][5][1] == pytest.approx(0.5, abs=0.06)
    assert page.sections("live-0-0-0-0") is None


def test_sections_of_a_whole_race_and_a_medal() -> None:
    shape = {"length_m": 100.0, "gates": [[0.0] * 6, [0.0] * 5 + [50.0], [0.0] * 5 + [100.0]]}
    splits = {"best_ms": [5000, 10_000], "recent_ms": [5500, 10_400]}
    race = race_at(np.linspace(0, 100, 111), finished_ms=11_000)
    compared = race_sections(race, None, shape, splits, {"gold": 12_000})
    assert (compared["best_ms"], compared["medal"], compared["behind"]) == (10_000, "gold", [])
    names = ("name", "at_ms", "section_ms", "best_ms", "lost_ms", "recent_lost_ms", "pace_lost_ms")
    assert [tuple(row[name] for name in names) for row in compared["rows"]] == [
        ("CP 1", 5500, 5500, 5000, 500, 500, -500),
        ("finish", 11_000, 5500, 5000, 500, -100, -500),
    ]


def test_sections_of_a_map_without_checkpoints_are_equal_parts() -> None:
    shape = {"length_m": 100.0, "gates": [[0.0] * 6, [0.0] * 5 + [100.0]]}
    best = race_at(np.linspace(0, 100, 101), finished_ms=10_000)
    race = race_at(np.linspace(0, 60, 61), finished_ms=None)
    compared = race_sections(race, best, shape, {}, {})
    assert [row["name"] for row in compared["rows"]] == [*(f"{10 * k} m" for k in range(1, 10)), "finish"]
    assert [row["lost_ms"] for row in compared["rows"]] == [0] * 6 + [None] * 4
    assert compared["behind"][:2] == [[2.0, 0.0], [4.0, 0.0]]


def race_at(meters: np.ndarray, finished_ms: int | None) -> LiveRace:
    """A race that was so far at each 100 ms."""
    n = len(meters)
    flags, numbers = np.zeros(n, bool), np.zeros(n, np.float32)
    return LiveRace(
        collector=0,
        game=0,
        number=1,
        map_name="x",
        track="x",
        is_explo=False,
        race_finished=finished_ms is not None,
        race_time_ms=finished_ms or 100 * (n - 1),
        told_s=0.0,
        map_file="",
        time_ms=100 * np.arange(n, dtype=np.int32),
        position=np.zeros((n, 3), np.float32),
        speed_mps=numbers,
        steer=numbers,
        gas=flags,
        brake=flags,
        was_greedy=flags,
        gear=np.ones(n, np.int16),
        zone=np.zeros(n, np.int32),
        meters_advanced=meters.astype(np.float32),
        q_values=np.zeros((n, 0), np.float32),
        frames=None,
        frame_time_ms=np.zeros(0, np.int32),
    )
