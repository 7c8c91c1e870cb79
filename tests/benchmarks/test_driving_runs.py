"""Which trainings there are, when one counts as run, what is made of them, and the command from end to end."""

import json
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from rich.console import Console

from trackmania_rl.errors import UserError
from trackmania_rl.settings import load_settings


@pytest.fixture
def config_file(repository_root):
    return repository_root / "config_files" / "config.py"


@pytest.fixture
def yardsticks():
    from benchmarks.driving.score import Yardstick

    ours = Yardstick(
        length_m=700.0, scripted_careful_ms=40_000, scripted_fast_ms=30_000, scripted_tuned_ms=25_000, record_ms=20_000
    )
    return {"valley": ours, "ring": ours.model_copy(update={"record_ms": 10_000, "scripted_careful_ms": None})}


@pytest.fixture
def run(config_file, repository_root, tmp_path):
    from benchmarks.driving.runs import Run
    from benchmarks.driving.variants import Variant

    return Run(Variant("base", config_file, ()), repository_root / "maps" / "ring.toml", 7, 3, tmp_path, 20_016)


def write_note(run, **changes):
    from benchmarks.driving.runs import plain_settings

    note = {
        "variant": run.variant.name,
        "track": run.track.stem,
        "seed": run.seed,
        "minutes": run.minutes,
        "name": run.name,
        "is_complete": True,
        "started": f"2026-01-01T00:00:{run.seed:02d}",
        "commit": "0a1b2c",
        "settings": plain_settings(run.settings()),
    }
    run.note_file.parent.mkdir(exist_ok=True)
    run.note_file.write_text(json.dumps(note | changes))
    return note | changes


def test_a_variant_is_read_with_spaces_in_its_values(config_file):
    from benchmarks.driving.variants import Variant

    text = "slow: lr_schedule=((0, 1e-4), (9, 1e-5))  use_ddqn=True"
    variant = Variant.read(text, config_file, ["batch_size=32"])
    assert variant == Variant(
        "slow", config_file, ("batch_size=32", "lr_schedule=((0, 1e-4), (9, 1e-5))", "use_ddqn=True")
    )
    assert Variant.read("default:", config_file, []) == Variant("default", config_file, ())
    other = Variant.read("published: config=config_files/config_tmnf.py game=simulated", config_file, [])
    assert other == Variant("published", Path("config_files/config_tmnf.py"), ("game=simulated",))
    begun = Variant.read("begun: weights_from=drivers/ring.driver seed=3", config_file, [])
    assert (begun.weights_from, begun.overrides, begun.config_file) == ("drivers/ring.driver", ("seed=3",), config_file)
    spread = Variant.read("spread: cluster=local:2 batch_size=32", config_file, [])
    assert spread == Variant("spread", config_file, ("batch_size=32",), "local:2")


@pytest.mark.parametrize("text", ["no colon", "a/b: x=1", ": x=1", "name: nonsense", "under_score: x=1"])
def test_a_variant_written_in_another_way_is_refused(config_file, text):
    from benchmarks.driving.variants import Variant

    with pytest.raises(UserError, match="write it as"):
        Variant.read(text, config_file, [])


def test_variants_of_a_file_stand_one_a_line(tmp_path):
    from benchmarks.driving.variants import read_variants

    file = tmp_path / "variants.txt"
    file.write_text("# what is compared\n\ndefault:\nslow: lr_schedule=((0, 1e-4),)\n    batch_size=32\n\nlast:\n")
    assert read_variants(file) == ["default:", "slow: lr_schedule=((0, 1e-4),) batch_size=32", "last:"]
    file.write_text("# nothing\n")
    with pytest.raises(UserError, match="there is none in it"):
        read_variants(file)
    with pytest.raises(UserError, match="No such file"):
        read_variants(tmp_path / "absent.txt")


def test_each_variant_of_the_options_differs_from_the_default(repository_root, config_file):
    from benchmarks.driving.runs import plain_settings
    from benchmarks.driving.variants import Variant, read_variants

    texts = read_variants(repository_root / "research" / "options" / "variants.txt")
    variants = [Variant.read(text, config_file, ()) for text in texts]
    settings = [plain_settings(load_settings(one.config_file, one.overrides)) for one in variants]
    assert variants[0].name == "default"
    assert len({one.name for one in variants}) == len({str(one) for one in settings}) == len(variants)


def test_a_run_drives_its_track_four_times_exploring_and_once_greedily(run):
    settings = run.settings()
    explored, evaluated = settings.game.map_cycle
    assert (explored.map_name, explored.is_explo, explored.repeat) == ("ring", True, 4)
    assert (evaluated.map_name, evaluated.is_explo, evaluated.repeat) == ("ring", False, 1)
    assert Path(explored.map_path).is_file()
    assert Path(explored.reference_line).is_file()
    assert (settings.run.run_name, settings.run.seed) == ("base_ring_seed7", 7)
    assert settings.game.base_tmi_port == 20_016


def test_the_variant_wins_over_the_benchmark(run):
    variant = replace(run.variant, overrides=("seed=90", "batch_size=33"))
    settings = replace(run, variant=variant).settings()
    assert (settings.run.seed, settings.replay.batch_size) == (90, 33)


def test_only_a_run_to_its_end_with_the_same_settings_is_complete(run):
    assert not run.is_complete()
    write_note(run, is_complete=False)
    assert not run.is_complete()
    write_note(run)
    assert run.is_complete()
    assert replace(run, minutes=2).is_complete()  # its first minutes are looked at
    with pytest.raises(UserError, match="a run of 3 minutes, 5 are asked for"):
        replace(run, minutes=5).is_complete()
    with pytest.raises(UserError, match="batch_size = 64, now it is 32"):
        replace(run, variant=replace(run.variant, overrides=("batch_size=32",))).is_complete()


def test_a_folder_of_another_command_is_left_alone(run):
    run.save_folder.mkdir(parents=True)
    with pytest.raises(UserError, match="not of this benchmark"):
        run.is_complete()


def test_notes_of_complete_runs_come_in_the_order_of_their_beginning(run):
    from benchmarks.driving.runs import complete_notes

    for seed, is_complete in ((5, True), (2, True), (3, False)):
        write_note(replace(run, seed=seed), is_complete=is_complete)
    (run.output / "runs" / "base_ring_seed2-final.json").write_text("{}")
    replace(run, seed=2).blind_file("0.5:7-9").write_text("{}")
    assert [note["seed"] for note in complete_notes(run.output)] == [2, 5]


def test_what_was_learned_each_minute_is_driven_once(run, monkeypatch):
    from benchmarks.driving import runs

    driven = []

    def run_process(command, terminal_file, stop, limit_s):
        words = dict(zip(command[4::2], command[5::2], strict=True))
        driven.append(Path(words.get("--checkpoint", "newest")).name)
        told = {"training_s": 60.0 * len(driven), "maps": [{"races": [{}] * int(words["--races"])}]}
        Path(words["--json"]).write_text(json.dumps(told))
        return 0

    monkeypatch.setattr(runs, "run_process", run_process)
    run = replace(run, keeps_drivers=True)
    assert run.settings().run.keep_driver_every_s == 60
    write_note(run)
    stop = threading.Event()
    with pytest.raises(UserError, match="has kept no drivers"):
        runs.evaluate_each_minute(run, 5, stop)
    drivers = run.save_folder / "drivers"
    drivers.mkdir(parents=True)
    for frames in (900, 70, 1_200):  # the last one at the end of the run, of which there is a checkpoint
        (drivers / f"{frames:012d}.pt").touch()
    assert runs.evaluate_each_minute(run, 5, stop)
    assert driven == ["000000000070.pt", "000000000900.pt", "newest"]
    assert [file.name[-9:] for file in runs.minute_files_of(run.note_file)] == ["0001.json", "0002.json", "0003.json"]
    assert runs.evaluate_each_minute(replace(run, minutes=2), 5, stop)
    assert len(driven) == 3
    assert [note["seed"] for note in runs.complete_notes(run.output)] == [7]


def test_a_process_ends_when_it_is_told_to(tmp_path):
    from benchmarks.driving.runs import run_process

    stop = threading.Event()
    threading.Timer(0.5, stop.set).start()
    began_s = time.monotonic()
    assert run_process([sys.executable, "-c", "import time; time.sleep(60)"], tmp_path / "said.txt", stop, 60) != 0
    assert time.monotonic() - began_s < 30
    assert run_process([sys.executable, "-c", "print(5)"], tmp_path / "said.txt", threading.Event(), 60) == 0
    assert (tmp_path / "said.txt").read_text() == "5\n"
    assert run_process([sys.executable, "-c", "import time; time.sleep(60)"], tmp_path / "t", threading.Event(), 0) != 0


def test_the_report_joins_seeds_and_tracks(run, repository_root, yardsticks, tmp_path):
    from benchmarks.driving.measured import MeasuredRun, compare_variants, group_runs
    from benchmarks.driving.report import table_of, write_report
    from benchmarks.driving.variants import Variant

    measured = []
    for variant, track, seed in [
        (variant, track, seed) for seed in (3, 4) for variant in ("base", "other") for track in ("valley", "ring")
    ]:
        one = replace(
            run,
            variant=Variant(variant, run.variant.config_file, ()),
            track=repository_root / "maps" / f"{track}.toml",
            seed=seed,
            minutes=2,
        )
        time_ms = 40_000 if variant == "base" else 25_000
        races = [
            {
                "wall_s": 4.0 * i * seed,
                "frames_total": 100 * i,
                "map": track,
                "is_explo": i % 2 == 0,
                "race_finished": i > 5,
                "race_time_ms": time_ms - 100 * i,
            }
            for i in range(1, 30)
        ]
        final = {"maps": [{"races": [{"race_finished": True, "race_time_ms": 24_000}] * 2}]} if seed == 3 else None
        blind = {"blind-0.5-7-9": {"share_of_maps_finished": 1 / seed}} if track == "ring" else {}
        driven = [{"race_finished": i < 4, "race_time_ms": 10_000 * (i + seed)} for i in range(1, 5)]
        each_minute = [{"training_s": 120.3, "maps": [{"races": driven}]}] if variant == "other" else []
        measured.append(MeasuredRun.judge(write_note(one), races, yardsticks[track], 2, final, blind, each_minute))
    groups = group_runs(measured)
    assert [(group.track, group.variant, group.summary.n_seeds) for group in groups] == [
        *(("valley", "base", 2), ("valley", "other", 2)),
        *(("ring", "base", 2), ("ring", "other", 2)),
    ]
    rows = table_of(groups)
    assert len({len(row) for row in rows}) == 1
    assert rows[0][:6] == ["track", "variant", "seeds", "first finish", "9 of 10 finish", "beats scripted"]
    assert rows[1][3:6] == ["98 s (700 frames)", "never", "never"]
    assert [row[0] for row in rows[1:]] == ["valley", "valley", "ring", "ring", "mean of tracks", "mean of tracks"]
    assert [row[-1] for row in rows] == [
        *("2 min, varied starts", "", "0.338 (0.310 to 0.367), 6/8 finished"),
        *("", "0.169 (0.155 to 0.183), 6/8 finished", "", ""),
    ]
    assert [row[-2] for row in rows] == [
        *("blind-0.5-7-9", "", ""),
        *("0.292 (0.250 to 0.333) finished", "0.292 (0.250 to 0.333) finished", "", ""),
    ]
    comparisons = compare_variants(groups)
    assert [(one.variant, one.n_pairs) for one in comparisons] == [("base", 4), ("other", 4)]
    assert comparisons[1].last_minute_difference.mean > 0.1  # 25 s and 40 s
    assert compare_variants(groups[:1]) == []
    assert compare_variants([groups[0], groups[3]]) == []  # one variant on valley, the other on ring
    files = write_report(tmp_path, groups, yardsticks, {"command": ["run.py"]})
    assert [file.name for file in files] == [
        *("table.md", "table.rst", "results.json", "runs.csv", "curves.png", "comparison.png")
    ]
    results = json.loads((tmp_path / "results.json").read_text(), parse_constant=pytest.fail)  # no Infinity
    assert len(results["runs"]) == 8
    assert results["groups"][0]["summary"]["beats_scripted_s"]["median"] is None
    assert [one["variant"] for one in results["comparisons"]] == ["base", "other"]
    assert (tmp_path / "table.md").read_text().count("\n") == len(rows) + 1 + 1 + 4  # a second table of four lines
    for name in ("curves.png", "comparison.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
    assert write_report(tmp_path, groups[:1], yardsticks, {})[-1].name == "curves.png"  # nothing to compare with


def command(repository_root, *words):
    return [sys.executable, str(repository_root / "benchmarks" / "driving" / "run.py"), *map(str, words)]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--tracks", "nowhere"], "nowhere: no such track file"),
        (["--tracks", "kart"], "research.planner kart"),
        (["--set", "batch_sise=3"], "did you mean batch_size?"),
        (["--variant", "a:", "--variant", "a: use_ddqn=True"], "each needs a name of its own"),
        (["--variant", "a:", "--against", "b"], "--against b: there is no such variant, only a"),
        (["--blind", "0.5", "seven"], "write --blind DIFFICULTY FIRST-LAST"),
        (["--only-report"], "holds no complete run"),
    ],
)
def test_mistakes_are_told_before_anything_is_trained(words, message, tmp_path, yardsticks, monkeypatch, capsys):
    from benchmarks.driving.run import main

    monkeypatch.setattr("signal.signal", lambda *_: None)
    file = tmp_path / "yardsticks.json"
    file.write_text(json.dumps({name: yardstick.model_dump() for name, yardstick in yardsticks.items()}))
    monkeypatch.setattr("sys.argv", ["run.py", "--output", str(tmp_path / "out"), "--yardsticks", str(file), *words])
    assert main() == 1
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("words", "variants"), [([], ["early", "late"]), (["--against", "late"], ["late", "early"])])
def test_the_report_holds_variants_against_the_one_that_is_asked_for(
    run, yardsticks, words, variants, monkeypatch, capsys
):
    from benchmarks.driving.run import main
    from benchmarks.driving.variants import Variant

    for seed, variant in enumerate(("early", "late")):  # which is also the order of their beginnings
        one = replace(run, variant=Variant(variant, run.variant.config_file, ()), minutes=1)
        write_note(one, started=f"2026-01-01T00:00:{seed:02d}")
        one.save_folder.mkdir(parents=True)
        race = {"wall_s": 5.0, "frames_total": 70, "map": "ring", "is_explo": False, "race_finished": True}
        (one.save_folder / "races.jsonl").write_text(json.dumps(race | {"race_time_ms": 11_000 * (seed + 1)}) + "\n")
    monkeypatch.setattr("signal.signal", lambda *_: None)
    file = run.output / "yardsticks.json"
    file.write_text(json.dumps({name: yardstick.model_dump() for name, yardstick in yardsticks.items()}))
    command = ["run.py", "--output", str(run.output), "--yardsticks", str(file), "--only-report"]
    monkeypatch.setattr("sys.argv", [*command, *words])
    assert main() == 0
    results = json.loads((run.output / "results.json").read_text())
    assert [one["variant"] for one in results["comparisons"]] == variants
    assert [one["variant"] for one in results["groups"]] == variants
    monkeypatch.setattr("sys.argv", [*command, "--against", "never"])
    assert main() == 1
    assert "--against never: there is no such variant, only early, late" in capsys.readouterr().err


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), ValueError("a bug")])
def test_a_run_that_fails_does_not_hold_up_the_others(run, error, repository_root, monkeypatch, capsys):
    from benchmarks.driving import run as run_module

    begun = []

    def train(one, stop):
        begun.append(one)
        if len(begun) == 1:
            raise error
        return not stop.is_set()

    monkeypatch.setattr(run_module, "train", train)
    monkeypatch.setattr(run_module, "driving_now", lambda *_: (0.0, "score 1"))
    yardsticks = repository_root / "benchmarks" / "driving" / "yardsticks.json"
    arguments = SimpleNamespace(jobs=1, final_races=0, races_each_minute=0, blind=None, yardsticks=yardsticks)
    runs = [run, replace(run, seed=8)]
    if isinstance(error, OSError):
        assert run_module.train_all(runs, arguments, Console()) == runs[:1]
        assert "No space left on device" in capsys.readouterr().out
    else:
        with pytest.raises(ValueError, match="a bug"):
            run_module.train_all(runs, arguments, Console())


def test_no_two_runs_share_a_port(repository_root, monkeypatch, tmp_path):
    from benchmarks.driving.run import parse_arguments, runs_of

    words = ["--tracks", "valley", "--seeds", "0", "1", "--output", str(tmp_path), "--set", "game_transport=socket"]
    monkeypatch.setattr("sys.argv", ["run.py", *words, "--set", "n_collectors=4"])
    first, second = (run.settings().game.tmi_ports for run in runs_of(parse_arguments()))
    assert len(first) == len(second) == 32
    assert set(first).isdisjoint(second)


def wait_for(look, within_s):
    began_s = time.monotonic()
    while not (found := look()):
        assert time.monotonic() - began_s < within_s
        time.sleep(0.1)
    return found


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_command_trains_reports_and_goes_on(repository_root, tmp_path, yardsticks):
    file = tmp_path / "yardsticks.json"
    file.write_text(json.dumps({name: yardstick.model_dump() for name, yardstick in yardsticks.items()}))
    words = ["--tracks", "valley", "--seeds", 5, "--minutes", 1, "--final-races", 2, "--races-each-minute", 3]
    words += ["--yardsticks", file]
    words += ["--output", tmp_path / "out", "--set", "games_per_collector=5", "--variant", "base: batch_size=32"]

    with subprocess.Popen(command(repository_root, *words)) as interrupted:
        training = wait_for(lambda: psutil.Process(interrupted.pid).children(), within_s=120)
        notes = tmp_path / "out" / "runs"
        wait_for((tmp_path / "out" / "save" / "base_valley_seed5" / "races.jsonl").is_file, within_s=120)
        interrupted.send_signal(signal.SIGTERM)  # as Ctrl-C, and never ignored
    assert interrupted.returncode == 130
    assert not any(process.is_running() for process in training)
    assert not json.loads((notes / "base_valley_seed5.json").read_text())["is_complete"]

    subprocess.run(command(repository_root, *words), check=True)
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    (run,) = results["runs"]
    lines = (tmp_path / "out" / "save" / "base_valley_seed5" / "races.jsonl").read_text().splitlines()
    races = [race for race in map(json.loads, lines) if race["wall_s"] <= 60]
    assert run["figures"]["n_greedy"] == sum(not race["is_explo"] for race in races)  # none, on a machine that is busy
    assert run["figures"]["frames"] == max((race["frames_total"] for race in races), default=0)
    assert lines
    assert len(run["final"]["maps"][0]["races"]) == 2
    assert [(minute, len(scores)) for minute, scores in run["scores_each_minute"].items()] == [("1", 3)]
    began_s = time.monotonic()
    again = subprocess.run(command(repository_root, *words), check=True, capture_output=True, text=True)
    assert "1 of them complete already" in again.stdout
    assert time.monotonic() - began_s < 45
