"""Workers on other machines: actions per second beside local collectors, and bytes per action on the way.

The rates are those of whole trainings without updates, with two collectors or two workers. The workers speak TLS
through a link with a delay. The bytes are those of one race.

python -m benchmarks.workers
python -m benchmarks.workers --one-way-ms 50 --seconds 60
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from rich.table import Table

from benchmarks.delayed_link import link_process
from benchmarks.training_command import FIRST_RACE_WITHIN_S, PROJECT, TrainCommand
from examples.action_history import DropActionHistory
from trackmania_rl.agents.builder import make_agent_builder
from trackmania_rl.channels.over_grpc import HalfFloats, SampleCompressor, encode_race
from trackmania_rl.channels.run_state import WEIGHTS_KINDS, open_channels
from trackmania_rl.cli import command
from trackmania_rl.games.race_games import make_games_builder
from trackmania_rl.multiprocess.collector_process import CollectorTask, make_parts
from trackmania_rl.race.race import Race
from trackmania_rl.seeds import SeedTree
from trackmania_rl.settings import Settings, load_settings
from trackmania_rl.telemetry.tables import PlainConsole
from trackmania_rl.tmi_interaction.launchers.launcher import find_free_port
from trackmania_rl.training.collector import Collector

N_PLAYERS = 2
WITHOUT_UPDATES = {
    "memory_size_start_learn_schedule": "((0, 200000),)",
    "use_torch_compile": False,
    "cutoff_no_progress_within_ms": 120_000,
    "cutoff_race_longer_than_ms": 20_000,  # as long as a trained driver's; an untrained one's last two seconds
}
PICTURE_PX = (160, 120)
COMPRESSORS = {"half floats": HalfFloats, "without history": DropActionHistory}
CERTIFICATE = (
    "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost"
)


def rate(training: TrainCommand, seconds: float) -> float:
    """Wait until every collector has sent two races, and return the actions per second from then on."""

    def all_play() -> bool:
        n_races = Counter(race["collector"] for race in training.races)
        return len(n_races) == N_PLAYERS and min(n_races.values()) > 1

    training.wait_for(all_play, "races of all collectors", FIRST_RACE_WITHIN_S)
    first_s, first = training.frames()
    training.watch(seconds)
    last_s, last = training.frames()
    return (last - first) / (last_s - first_s)


def local_rate(folder: Path, seconds: float) -> float:
    """Return the actions per second of local collectors."""
    with TrainCommand(folder, {**WITHOUT_UPDATES, "n_collectors": N_PLAYERS}) as training:
        return rate(training, seconds)


def worker_rate(folder: Path, seconds: float, one_way_s: float) -> float:
    """Return the actions per second of workers behind a link."""
    folder.mkdir(parents=True)
    port, crt, key = find_free_port(), folder / "crt", folder / "key"
    subprocess.run([*CERTIFICATE.split(), "-keyout", str(key), "-out", str(crt)], check=True, capture_output=True)
    (folder / "token").write_text("a token of many letters")
    serve = ("--workers", f"127.0.0.1:{port}", "--worker-token-file", str(folder / "token"))
    options = (*serve, "--worker-certificate", str(crt), str(key))
    workers: list[subprocess.Popen[bytes]] = []
    with (
        TrainCommand(folder, {**WITHOUT_UPDATES, "n_collectors": 0}, options) as training,
        link_process(port, one_way_s) as link,
    ):
        try:
            training.wait_for(lambda: "workers are served" in training.output, "server", FIRST_RACE_WITHIN_S)
            for _ in range(N_PLAYERS):
                words = [sys.executable, PROJECT / "scripts" / "worker.py", "--connect", f"https://localhost:{link}"]
                words += ["--token-file", folder / "token", "--certificate", crt]
                workers.append(subprocess.Popen([str(word) for word in words], stderr=subprocess.DEVNULL))
            return rate(training, seconds)
        finally:
            for worker in workers:
                worker.terminate()
                worker.wait()


def settings_of_pictures(width_px: int, height_px: int) -> Settings:
    """Return the default configuration with pictures of this size."""
    size = {"image_width_px": width_px, "image_height_px": height_px}
    return load_settings(PROJECT / "config_files" / "config.py", {"games_per_collector": 1, **size})


def played_race(folder: Path, settings: Settings) -> Race:
    """Play one race in this process; `folder` is for tracks."""
    builder = make_games_builder(settings)
    network = make_agent_builder(settings, builder.spaces, SeedTree(0)).make_network()
    channels = open_channels(settings, builder.spaces, dict.fromkeys(WEIGHTS_KINDS, network))
    maps = PROJECT / "maps"
    task = CollectorTask(
        index=0,
        name="benchmark",
        maps_folder=maps,
        tracks_folder=folder / "tracks",
        live_folder=folder / "live",
        rollouts=channels.rollouts.open_collector(0),
        run_state=channels.run_state,
        make_games_builder=make_games_builder,
        make_agent_builder=make_agent_builder,
    )
    games = builder.make_games(0, maps, SeedTree(0).rng("games"))
    collector = Collector(make_parts(task, builder.spaces), games)
    while (race := channels.rollouts.get(0)) is None:
        collector.play_once()
    return race


def bytes_per_action(race: Race, compressor: SampleCompressor) -> float:
    """Return the bytes of an encoded race per action."""
    return len(encode_race(race, 1, compressor.compress)) / race.n_actions


@command
def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.workers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--one-way-ms", type=float, default=20.0, metavar="MS", help="delay (default %(default)s)")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each rate (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=2, help="rates of each kind, in turns (default %(default)s)")
    arguments = parser.parse_args()
    console, table = PlainConsole(), Table("bytes per action", "raw", "compressed", *COMPRESSORS, "time to encode")
    for name, size_px in (("floats", (0, 0)), ("pictures of 160 x 120", PICTURE_PX)):
        settings = settings_of_pictures(*size_px)
        with tempfile.TemporaryDirectory() as folder:
            race = played_race(Path(folder), settings)
        n_actions = race.n_actions
        raw = sum(getattr(column, "nbytes", 0) for column in race.columns.values()) / n_actions
        began_s = time.perf_counter()
        compressed = bytes_per_action(race, SampleCompressor(settings))
        encode_us = 1e6 * (time.perf_counter() - began_s) / n_actions
        smaller = [bytes_per_action(race, kind(settings)) for kind in COMPRESSORS.values()]
        numbers = [f"{number:,.0f}" for number in (raw, compressed, *smaller)]
        table.add_row(name, *numbers, f"{encode_us:.0f} µs an action")
    console.print(table)
    rates = Table("actions/s of two", "collectors", "workers", "share")
    with tempfile.TemporaryDirectory() as folder:
        for number in range(arguments.rounds):
            local = local_rate(Path(folder, f"local-{number}"), arguments.seconds)
            far = worker_rate(Path(folder, f"far-{number}"), arguments.seconds, arguments.one_way_ms / 1000)
            rates.add_row(f"round {number + 1}", f"{local:,.0f}", f"{far:,.0f}", f"{far / local:.0%}")
    console.print(rates)


if __name__ == "__main__":
    sys.exit(main())
