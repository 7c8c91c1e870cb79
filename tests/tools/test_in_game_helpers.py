"""show_checkpoints.py, play_inputs.py and personal_record_ghost.py, on the simulated game and on made-up folders."""

import contextlib
import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from trackmania_rl.simulator.server.game import SimulatedGame
from trackmania_rl.simulator.server.server import GameServer
from trackmania_rl.telemetry.video import video_facts


class ListeningGame(SimulatedGame):
    """A simulated game that remembers the commands of its console."""

    def __init__(self, maps_folder: Path, scripts_folder: Path, autosave: Path | None = None) -> None:
        super().__init__(maps_folder, scripts_folder)
        self.told: list[str] = []
        self.autosave = autosave

    def run_command(self, text: str) -> None:
        self.told.append(text)
        super().run_command(text)
        if self.autosave is not None and text.startswith("load"):
            self.autosave.write_text("a personal record")


@contextlib.contextmanager
def served(game: ListeningGame) -> Iterator[int]:
    """The port of a game that runs in a thread."""
    server = GameServer(game, port=0, speed=1000.0)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield server.port
    finally:
        server.stop()
        thread.join(10)


@pytest.fixture
def game(repository_root):
    """(the game, its port)."""
    game = ListeningGame(repository_root / "maps", repository_root)
    with served(game) as port:
        yield game, port


@pytest.fixture
def play(tool, game, kart_inputs, repository_root):
    """`play(inputs, *words)` plays in the running game."""
    config = repository_root / "config_files" / "config.py"
    words = ("--map", "kart", "--port", game[1], "--speed", 1000, "--config", config)
    return lambda inputs, *more: tool("play_inputs", inputs, *words, *more)


def test_checkpoints_are_sent_to_the_game_or_written(
    tool, script_module, game, repository_root, shared_data, tmp_path, capsys
):
    listening, port = game
    assert tool("show_checkpoints", "kart", "--every", 50, "--clear", "--port", port) == 0
    line_m = np.load(repository_root / "maps" / "kart_0.5m.npy")
    cubes = script_module("tools/show_checkpoints").trigger_commands(line_m[::50], 0.8)
    assert listening.told == ["clear_triggers", *cubes]
    assert f"sent {len(listening.told)} commands" in capsys.readouterr().out

    script = tmp_path / "triggers.txt"
    assert tool("show_checkpoints", repository_root / "maps" / "kart_0.5m.npy", "--output", script) == 0
    lines = script.read_text().splitlines()
    assert len(lines) == len(line_m[::20])
    assert all(text.startswith("add_trigger ") and len(text.split()) == 7 for text in lines)
    for line, told in ((repository_root / "maps" / "kart_0.5m.npy", "exists already"), ("nowhere", "nowhere: no line")):
        assert tool("show_checkpoints", line, "--output", script) == 78
        assert told in capsys.readouterr().err

    challenge, script = shared_data / "tracks" / "B13-Obstacle.Challenge.Gbx", tmp_path / "real.txt"
    assert tool("show_checkpoints", challenge, "--output", script) == 0
    first = np.array(script.read_text().splitlines()[0].split()[1:], dtype=float)
    np.testing.assert_allclose(first[3:] - first[:3], 4.0)


def test_play_in_a_running_game_keeps_the_inputs_that_it_reports_and_films_them(play, kart_inputs, tmp_path, capsys):
    assert play(kart_inputs.parent, "--output", tmp_path / "played") == 0
    told = capsys.readouterr().out
    assert f"{kart_inputs.name}: finished in " in told
    (kept,) = (tmp_path / "played").iterdir()
    time_ms = kept.stem.removeprefix(f"{kart_inputs.stem}_")
    assert f"({time_ms} ms)" in told
    assert play(kept, "--report", tmp_path / "report.json") == 0
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["race_time_ms"] == {"in the game": int(time_ms), "here": int(time_ms)}
    assert set(report["first_tick_ms_with_positions_apart_by"].values()) == {None}
    assert str(tmp_path) not in json.dumps(report)
    video = tmp_path / "fast.mp4"
    assert (
        play(kept, "--output", tmp_path / "played", "--video", video, "--video-size", "64x48", "--video-fps", 10) == 0
    )
    told = capsys.readouterr().out
    assert f"({time_ms} ms)" in told, "the reported inputs give the same time again"
    assert f"wrote {video}" in told
    facts = video_facts(video)
    assert (facts.size_px, facts.frames_per_s) == ((64, 48), 10)
    assert facts.duration_s == pytest.approx(int(time_ms) / 1000 + 1, abs=0.2), "the last picture stays for a second"


def test_play_in_the_real_games_folders(tool, kart_inputs, repository_root, tmp_path, capsys):
    documents, config = tmp_path / "documents", tmp_path / "config"
    base = documents / "TrackMania"
    autosaves = base / "Tracks" / "Replays" / "Autosaves"
    for folder in (documents / "TMInterface", base / "Tracks" / "Challenges", autosaves):
        folder.mkdir(parents=True)
    (base / "Tracks" / "Challenges" / "kart.toml").touch()  # the map, as far as the launcher looks
    shutil.copytree(repository_root / "config_files", config, ignore=shutil.ignore_patterns("__pycache__"))
    user_config = config / "user_config.py"
    user_config_text = user_config.read_text() + f"\ntrackmania_base_path = {str(base)!r}\n"
    output = tmp_path / "played"
    game = ListeningGame(
        repository_root / "maps", documents / "TMInterface" / "Scripts", autosaves / "me_kart.Replay.gbx"
    )
    words = ("--map", "kart.toml", "--speed", 1000, "--config", config / "config_tmnf.py", "--output", output)
    with served(game) as port:
        user_config.write_text(f"{user_config_text}base_tmi_port = {port}\n")
        assert tool("play_inputs", kart_inputs, *words) == 0
    assert "finished in" in capsys.readouterr().out
    assert game.told[-2:] == ['map "kart.toml"', 'load "trackmania_rl_play.txt"']
    (replay,) = output.glob("*.Replay.Gbx")
    assert replay.read_text() == "a personal record"
    assert (documents / "TMInterface" / "Scripts" / "trackmania_rl_play.txt").read_text() == kart_inputs.read_text()


def test_records_are_hidden_and_restored(tool, tmp_path, capsys):
    autosaves = tmp_path / "Tracks" / "Replays" / "Autosaves"
    hidden = autosaves.with_name("Autosaves hidden")
    autosaves.mkdir(parents=True)
    first, second = autosaves / "me_A01.Replay.gbx", autosaves / "me_B02.Replay.Gbx"
    first.write_text("first")
    second.write_text("second")
    (autosaves / "notes.txt").write_text("mine")

    assert tool("personal_record_ghost", "hide", "--only", "a01", "--base-path", tmp_path) == 0
    assert [file.name for file in hidden.iterdir()] == [first.name]
    first.write_text("driven meanwhile")
    assert tool("personal_record_ghost", "hide", "--base-path", tmp_path) == 0
    assert [file.name for file in autosaves.iterdir()] == ["notes.txt"]
    assert (hidden / first.name).read_text() == "first"
    assert (hidden / f"{first.name}.2").read_text() == "driven meanwhile"

    second.write_text("newer")
    capsys.readouterr()
    assert tool("personal_record_ghost", "restore", "--base-path", tmp_path) == 0
    assert (first.read_text(), second.read_text()) == ("first", "newer")
    assert (hidden / second.name).read_text() == "second"
    assert capsys.readouterr().out.count("left where it is") == 2
    for words, told in ((("--base-path", tmp_path / "absent"), "there is no such folder"), ((), "is not set")):
        assert tool("personal_record_ghost", "hide", *words) == 78
        assert told in capsys.readouterr().err
