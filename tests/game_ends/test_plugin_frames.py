"""A frame of a frozen game shows the step in which it was frozen, whatever the game does that is not known."""

import pytest
from plugin_game import Unknowns
from raw_client import FAST, FREEZE, GET_STATE, GIVE_UP, UP, RawClient, int32s

from trackmania_rl.protocol.state_blob import StateView

WIDTH_PX, HEIGHT_PX = 16, 12
REQUEST = int32s(17, WIDTH_PX, HEIGHT_PX)
N_ACTIONS = 40
"""Fast enough in the end, and short of the finish."""
GOES_ON = [Unknowns(speed_waits=True, step_before_tick=before, ticks_per_frame=7) for before in (False, True)]


@pytest.fixture
def begin(make_played, straight_track):
    """`begin(Unknowns(...))`: a game with our plugin, and a client at race time 0."""

    def make(unknowns: Unknowns):
        played = make_played(straight_track, unknowns=unknowns)
        client = played.connect()
        client.begin_race()
        return played, client

    return make


def take_frame(client: RawClient) -> bytes:
    assert client.ints(1) == (4,)
    return client.read(WIDTH_PX * HEIGHT_PX * 4)


def drive_and_look(client: RawClient, n_actions: int):
    """Full throttle from the step at hand on; yields what race and frame were at each step."""
    for k in range(n_actions):
        client.send(FREEZE, REQUEST, int32s(1))
        frame = take_frame(client)
        yield StateView(client.ask(GET_STATE)), frame
        client.send(UP, FAST, int32s(4))
        while (message := client.ints(2)) != (1, 50 * (k + 1)):
            assert message == (2, 1), "a checkpoint, but no other step"
            client.ints(1)
            client.send(int32s(2))


@pytest.mark.parametrize("unknowns", GOES_ON)
def test_ticks_of_a_frozen_game_are_undone_and_keys_stay_pressed(begin, unknowns):
    _, client = begin(unknowns)
    client.send(UP, FREEZE, REQUEST, int32s(1))
    take_frame(client)
    assert StateView(client.ask(GET_STATE)).race_time_ms == 0
    client.send(FAST, int32s(4))
    while client.next_step() < 500:
        client.send(int32s(1))
    assert StateView(client.ask(GET_STATE)).velocity_m_s[2] > 1


@pytest.mark.parametrize("unknowns", GOES_ON)
def test_a_race_given_up_while_it_freezes_is_not_brought_back(begin, unknowns):
    _, client = begin(unknowns)
    client.send(GIVE_UP, FREEZE, REQUEST, int32s(1))
    while (message := client.ints(1)) != (4,):
        assert message == (1,)
        client.ints(1)
        client.send(int32s(1))
    client.read(WIDTH_PX * HEIGHT_PX * 4)
    assert StateView(client.ask(GET_STATE)).race_time_ms < 0


@pytest.mark.parametrize("is_late", [False, True])
def test_frames_show_their_step_and_it_is_found_out_whether_they_come_late(begin, caplog, is_late):
    played, client = begin(Unknowns(frame_is_late=is_late))
    captures_before, found_at = 0, []
    for k, (_, frame) in enumerate(drive_and_look(client, N_ACTIONS)):
        assert frame == played.race.render(WIDTH_PX, HEIGHT_PX).tobytes(), f"frame {k}"
        if played.game.captures - captures_before == 1:
            found_at.append(k)
        captures_before = played.game.captures
    if is_late:
        assert found_at == []
        assert caplog.text.count("frames come one late") == 1
    else:
        assert found_at == list(range(found_at[0], N_ACTIONS)), "once known, a single frame is drawn for each step"
        assert "frames come one late" not in caplog.text


def test_frames_of_a_standing_car_tell_nothing(begin):
    played, client = begin(Unknowns(frame_is_late=True))
    for k in range(1, 11):
        client.send(FREEZE, REQUEST, int32s(1))
        assert take_frame(client) == played.race.render(WIDTH_PX, HEIGHT_PX).tobytes()
        assert played.game.captures == 2 * k
        client.send(FAST, int32s(4))
        assert client.next_step() == 50 * k
