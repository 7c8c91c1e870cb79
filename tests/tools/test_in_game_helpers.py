"""show_checkpoints.py, play_inputs.py and personal_record_ghost.py, on the simulated game and on made-up folders."""

import contextlib
import re
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from trackmania_rl.protocol.input_script import events_from_actions, write_input_script
from trackmania_rl.protocol.messages import KeyState
from trackmania_rl.simulator.physics.scripted_driver import DECISION_MS, FAST_DRIVER, drive
from trackmania_rl.simulator.server.game import SimulatedGame
from trackmania_rl.simulator.server.server import GameServer
from trackmania_rl.simulator.tracks.track_file import load_track
from trackmania_rl.telemetry.video import video_facts
from trackmania_rl.tmi_interaction import script_player
from trackmania_rl.tmi_interaction.console_triggers import trigger_commands


class ListeningGame(SimulatedGame):
    """A simulated game that remembers what its console was told."""

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
def tool(script_module):
    """Runs a command line as `python scripts/tools/NAME.py ...` does."""

    def run(name: str, *words: object) -> int:
        return script_module(f"tools/{name}").main([str(word) for word in words])

    return run


@pytest.fixture(scope="module")
def kart_inputs(repository_root, tmp_path_factory) -> Path:
    """An inputs file that finishes the track kart."""
    rows = drive(load_track(repository_root / "maps" / "kart.toml"), FAST_DRIVER).keys
    keys = [KeyState(accelerate=gas, brake=brake, left=left, right=right) for gas, brake, left, right in rows]
    file = tmp_path_factory.mktemp("inputs") / "fast.inputs"
    file.write_text(write_input_script(events_from_actions(keys, DECISION_MS)))
    return file


def test_trigger_corners_lie_around_the_points():
    commands = trigger_commands(np.array([[10.0, 20.5, 30.0], [-1.0, 0.0, 7.123]]), side_m=4.0)
    assert commands[0] == "add_trigger 8.00 18.50 28.00 12.00 22.50 32.00"
    assert commands[1] == "add_trigger -3.00 -2.00 5.12 1.00 2.00 9.12"


def test_checkpoints_are_sent_to_the_game(tool, game, repository_root, capsys):
    listening, port = game
    assert tool("show_checkpoints", "kart", "--every", 50, "--clear", "--port", port) == 0
    line_m = np.load(repository_root / "maps" / "kart_0.5m.npy")
    assert listening.told == ["clear_triggers", *trigger_commands(line_m[::50], 0.8)]
    assert f"sent {len(listening.told)} commands" in capsys.readouterr().out


def test_checkpoints_are_written_and_nothing_is_overwritten(tool, repository_root, tmp_path, capsys):
    script = tmp_path / "triggers.txt"
    line = repository_root / "maps" / "kart_0.5m.npy"
    assert tool("show_checkpoints", line, "--output", script) == 0
    lines = script.read_text().splitlines()
    assert len(lines) == len(np.load(line)[::20])
    assert all(text.startswith("add_trigger ") and len(text.split()) == 7 for text in lines)
    assert tool("show_checkpoints", line, "--output", script) == 1
    assert "exists already" in capsys.readouterr().err
    assert tool("show_checkpoints", "nowhere") == 1
    assert "nowhere: no line" in capsys.readouterr().err


def test_real_checkpoints_of_a_real_map(tool, shared_data, tmp_path):
    challenge = next(iter(sorted(shared_data.rglob("*.Challenge.Gbx"))), None)
    if challenge is None:
        pytest.skip("no .Challenge.Gbx among the real game files")
    script = tmp_path / "triggers.txt"
    assert tool("show_checkpoints", challenge, "--output", script) == 0
    first = np.array(script.read_text().splitlines()[0].split()[1:], dtype=float)
    np.testing.assert_allclose(first[3:] - first[:3], 4.0)


def test_play_in_a_running_game_keeps_what_it_reports(tool, game, kart_inputs, repository_root, tmp_path, capsys):
    _, port = game
    config = repository_root / "config_files" / "config.py"
    words = ("--map", "kart", "--port", port, "--speed", 1000, "--config", config, "--output", tmp_path / "played")
    assert tool("play_inputs", kart_inputs.parent, *words) == 0
    told = capsys.readouterr().out
    assert "fast.inputs: finished in " in told
    (kept,) = (tmp_path / "played").iterdir()
    assert f"({kept.stem.removeprefix('fast_')} ms)" in told
    assert tool("play_inputs", kept, *words) == 0  # what the game reports gives the same time again
    assert f"({kept.stem.removeprefix('fast_')} ms)" in capsys.readouterr().out


def test_play_films_what_the_game_shows(tool, game, kart_inputs, repository_root, tmp_path, capsys):
    config, video = repository_root / "config_files" / "config.py", tmp_path / "fast.mp4"
    words = ("--map", "kart", "--port", game[1], "--speed", 1000, "--config", config)
    assert tool("play_inputs", kart_inputs, *words, "--video", video, "--video-size", "64x48", "--video-fps", 10) == 0
    told = capsys.readouterr().out
    assert f"wrote {video}" in told
    race_s = int(re.search(r"\((\d+) ms\)", told)[1]) / 1000
    facts = video_facts(video)
    assert (facts.size_px, facts.frames_per_s) == ((64, 48), 10)
    assert facts.duration_s == pytest.approx(race_s + 1, abs=0.2), "the last picture stays for a second"


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
    (replay,) = output.glob("fast_*.Replay.Gbx")
    assert replay.read_text() == "a personal record"
    assert (documents / "TMInterface" / "Scripts" / "trackmania_rl_play.txt").read_text() == kart_inputs.read_text()


def test_a_map_that_the_game_does_not_load_ends_the_wait(tool, game, kart_inputs, repository_root, monkeypatch, capsys):
    listening, port = game
    config = repository_root / "config_files" / "config.py"
    words = (kart_inputs, "--map", "kart", "--port", port, "--speed", 1000, "--config", config)
    monkeypatch.setattr(script_player, "BEGIN_WITHIN_S", 0.3)
    assert tool("play_inputs", *words) == 0
    # From here on it obeys no command, so the race that is over is all it reports: no countdown, no new race.
    monkeypatch.setattr(listening, "run_command", listening.told.append)
    assert tool("play_inputs", *words) == 1
    assert "no race began within 0.3 s" in capsys.readouterr().err


@pytest.mark.parametrize(("words", "told"), [(("{tmp}",), "holds no *.inputs"), (("gone.inputs",), "cannot be read")])
def test_play_names_what_is_wrong(tool, game, repository_root, tmp_path, capsys, words, told):
    config = repository_root / "config_files" / "config.py"
    names = (word.format(tmp=tmp_path) for word in words)
    assert tool("play_inputs", *names, "--map", "kart", "--port", game[1], "--config", config) == 1
    assert told in capsys.readouterr().err


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


def test_a_missing_base_path_is_told(tool, tmp_path, capsys):
    assert tool("personal_record_ghost", "hide", "--base-path", tmp_path) == 1
    assert "there is no such folder" in capsys.readouterr().err
    assert tool("personal_record_ghost", "hide") == 1
    assert "trackmania_base_path is not set" in capsys.readouterr().err
