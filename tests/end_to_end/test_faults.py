"""Training goes on while its games fail at random, in every way that the simulated game knows."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from trackmania_rl.checkpoints import find_manifests

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

STOPS_WITHIN_S = 10.0
N_RACES = 40
FAULTS_BEFORE_THE_END = 8


def faults_made(ledger: Path) -> list[str]:
    lines = ledger.read_text().splitlines() if ledger.exists() else []
    return [line for line in lines if line != "start"]


def test_training_goes_on_under_faults_at_random(start_training: Any, tmp_path: Path) -> None:
    ledger = tmp_path / "chaos.ledger"
    command = start_training(
        tmp_path,
        environment={
            "SIMULATED_GAME_CHAOS": "random@share=0.3,seed=5",
            "SIMULATED_GAME_CHAOS_LEDGER": str(ledger),
        },
        game_transport="'socket'",
        games_per_collector=2,
        tmi_protection_timeout_s=6.0,
        cutoff_race_longer_than_ms=6_000,
    )
    command.wait_for(
        lambda: len(command.races) >= N_RACES and len(faults_made(ledger)) >= FAULTS_BEFORE_THE_END,
        f"{N_RACES} races and {FAULTS_BEFORE_THE_END} faults",
        within_s=700,
    )
    made, starts = faults_made(ledger), ledger.read_text().count("start\n")
    assert command.stop(signal.SIGINT, whole_group=True) < STOPS_WITHIN_S
    assert command.process.returncode == 0
    assert not command.survivors()
    assert "Traceback" not in command.output, command.output
    assert find_manifests(command.run_folder)
    kinds = sorted({line.split("'")[1] for line in made})
    print(f"{len(command.races)} races, {len(made)} faults ({', '.join(kinds)}), {starts} starts of games")
    assert len(kinds) >= 3
