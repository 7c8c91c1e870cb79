"""Games behind sockets, without sockets: who is waited for, who fails, hangs or comes back, and the end."""

import logging
import threading
import time

import numpy as np
import pytest

from trackmania_rl.errors import UserError
from trackmania_rl.games import socket_games
from trackmania_rl.games.socket_games import SocketGames
from trackmania_rl.race.actions import BatchDecision
from trackmania_rl.race.race import RaceFacts
from trackmania_rl.race.races import Observation
from trackmania_rl.tmi_interaction.game_instance_manager import GameKeepsFailingError

N_ACTIONS_IN_RACE = 5
N_FLOATS = 3


class FakeDriver:
    """Asks for as many decisions as a short race has, and remembers the answers."""

    def __init__(self, game):
        self.game = game
        self.actions = []
        self.before_race = lambda: None
        self.loses_at = None
        self.is_closed = False

    def rollout(self, map_entry, policy, frames):
        self.before_race()
        self.actions.append([])
        action = 0
        while action < N_ACTIONS_IN_RACE:
            self.newest = self._observation(action)
            image = np.full((1, self.game.image_height_px, self.game.image_width_px), action, dtype=np.uint8)
            self.actions[-1].append(policy(image, self.newest.floats).action)
            action += 1
            if action == self.loses_at:
                self.loses_at, action = None, 0
        return {"actions": np.array(self.actions[-1])}, RaceFacts.of_entry(map_entry).model_dump()

    def close(self):
        self.is_closed = True

    def _observation(self, action):
        frame = np.zeros((1, self.game.image_height_px, self.game.image_width_px), dtype=np.uint8)
        floats = np.full(N_FLOATS, action, dtype=np.float32)
        return Observation(frame, floats, floats, 7 + action, float(action), 50 * action, floats, 2.0 * action)


class Rig:
    """Games, and a loop that begins race after race in each of them and answers every state with its own number."""

    def __init__(self, settings, entry, n_games=3, *, all_together=False):
        self.drivers = [FakeDriver(settings) for _ in range(n_games)]
        self.games = SocketGames(self.drivers, all_together=all_together)
        self.entry = entry
        self.batches = []
        self.ended = []
        self.lost = []

    def begin_all(self):
        for game in range(self.games.n_games):
            self.games.begin(game, self.entry)

    def play_once(self):
        received = self.games.recv()
        n = len(received.ids)
        if n > 0:
            self.batches.append(received)
            actions = received.floats[:, 0].astype(np.int64)
            decision = BatchDecision(actions, np.ones(n, dtype=bool), np.zeros((n, 12), dtype=np.float32))
            self.games.send(received.ids, decision, policy_s=0.001)
        self.ended += received.ended
        self.lost += received.lost
        for game in (*received.ended, *received.lost):
            self.games.begin(game, self.entry)

    def play_until(self, is_over, within_s=60.0):
        deadline_s = time.monotonic() + within_s
        while not is_over():
            assert time.monotonic() < deadline_s, f"races ended: {self.ended}, lost: {self.lost}"
            self.play_once()


@pytest.fixture
def make_rig(make_settings, entry_of):
    """`make_rig(n_games=3)`; races are under way in all games, and are closed after the test."""
    rigs = []

    def make(n_games=3, begins=True, all_together=False):
        rigs.append(Rig(make_settings(True).game, entry_of("straight"), n_games, all_together=all_together))
        if begins:
            rigs[-1].begin_all()
        return rigs[-1]

    yield make
    for rig in rigs:
        rig.games.close()


def fail():
    raise GameKeepsFailingError("3 game instances in a row failed")


def test_each_game_gets_its_own_answers_and_every_race_comes_out(make_rig):
    rig = make_rig()
    rig.play_until(lambda: min(map(rig.ended.count, range(3))) >= 4 and any(len(r.ids) == 3 for r in rig.batches))
    for driver in rig.drivers:
        assert all(actions == [0, 1, 2, 3, 4] for actions in driver.actions[:4])
    for received in rig.batches:
        n = len(received.ids)
        assert len(set(received.ids.tolist())) == n
        assert received.images.shape == (n, 1, 30, 40)
        assert (received.images[:, 0, 0, 0] == received.floats[:, 0]).all()
        assert (received.is_first == (received.floats[:, 0] == 0)).all()


def test_all_games_are_waited_for_where_chance_must_not_decide(make_rig):
    rig = make_rig(all_together=True)
    rig.drivers[1].before_race = lambda: time.sleep(0.25)
    rig.drivers[2].loses_at = 3
    rig.play_until(lambda: len(rig.ended) >= 4)
    assert [received.ids.tolist() for received in rig.batches[:5]] == [[0, 1, 2]] * 5
    assert rig.ended[:2] == [0, 1], "the third game has lost three actions"
    for driver in rig.drivers:
        assert driver.actions[0] in ([0, 1, 2, 3, 4], [0, 1, 2, 0, 1, 2, 3, 4])


def test_a_game_that_hangs_holds_up_nobody_and_not_the_end(make_rig):
    rig = make_rig(begins=False)
    hangs = threading.Event()
    rig.drivers[1].before_race = hangs.wait
    rig.begin_all()
    rig.play_until(lambda: min(map(rig.ended.count, (0, 2))) >= 4)
    assert 1 not in rig.ended
    assert not rig.games.close(), "it does not wait for the game"
    hangs.set()


def test_a_game_that_keeps_failing_is_lost_after_a_while_and_may_try_another_race(make_rig, monkeypatch, caplog):
    monkeypatch.setattr(socket_games, "RETRY_FAILING_GAME_AFTER_S", 0.05)
    rig = make_rig(begins=False)
    failures = iter([fail, fail])
    rig.drivers[0].before_race = lambda: next(failures, lambda: None)()
    rig.begin_all()
    with caplog.at_level(logging.WARNING):
        rig.play_until(lambda: set(rig.ended) == {0, 1, 2})
    assert rig.lost == [0, 0]
    assert caplog.text.count("game 0 is tried again in 0.05 s: 3 game instances in a row failed") == 2


@pytest.mark.parametrize("n_games", [1, 3])
def test_when_no_game_plays_any_more_its_error_is_raised(make_rig, monkeypatch, n_games):
    monkeypatch.setattr(socket_games, "FIRST_GAME_WITHIN_S", 0.2)
    rig = make_rig(n_games, begins=False)
    for driver in rig.drivers:
        driver.before_race = fail
    rig.begin_all()
    with pytest.raises(GameKeepsFailingError):
        rig.play_until(lambda: False)
    assert rig.games.close()
    assert all(driver.is_closed for driver in rig.drivers)


def test_a_mistake_of_the_user_is_raised_and_another_race_may_begin(make_rig):
    rig = make_rig(begins=False)
    refusals = iter([UserError("port 8480 is in use")])

    def refuse_once():
        for error in refusals:
            raise error

    rig.drivers[2].before_race = refuse_once
    rig.begin_all()
    with pytest.raises(UserError, match="port 8480"):
        rig.play_until(lambda: False)
    rig.games.begin(2, rig.entry)
    rig.play_until(lambda: 2 in rig.ended)
