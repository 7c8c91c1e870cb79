"""The fault table of docs/long_runs.rst: each row is a fault that a game makes, and races that go on."""

import logging
import socket
import threading

import psutil
import pytest

from trackmania_rl.tmi_interaction.launchers.launcher import PortInUseError

TIMEOUT = {"tmi_protection_timeout_s": 4.0}
IMAGE = {"image_width_px": 16, "image_height_px": 12}


@pytest.mark.parametrize("changes", [{}, IMAGE], ids=["floats", "image"])
def test_races_go_on_in_the_same_game(make_player, caplog, changes):
    faults = ("skip_countdown@race=1", "miss@race=1", "late@race=3,time=1.0,seconds=0.5", "no_finish@race=4")
    player = make_player(";".join((*faults, "slow@race=5,factor=5", "miss@race=6,time=1.0")), **changes)
    races = [player.race() for _ in range(7)]
    assert [stats["race_finished"] for _, stats in races] == [True] * 7
    assert len({results["race_time"] for results, _ in races}) == 1
    assert player.manager.game_starts == 1
    n_actions = [len(results["actions"]) for results, _ in races]
    assert sorted(n_actions) == [n_actions[-1] - 1] * 2 + [n_actions[-1]] * 5, "a missed step makes one action longer"
    assert caplog.text.count("came 50 ms late") == 2


LOST = "lost (attempt 1 of 3)"
GAME_REPLACED = (
    ("kill@race=1,time=0.05", "closed the connection|Connection reset"),
    ("kill@race=2,time=1.0", "closed the connection|Connection reset"),
    ("disconnect@race=2,time=1.0", "closed the connection|Connection reset"),
    ("garbage@race=2,time=1.0", "sent message id|announced"),
    ("hang@race=2,time=1.0", "silent for 4 s"),
    ("no_frame@race=2,time=1.0", "silent for 4 s"),
    ("bad_state@race=2,time=0.5", "not finite"),
)
"""Faults that cost the game: (fault, the log's reason)."""


def test_the_game_is_replaced_and_the_race_played_anew(make_player, caplog):
    player, n_faults = (
        make_player(";".join(fault for fault, _ in GAME_REPLACED), **TIMEOUT, **IMAGE),
        len(GAME_REPLACED),
    )
    with caplog.at_level(logging.WARNING):
        races = [player.race() for _ in range(n_faults + 2)]
    assert [stats["race_finished"] for _, stats in races] == [True] * len(races)
    assert len({results["race_time"] for results, _ in races}) == 1, "a race that was lost leaves nothing behind"
    assert player.manager.game_starts == 1 + n_faults
    lost = [record.getMessage() for record in caplog.records if LOST in record.getMessage()]
    assert len(lost) == n_faults
    for fault, reasons in GAME_REPLACED:
        told = next((text for text in lost if any(reason in text for reason in reasons.split("|"))), None)
        assert told is not None, f"{fault}: {lost}"
        lost.remove(told)


def test_a_game_that_refuses_to_start_twice_is_started_three_times(make_player, caplog):
    player = make_player("refuse@starts=2")
    assert player.race()[1]["race_finished"]
    assert player.manager.game_starts == 3
    assert "ended while starting up: error: it refuses to start" in caplog.text


def test_a_port_that_is_taken_is_an_error_at_first_and_waited_for_later(make_player):
    player = make_player()
    address = ("127.0.0.1", player.port)
    with socket.create_server(address), pytest.raises(PortInUseError, match=f"port {player.port} is in use"):
        player.race()
    player.race()
    player.manager.close()
    with socket.create_server(address) as squatter:
        threading.Timer(1.0, squatter.close).start()
        assert player.race()[1]["race_finished"]


def test_a_game_that_becomes_slow_is_replaced_between_races(make_player, caplog, monkeypatch):
    monkeypatch.setattr(psutil, "cpu_percent", lambda: 0.0)  # games are not judged on a busy machine
    player = make_player("slow@race=8,factor=20", game_reboot_below_speed_share=0.5)
    while player.manager.game_starts < 2:
        assert player.race()[1]["race_finished"]
    assert "of its best speed" in caplog.text
    assert "lost" not in caplog.text
