"""Faults as they are written, made once, and remembered in a ledger."""

import math

import pytest

from trackmania_rl.simulator.server import chaos as chaos_module
from trackmania_rl.simulator.server.chaos import (
    DRAWN_AT_RANDOM,
    Chaos,
    ChaosError,
    Fault,
    FaultKind,
    Ledger,
    parse_faults,
)


def test_faults_are_read_and_mistakes_named():
    assert parse_faults(" kill@race=3,time=2.0; hang ;late@seconds=0.5") == (
        Fault(FaultKind.KILL, race=3, time=2.0),
        Fault(FaultKind.HANG, seconds=math.inf),
        Fault(FaultKind.LATE, seconds=0.5),
    )
    assert parse_faults("") == ()
    for text, said in (
        ("explode", "'explode' is no fault; there are kill, hang"),
        ("kill@lap=2", "'lap' is no part of a fault"),
        ("kill@race=1.5", "'1.5' is no number for race"),
        ("kill@time=-1", "time must be 0 or more"),
        ("kill@time=nan", "time must be 0 or more"),
        ("kill@kind=hang", "'kind' is no part"),
    ):
        with pytest.raises(ChaosError, match=said):
            parse_faults(text)


def test_a_fault_is_made_once_where_it_is_due_and_remembered_across_processes(tmp_path):
    faults, ledger = parse_faults("kill@race=2,time=1;refuse@starts=2"), tmp_path / "ledger"
    assert Chaos(faults, Ledger(ledger)).refuses_to_start()
    chaos = Chaos(faults, Ledger(ledger))
    assert chaos.refuses_to_start()
    assert chaos.take(1, 5000, FaultKind.KILL) is None
    assert chaos.take(2, 950, FaultKind.KILL) is None
    assert chaos.take(2, 1000, FaultKind.HANG) is None
    assert chaos.take(2, 1000, FaultKind.HANG, FaultKind.KILL) is not None
    for later in (chaos, Chaos(faults, Ledger(ledger))):
        assert later.take(2, 1050, FaultKind.KILL) is None
    assert not later.refuses_to_start()


def test_random_faults_depend_on_the_seed_and_the_start(tmp_path, monkeypatch):
    def drawn(seed, start):
        ledger = tmp_path / f"{seed}-{start}"
        ledger.write_text("start\n" * (start - 1))
        chaos = Chaos(parse_faults(f"random@share=0.5,seed={seed}"), Ledger(ledger))
        kinds = []
        for race in range(1, 101):
            chaos.draw(race)
            fault = chaos.take(race, 10_000, *DRAWN_AT_RANDOM)
            kinds.append(fault and fault.kind)
        return kinds

    assert drawn(1, 1) == drawn(1, 1)
    assert drawn(1, 1) != drawn(1, 2) != drawn(2, 2)
    assert 30 < sum(kind is not None for kind in drawn(1, 1)) < 70
    monkeypatch.setattr(chaos_module, "DRAWN_AT_RANDOM", (FaultKind.SKIP_COUNTDOWN,))
    chaos = Chaos([Fault(FaultKind.RANDOM, share=1.0, seed=5)], Ledger(None))
    chaos.draw(3)
    assert chaos.take(3, 10_000, FaultKind.SKIP_COUNTDOWN) is None
    assert chaos.take(4, 0, FaultKind.SKIP_COUNTDOWN) is not None, "a countdown is that of the next race"
