"""The benchmark of memory reads every process of a training."""

import sys

import pytest


@pytest.mark.slow
def test_a_short_training_is_read(monkeypatch, capsys, tmp_path):
    import json

    from benchmarks import memory_over_time

    small = ("image_width_px=0", "image_height_px=0", "memory_size_schedule=((0, 4_000),)")
    arguments = ["--minutes", "0.4", "--json", str(tmp_path / "memory.json")]
    for override in small:
        arguments += ["--set", override]
    monkeypatch.setattr(sys, "argv", ["memory_over_time", *arguments])
    assert memory_over_time.main() == 0
    readings = json.loads((tmp_path / "memory.json").read_text())
    assert len(readings) > 3
    assert readings[-1]["learner"]["memory_mb"] > 10
    assert readings[-1]["learner"]["n_descriptors"] > 5
    assert "collector" in {child["name"] for child in readings[-1]["children"]}
    assert readings == sorted(readings, key=lambda reading: reading["minute"])
    assert "learner" in capsys.readouterr().out


def test_growth_is_counted_from_what_has_settled(capsys):
    from benchmarks.memory_over_time import ProcessReading, Reading, print_readings

    def process(memory_mb: float) -> ProcessReading:
        return ProcessReading(1, "process", memory_mb, 5, 7)

    readings = [
        Reading(float(minute), process(mb), (process(2 * mb), process(mb)))
        for minute, mb in enumerate([10.0, 50.0, 51.0, 52.0])
    ]
    print_readings(readings)
    printed = " ".join(capsys.readouterr().out.split())
    assert "from minute 1.0 to 3.0: learner +2.0 MB, children +6.0 MB" in printed
