"""The content of the page as a tab gets it: maps, races, curves, figures, messages, settings, films."""

import itertools
import re

import numpy as np
import pytest

from tests.run_log import write_messages, write_races
from tests.telemetry.page.conftest import RECORD_MS, race_line
from trackmania_rl.errors import UserError
from trackmania_rl.paths import PROJECT_FOLDER
from trackmania_rl.runs.log import RunLog
from trackmania_rl.runs.snapshot import toml_of, write_changes
from trackmania_rl.settings import MapEntry
from trackmania_rl.simulator.tracks.track_generator import TrackRecipe
from trackmania_rl.telemetry.page import curves as curves_module
from trackmania_rl.telemetry.page.command import run_of_driver
from trackmania_rl.telemetry.page.page import RunPage
from trackmania_rl.telemetry.page.races import race_of_inputs
from trackmania_rl.telemetry.page.runs import BestRun


def test_a_map_is_shown_from_above_with_its_gates(client):
    shape = client.get("/api/map/valley").json()
    points, gates = np.array(shape["points"]), np.array(shape["gates"])
    assert shape["length_m"] == pytest.approx(978.5)
    assert np.linalg.norm(np.diff(points[:, :2], axis=0), axis=1).max() < 2.1
    assert gates[:, 5] == pytest.approx([0.0, 241.8, 420.8, 654.1, 978.5], abs=0.1)
    assert np.linalg.norm(gates[:, 2:4], axis=1) == pytest.approx(1.0, abs=0.01)
    generated = TrackRecipe(seed=3, difficulty=0.0).name
    assert client.get(f"/api/map/{generated}").json()["length_m"] > 500
    assert client.get("/api/figure?name=nothing").json() == []
    assert client.get("/api/map/nowhere").json()["detail"].startswith("nowhere: the run's map_cycle has no such map")


def test_a_real_map_is_shown_along_its_line(run):
    write_changes(run.settings, {"game": "tmnf", "road_width_m": 40.0, "distance_between_zone_centers_m": 1.0})
    page = RunPage(run, PROJECT_FOLDER)
    shape = page.shape("valley")
    assert len(shape["gates"]) == 2, "start and finish: its file is not there"
    assert (shape["points"][0][2], shape["zone_m"]) == (20.0, 1.0)
    assert shape["length_m"] == pytest.approx(978.5, abs=1.0)
    with pytest.raises(UserError, match="in the real game"):
        page.record(f"valley_{RECORD_MS}")


def test_a_record_is_driven_again_with_its_values_and_pictures(client):
    race = client.get(f"/api/record/valley_{RECORD_MS}").json()
    assert race["time_ms"] == RECORD_MS
    assert race["t"] == list(range(0, RECORD_MS + 50, 50))
    assert race["gas"] == [1] * 61
    steer = dict(zip(race["t"], race["steer"], strict=True))
    assert (steer[950], steer[1000], steer[1250], steer[1300]) == (0, 1, 1, 0)
    assert race["m"][-1] > 10
    assert np.shape(race["q"]) == (61, 12)
    picture = client.get(f"/api/race/{race['id']}/picture?t=1000")
    assert picture.headers["content-type"] == "image/jpeg"
    assert picture.content.startswith(b"\xff\xd8")
    assert client.get(f"/api/race/{race['id']}/picture?t=-1").status_code == 422
    assert client.get("/api/race/live-0-0-0-0").status_code == 404
    assert client.get("/api/race/live-0-0-0-0/picture?t=1000").status_code == 204
    assert client.get("/api/record/..%2fvalley_1").status_code == 404


def test_a_race_is_compared_by_section(client, run, snapshot_of):
    slower = run.best_runs / "valley_4000"
    slower.mkdir()
    (slower / "valley_4000.inputs").write_text("0.50 press up\n")  # half a second later
    snapshot_of(client)
    race = client.get("/api/record/valley_4000").json()
    compared = client.get(f"/api/race/{race['id']}/sections").json()
    assert [row["name"] for row in compared["rows"]] == ["CP 1", "CP 2", "CP 3", "finish"]
    assert compared["rows"][0]["at_ms"] is None, "the race ends before"
    assert compared["rows"][1]["recent_lost_ms"] is None
    assert compared["behind"][5][1] == pytest.approx(0.5, abs=0.06)
    assert client.get("/api/race/live-0-0-0-0/sections").status_code == 404


def test_races_become_curves_and_a_table(client, snapshot_of):
    shown = snapshot_of(client)
    assert shown["run"]["maps"] == ["valley"]
    assert shown["run"]["actions"][:3] == ["↑", "↑←", "↑→"]
    assert shown["state"]["races"] == 20
    assert [message["level"] for message in shown["log"]["messages"]] == ["INFO", "WARNING"]
    assert shown["log"]["messages"][1]["text"] == "collector 0 has died\nTraceback of it"
    assert shown["files"]["best_runs"][0]["file"] == f"best_runs/valley_{RECORD_MS}/valley_{RECORD_MS}.inputs"
    curves = shown["races"]["curves"]
    assert sorted(curves) == ["valley/evaluated", "valley/explored"]
    assert curves["valley/evaluated"][0] == [800, 29.98, 976.5]
    explored, evaluated = shown["state"]["table"]
    assert (explored["kind"], explored["races"], explored["best_ms"]) == ("exploration", 10, 29_810)
    assert (evaluated["kind"], evaluated["recent"], evaluated["n_recent"]) == ("evaluation", 10, 10)


def test_new_races_are_added_and_a_second_session_continues(page, run):
    page.read()
    unfinished = race_line(21, session=2, wall_s=3.0, race_finished=False, checkpoint_times_ms=[7000])
    write_races(run.run_log, [unfinished, race_line(22, session=2, is_demonstration=True, map="shown")])
    told = page.read()
    assert told["races"]["reset"], "a resumed run may have undone races"
    assert told["races"]["curves"]["valley/evaluated"][-1] == [8400, None, 976.5]
    assert "shown/evaluated" not in told["races"]["curves"], "a demonstration is no result"
    assert told["state"]["frames"] == 8800
    run.run_log.unlink()
    write_races(run.run_log, [race_line(1, session=2)])
    assert page.read()["races"]["reset"], "a log that was made again is read anew"
    run.run_log.write_text("no log")
    assert "file is not a database" in page.read()["trouble"]


def test_a_log_of_days_is_shown_in_bounds(run, monkeypatch):
    monkeypatch.setattr(curves_module, "MOST_RACES", 500)
    run.run_log.unlink()
    cycle = ("valley", "kart", "valley", "ring")
    same = {"race_time_ms": 20_000, "checkpoint_times_ms": []}
    races = [race_line(number, map=cycle[number % 4], is_explo=number % 2 == 0, **same) for number in range(1, 5001)]
    write_races(run.run_log, races)
    write_messages(run.run_log, (f"message {k} {'x' * 200}" for k in range(3000)))
    page = RunPage(run, PROJECT_FOLDER)
    page.read()
    shown = page.snapshot()
    assert shown["state"]["races"] == 5000
    n_points = {name: len(points) for name, points in shown["races"]["curves"].items()}
    assert n_points.keys() == {"valley/explored", "kart/evaluated", "ring/evaluated"}
    assert sum(n_points.values()) == 500
    assert min(n_points.values()) > 80, "the places of the map cycle are evenly represented"
    messages = shown["log"]["messages"]
    assert len(messages) == 300
    assert messages[-1]["text"].split()[1] == "2999"
    write_races(run.run_log, [race_line(5001, **same), race_line(5002, **same)])
    points = [[400 * number, 20.0, 976.5] for number in (5001, 5002)]
    assert page.read()["races"] == {"reset": False, "curves": {"valley/evaluated": points}}
    write_races(run.run_log, [race_line(number, **same) for number in range(5003, 6000)])
    assert page.read()["races"]["reset"], "more than a tab takes at once"


def write_figures(run, steps, value=1.0, resumed_at=None):
    log = RunLog(run.run_log, lambda: 0.0, 1 if resumed_at is None else 2)
    if resumed_at is not None:
        log.undo_after(resumed_at)
    for step in steps:
        log.write_figures({"train/loss": value * step, "weights/layer": 1.0}, step)
    log.close()


def test_figures_are_read_as_they_grow(run, page):
    page.read()
    assert page.figure("train/loss") == []
    write_figures(run, range(10))
    told = page.read()["figures"]
    assert told == {
        "reset": False,
        "curves": {"train/loss": [[step, step] for step in range(10)]},
        "names": ["train/loss", "weights/layer"],
    }
    write_figures(run, range(5, 8), value=100.0, resumed_at=4)
    assert page.read()["figures"]["curves"]["train/loss"][0] == [5, 500], "from which on a tab forgets older points"
    resumed = [*([s, s] for s in range(5)), [5, 500], [6, 600], [7, 700]]
    assert page.figure("train/loss") == resumed
    write_races(run.run_log, [race_line(21, session=2)])
    told = page.read()["figures"]
    assert (told["reset"], told["curves"]["train/loss"]) == (True, resumed)
    assert page.snapshot()["figures"] == told


def test_a_figure_of_days_is_shown_with_points_over_all_of_them(run, page, monkeypatch):
    monkeypatch.setattr(curves_module, "FIGURE_POINTS", 20)
    write_figures(run, range(0, 100_000, 100))
    points = page.figure("train/loss")
    assert 18 < len(points) < 24
    assert max(b[0] - a[0] for a, b in itertools.pairwise(points)) < 6000


def test_settings_are_shown_with_their_comments_and_edited(page, run):
    page.read()
    assert page.edit("evaluation_weights_decay", "0.8") == {"evaluation_weights_decay": "0.998 -> 0.8"}
    page.read()
    assert page.settings()["error"] == ""
    rows = {row["name"]: row for row in page.settings()["rows"]}
    assert rows["evaluation_weights_decay"]["value"] == "0.8"
    assert rows["evaluation_weights_decay"]["about"].startswith("Decay of the averaged weights")
    assert rows["constant_reward_per_ms"]["value"] == "-0.0012"
    assert rows["n_collectors"]["restart"]
    assert rows["use_ddqn"]["value"] in ("true", "false"), "as in settings.toml"
    assert rows["lr_schedule"]["value"].startswith("[[0, ")
    assert "game_command" not in rows
    before = run.settings.read_bytes()
    entry = {"map_name": "x", "map_path": "x.toml", "reference_line": "x.npy", "is_explo": True, "fill_buffer": True}
    with pytest.raises(UserError, match=r"x\.toml"):
        page.edit("map_cycle", f"[{toml_of(MapEntry(**entry))}]")
    assert run.settings.read_bytes() == before
    write_changes(run.settings, {"evaluation_weights_decay": 3})
    page.read()
    assert "evaluation_weights_decay = 3" in page.settings()["error"]
    assert page.settings()["rows"], "the last valid ones"


def test_only_listed_files_can_be_downloaded(client, run, snapshot_of):
    record = f"/files/best_runs/valley_{RECORD_MS}/valley_{RECORD_MS}"
    inputs = client.get(f"{record}.inputs")
    assert inputs.text.startswith("0.00 press up")
    assert "attachment" in inputs.headers["content-disposition"]
    assert client.get(f"{record}.driver").status_code == 404
    (run.best_runs / f"valley_{RECORD_MS}" / f"valley_{RECORD_MS}.driver").write_bytes(b"weights")
    assert client.get(f"{record}.driver").content == b"weights"
    film = run.path / "evaluation" / "valley.mp4"
    film.parent.mkdir()
    film.write_bytes(b"film")
    assert snapshot_of(client)["files"]["films"] == [
        {"name": "valley.mp4", "file": "evaluation/valley.mp4", "mb": 0.0},
    ]
    assert client.get("/files/evaluation/valley.mp4").content == b"film"
    for name in (
        "run.sqlite",
        "settings.toml",
        "..%2f..%2fconfig.py",
        "..%2ftested%2frun.sqlite",
        "%2fetc/passwd",
    ):
        assert client.get(f"/files/{name}").status_code == 404
    assert client.get("/static/..%2fserver.py").status_code == 404


def test_the_races_of_a_driver_file_are_shown_as_records_of_a_run(tmp_path, repository_root):
    driver = repository_root / "drivers" / "ring.driver"
    with run_of_driver(driver, repository_root) as run:
        assert run.name == "ring"
        [record] = RunPage(run, PROJECT_FOLDER).files.listed()["best_runs"]
        assert record["map"] == "ring"
        assert 40_000 < record["time_ms"] < 50_000
        assert (run.path / record["driver"]).read_bytes() == driver.read_bytes()
    assert not run.path.exists(), "deleted when the page ends"
    wrong = tmp_path / "mine.driver"
    with pytest.raises(UserError, match="there is no such driver's file"), run_of_driver(wrong, repository_root):
        pass
    wrong.write_bytes(b"no driver")
    with pytest.raises(UserError, match=re.escape(str(wrong))), run_of_driver(wrong, repository_root):
        pass


def test_a_record_finishes_between_two_states_and_at_one(tmp_path):
    np.save(tmp_path / "line.npy", np.arange(0.0, 60.0, 0.5)[:, None] * np.array([0, 0, 1.0]) + (0, 100, 0))
    track = tmp_path / "straight.toml"
    track.write_text('name = "straight"\nline = "line.npy"\nedge = "wall"\n')
    inputs = tmp_path / "straight.inputs"

    def drive(start_ms, race_time_ms):
        inputs.write_text(f"{start_ms / 1000:.2f} press up\n")
        return race_of_inputs(BestRun(tmp_path, "straight", race_time_ms, inputs, None, 0.0), str(track))

    finish_ms = int(drive(0, 60_000).time_ms[-1]) - 10  # the finish is detected in the tick after its time
    for start_ms in range(0, 50, 10):  # at rest until then, so that the finish is later by as much
        assert drive(start_ms, finish_ms + start_ms).race_finished
        assert not drive(start_ms, finish_ms + start_ms - 100).race_finished
