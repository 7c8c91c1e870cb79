"""The executed plugin alone: its ports, its frames, and what TMInterface's sockets do not tell it."""

import itertools
import socket
import time

import pytest
from plugin_game import Unknowns
from raw_client import FAST, FREEZE, GET_STATE, GIVE_UP, UP, WITHOUT_STEPS, RawClient, int32s, wait_until

from trackmania_rl.protocol import messages
from trackmania_rl.protocol.messages import LINK_VERSION
from trackmania_rl.protocol.state_blob import StateView
from trackmania_rl.tmi_interaction.greeting import Greeting, GreetingAttempt
from trackmania_rl.tmi_interaction.launchers.launcher import find_free_port
from trackmania_rl.tmi_interaction.launchers.plugin_files import PLUGIN_FILE, read_version
from trackmania_rl.tmi_interaction.tminterface2 import TMInterface
from trackmania_rl.tmi_interaction.transport import GameConnectionError

WIDTH_PX, HEIGHT_PX = 16, 12
REQUEST = int32s(17, WIDTH_PX, HEIGHT_PX)


def accepts_connections(port):
    with socket.socket() as probe:
        probe.settimeout(60.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0


# Ports.


def test_a_starting_game_never_listens_at_the_port_of_its_last_session(make_played, caplog):
    stale = find_free_port()
    played = make_played(startup_frames=100, stored_variables={"custom_port": stale})
    while not accepts_connections(played.port):
        assert not accepts_connections(stale)
    assert not accepts_connections(stale)
    assert f"listening on 127.0.0.1:{played.port}" in caplog.text
    played.connect()


def test_a_port_in_use_is_named_once_and_tried_again(make_played, caplog):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        make_played(commands_after_startup=(f"set custom_port {port}",))
        wait_until(lambda: f"cannot listen on port {port}" in caplog.text)
        time.sleep(1.2)  # it tries every second
        assert caplog.text.count("cannot listen") == 1
    RawClient(port).send(int32s(13))


# Clients.


def test_a_disabled_plugin_closes_its_sockets(plugin_client, played):
    plugin_client.send(WITHOUT_STEPS, int32s(1))
    played.game.is_stopping = True
    assert plugin_client.is_hung_up_on()
    wait_until(lambda: played.game.host.counters().open_sockets == 0)


def test_a_frozen_game_whose_client_vanished_moves_again(plugin_client, played):
    plugin_client.send(FREEZE, messages.pack_set_timeout(200), int32s(17, 4, 3), int32s(1))
    assert plugin_client.ints(1) == (4,)
    assert played.game.speed == 0
    assert plugin_client.is_hung_up_on()
    wait_until(lambda: played.game.speed == 1)


def test_console_camera_interface_and_version_are_handed_on(plugin_client, played, caplog):
    camera_resets = played.game.camera_resets
    plugin_client.send(int32s(21, 0), int32s(18), messages.pack_command("cam 2"), int32s(1))
    assert plugin_client.next_step() == 50
    assert played.game.commands[-1] == "cam 2"
    assert played.game.camera_resets == camera_resets + 1
    assert played.game.interface_shown is False
    assert played.game.host.run_custom_command(messages.LINK_VERSION_COMMAND)
    assert f"listening on port {played.port}, a client is connected" in caplog.text


# The version, and greetings.


def test_our_client_learns_the_version_of_our_plugin(make_played):
    client = TMInterface(make_played().port, timeout_s=60)
    client.next_event()
    assert client.plugin_version() == read_version(PLUGIN_FILE)
    assert client.is_in_menus()
    client.close()


def test_a_new_game_runs_the_commands_of_its_greeting_before_the_goodbye(make_played):
    played = make_played()
    greeting, attempt = None, None
    while greeting is None:
        try:
            attempt = attempt or GreetingAttempt(played.port)
            greeting = attempt.look(("set countdown_speed 7",))
        except GameConnectionError:  # it does not listen yet
            time.sleep(0.01)
    assert greeting == Greeting(LINK_VERSION, is_in_menus=True)
    assert played.simulated.countdown_speed == 7.0


# A frame of a frozen game shows the step in which it was frozen.


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


@pytest.mark.parametrize("step_before_tick", [False, True])
def test_ticks_of_a_frozen_game_are_undone_and_a_race_given_up_stays_so(begin, step_before_tick):
    _, client = begin(Unknowns(speed_waits=True, step_before_tick=step_before_tick, ticks_per_frame=7))
    client.send(UP, FREEZE, REQUEST, int32s(1))
    take_frame(client)
    assert StateView(client.ask(GET_STATE)).race_time_ms == 0
    client.send(FAST, int32s(4))
    while client.next_step() < 500:
        client.send(int32s(1))
    assert StateView(client.ask(GET_STATE)).velocity_m_s[2] > 1, "the key stayed pressed"
    client.send(GIVE_UP, FREEZE, REQUEST, int32s(1))
    while (message := client.ints(1)) != (4,):
        assert message == (1,)
        client.ints(1)
        client.send(int32s(1))
    client.read(WIDTH_PX * HEIGHT_PX * 4)
    assert StateView(client.ask(GET_STATE)).race_time_ms < 0


@pytest.mark.parametrize("is_late", [False, True])
def test_frames_show_their_step_and_late_ones_are_found_out_once_the_car_moves(begin, caplog, is_late):
    played, client = begin(Unknowns(frame_is_late=is_late))
    captures = [played.game.captures]
    for k in range(50):
        client.send(FREEZE, REQUEST, int32s(1))
        assert take_frame(client) == played.race.render(WIDTH_PX, HEIGHT_PX).tobytes(), f"frame {k}"
        captures.append(played.game.captures)
        client.send(UP if k >= 10 else b"", FAST, int32s(4))
        while (message := client.ints(2)) != (1, 50 * (k + 1)):
            assert message == (2, 1), "a checkpoint, but no other step"
            client.ints(1)
            client.send(int32s(2))
    n_drawn = [after - before for before, after in itertools.pairwise(captures)]
    assert n_drawn[1:10] == [2] * 9, "frames of a standing car say nothing"
    assert n_drawn[-1] == (2 if is_late else 1), "once known to be on time, a single frame is drawn for each step"
    assert n_drawn == sorted(n_drawn, reverse=True)
    assert caplog.text.count("frames come one late") == is_late
