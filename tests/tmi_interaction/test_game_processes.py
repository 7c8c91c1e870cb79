"""Which process is the game just started: by mark, by port, by descent, or because nothing else is new."""

import dataclasses
import itertools
import os

import psutil
import pytest

from trackmania_rl.tmi_interaction.launchers.game_processes import (
    SAME_START_WITHIN_S,
    GameProcess,
    Launch,
    ProcessIdentity,
    find_started,
    identity_of,
    list_games,
    open_process,
)

LAUNCH = Launch(port=8478, mark="ours", starter_pid=500, at_s=1000.0, before=frozenset({ProcessIdentity(41, 900.0)}))


def game(pid, created_at_s=1003.0, **known):
    return GameProcess(ProcessIdentity(pid, created_at_s), **known)


def pids(*games):
    return [found.identity.pid for found in find_started(LAUNCH, games)]


def test_nothing_new_is_nothing():
    assert pids() == []
    assert pids(game(41, 900.0)) == []  # ran before
    assert pids(game(42, 990.0)) == []  # began before, although it was not seen


def test_a_number_used_again_is_another_process():
    assert pids(game(41, 1003.0)) == [41]


@pytest.mark.parametrize(
    "evidence",
    [
        {"mark": "ours"},
        {"command_line": "TmForever.exe /configstring=set custom_port 8478"},
        {"command_line": 'Z:\\games\\TmForever.exe "/configstring=set custom_port 8478"'},
        {"ancestors": (510, 500, 1)},
        {},
    ],
)
@pytest.mark.parametrize(
    "of_another",
    [
        {"mark": "theirs"},
        {"command_line": "/configstring=set custom_port 8479"},
        {"command_line": "/configstring=set custom_port 84780"},
        {"mark": "theirs", "command_line": "set custom_port 8478"},
        {"mark": "theirs", "ancestors": (500,)},
    ],
)
def test_a_game_of_another_launcher_is_never_taken(evidence, of_another):
    for order in itertools.permutations((game(7, **evidence), game(8, **of_another), game(41, 900.0))):
        assert pids(*order) == [7]


def test_better_evidence_wins():
    kinds = [{}, {"ancestors": (500,)}, {"command_line": "custom_port 8478"}, {"mark": "ours"}]
    games = [game(10 + rank, **known) for rank, known in enumerate(kinds)]
    for n in range(1, len(games) + 1):
        for order in itertools.permutations(games[:n]):
            assert pids(*order) == [10 + n - 1]


def test_what_cannot_be_told_apart_is_all_returned():
    assert pids(game(7), game(8)) == [7, 8]
    assert pids(game(7, ancestors=(500,)), game(8, ancestors=(500,)), game(9)) == [7, 8]


def test_open_process_knows_a_process_from_a_later_one_of_its_number():
    own = identity_of(psutil.Process())
    process = open_process(own)
    assert process is not None
    assert process.pid == os.getpid()
    assert open_process(ProcessIdentity(own.pid, own.created_at_s - 2 * SAME_START_WITHIN_S)) is None
    assert open_process(ProcessIdentity(2**22 + 1, 0.0)) is None


def test_a_process_stays_the_same_one_when_the_clock_is_set():
    own = identity_of(psutil.Process())
    for step_s in (-30.0, 30.0):
        process = open_process(ProcessIdentity(own.pid, own.created_at_s + step_s))
        assert process is not None
        assert process.pid == os.getpid()
    launch = dataclasses.replace(LAUNCH, before=frozenset({ProcessIdentity(41, 990.0)}))
    assert find_started(launch, [game(41, 1003.0)]) == []


def test_no_process_of_this_machine_is_a_game_by_mistake():
    assert os.getpid() not in [found.identity.pid for found in list_games()]
