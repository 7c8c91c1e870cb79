"""Channels in shared memory: between real processes, beside stopped or killed ones, and where memory is short."""

import copy
import os
import pickle
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.utils import parameters_to_vector

from trackmania_rl.agents.weights import hex_digest, packed
from trackmania_rl.channels import rollouts, run_state
from trackmania_rl.channels.rollouts import ChannelError, Rollouts, make_stop_flag
from trackmania_rl.channels.run_state import NO_WEIGHTS, SharedRunState, open_channels
from trackmania_rl.race.spaces import race_spaces
from trackmania_rl.settings import settings_from_flat

from .conftest import MAX_ACTIONS, SPACES, SPAWN, acquired, assert_is_race, got, network_of

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere segments are no files")


@pytest.fixture
def source():
    source = Rollouts(MAX_ACTIONS, SPACES, slots_per_collector=2, stop=make_stop_flag())
    yield source
    source.close()


def values(network):
    return set(parameters_to_vector(network.parameters()).tolist())


def edited(settings, running_speed):
    return settings_from_flat(settings.flat() | {"running_speed": running_speed})


def test_a_header_enters_its_pipe_whole_however_long_the_race(children, source, monkeypatch):
    sink = source.open_collector(0)
    headers = []
    monkeypatch.setattr(sink._link.headers_in, "send", headers.append)
    for n_actions in (2, 19):
        acquired(sink)
        race = children.make_race(1, n_actions)
        race.facts = race.facts.with_changes(inputs="0.00 press up\n" * 200 * n_actions)
        sink.put(0, race)
    sizes = [len(pickle.dumps(header)) for header in headers]
    assert max(sizes) < 4096, "what POSIX systems write to a pipe at once"
    assert abs(sizes[1] - sizes[0]) < 20


def test_a_race_beyond_the_bound_is_refused_by_name(children, source):
    sink = source.open_collector(0)
    acquired(sink)
    race, large = children.make_race(1, 4), children.make_race(1, 4)
    large.columns["state_float"] = np.zeros((30000, 5), dtype=np.float32)
    with pytest.raises(ChannelError, match=r"a rollout does not fit its shared-memory slot of \d+ bytes"):
        sink.put(0, large)
    sink.put(0, race)  # the slot is still good
    with got(source) as rollout:
        assert_is_race(rollout, race)


@on_linux
def test_too_little_shared_memory_is_refused_with_a_remedy(monkeypatch):
    monkeypatch.setattr(rollouts, "available_shared_memory_bytes", lambda: 3 * rollouts.slot_bytes(MAX_ACTIONS, SPACES))
    source = Rollouts(MAX_ACTIONS, SPACES, slots_per_collector=2, stop=make_stop_flag())
    source.open_collector(0)
    source.open_collector(0)  # replacing needs no more
    with pytest.raises(ChannelError, match=r"games_per_collector.*--shm-size=1g\)$"):
        source.open_collector(1)
    source.close()


@on_linux
def test_a_folder_that_cannot_be_written_to_is_told(monkeypatch):
    monkeypatch.setattr(run_state, "SHARED_MEMORY_FOLDER", Path("/proc/sys"))
    monkeypatch.setattr(os, "access", lambda folder, _: str(folder) != "/proc/sys")  # root may write anywhere
    with pytest.raises(ChannelError, match=r"^/proc/sys cannot be written to, and processes share their memory there"):
        open_channels(None, None, {})


@on_linux
def test_memory_of_channels_has_no_name_that_a_killed_process_could_leave(settings):
    before = set(os.listdir("/dev/shm"))
    channels = open_channels(settings, race_spaces(settings), {"exploration": network_of(1.0)})
    channels.rollouts.open_collector(0)
    assert set(os.listdir("/dev/shm")) <= before
    channels.rollouts.close()


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="kills a process as POSIX systems do")
def test_the_end_of_the_run_is_seen_whatever_becomes_of_the_process_that_asked_for_it(children, start):
    flag = make_stop_flag()
    assert not flag.value
    start(children.set_and_die, flag).join(60)
    assert flag.value


def _pull_and_answer(view, connection):
    network = network_of(0.0)
    for _ in range(2):
        connection.recv()  # the other side has published
        view.pull()
        version = view.pull_weights("evaluation", network, NO_WEIGHTS)
        connection.send((view.settings, view.frames_total, view.stop_requested, version, values(network)))


def test_another_process_sees_all_that_is_published(settings, start):
    uncompiled_shared_network = network_of(1.0)
    run_state = SharedRunState(settings, {"evaluation": uncompiled_shared_network})
    here, there = SPAWN.Pipe()
    run_state.publish(settings=edited(settings, 5.0), frames_total=3)
    start(_pull_and_answer, run_state, there)
    here.send("go")
    assert here.poll(60)
    assert here.recv() == (edited(settings, 5.0), 3, False, 1, {1.0})
    run_state.publish(
        settings=edited(settings, 6.0), frames_total=10**12, stop=True, weights={"evaluation": network_of(2.0)}
    )
    here.send("go")
    assert here.poll(60)
    assert here.recv() == (edited(settings, 6.0), 10**12, True, 2, {2.0})
    shared = uncompiled_shared_network.state_dict().values()
    assert all(tensor.is_shared() for tensor in shared), "the given network is one of the shared two"


def test_evaluation_weights_that_another_process_has_read_are_kept(settings, start):
    run_state = SharedRunState(settings, {"evaluation": network_of(0.0)})
    here, there = SPAWN.Pipe()
    start(_pull_and_answer, run_state, there)

    def digest(value):
        return hex_digest(packed(network_of(value)))

    def pull():
        here.send("go")
        assert here.poll(60)
        here.recv()

    run_state.publish(weights={"evaluation": network_of(1.0)})
    pull()
    for value in (2.0, 3.0):
        run_state.publish(weights={"evaluation": network_of(value)})
    pull()
    for value in (4.0, 5.0):
        run_state.publish(weights={"evaluation": network_of(value)})
    weights = run_state.weights["evaluation"]
    assert [weights.with_digest(digest(float(value))) is not None for value in range(6)] == [
        False,  # the first one, never read
        True,
        False,
        True,
        True,  # of the two slots
        True,
    ]
    assert torch.equal(weights.with_digest(digest(1.0)), packed(network_of(1.0)))
    assert weights.with_digest("") is None


class StopWriting(KeyboardInterrupt):
    pass


@pytest.mark.parametrize("what", ["settings", "weights"])
def test_half_written_files_are_not_read(settings, monkeypatch, what):
    published = SharedRunState(settings, {"evaluation": network_of(1.0)})
    view, reader = copy.copy(published), network_of(0.0)
    copy_all = torch.Tensor.copy_

    def copy_half(target, source):
        copy_all(target[: len(target) // 2], source[: len(source) // 2])
        raise StopWriting

    def publish(value):
        if what == "settings":
            published.publish(settings=edited(settings, value))
        else:
            published.publish(weights={"evaluation": network_of(value)})

    with monkeypatch.context() as patched:
        patched.setattr(torch.Tensor, "copy_", copy_half)
        with pytest.raises(StopWriting):
            publish(5.0)
    for late in (view, copy.copy(published)):
        late.pull()
        assert late.settings == settings
        assert late.pull_weights("evaluation", reader, NO_WEIGHTS) == 1
        assert values(reader) == {1.0}
    publish(7.0)
    view.pull()
    view.pull_weights("evaluation", reader, NO_WEIGHTS)
    assert (view.settings, values(reader)) == (
        (edited(settings, 7.0), {1.0}) if what == "settings" else (settings, {7.0})
    )


def test_weights_that_change_while_they_are_copied_are_copied_again(settings, monkeypatch):
    run_state = SharedRunState(settings, {"evaluation": network_of(1.0)})
    published = iter([network_of(2.0), network_of(3.0)])
    copy_all = torch.Tensor.copy_
    view, reader = copy.copy(run_state), network_of(0.0)

    def copy_slowly(target, source):
        copy_all(target, source)
        if source.is_shared() and (network := next(published, None)) is not None:
            run_state.publish(weights={"evaluation": network})
            target[: len(target) // 2] = 0

    monkeypatch.setattr(torch.Tensor, "copy_", copy_slowly)
    assert view.pull_weights("evaluation", reader, NO_WEIGHTS) == 3
    assert values(reader) == {3.0}


def _stop_while_copying(view):
    torch.Tensor.copy_ = lambda *_: os.kill(os.getpid(), signal.SIGSTOP)
    view.pull_weights("evaluation", network_of(0.0), NO_WEIGHTS)


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such signals")
def test_no_process_waits_for_a_reader_that_is_stopped_or_killed_while_it_copies(settings, children, start):
    run_state = SharedRunState(settings, {"evaluation": network_of(1.0)})
    reader = start(_stop_while_copying, run_state)
    children.wait_until_stopped(reader.pid)
    view, network = copy.copy(run_state), network_of(0.0)
    for version in range(2, 40):
        run_state.publish(weights={"evaluation": network_of(float(version))})
        assert view.pull_weights("evaluation", network, version - 1) == version
        if version == 20:
            os.kill(reader.pid, signal.SIGKILL)
            reader.join(60)
    assert values(network) == {39.0}


def test_a_machine_without_room_for_the_weights_is_told_so(settings, monkeypatch):
    def full(_):
        raise RuntimeError("unable to write to file </torch_1>:\nNo space left on device (28)")

    monkeypatch.setattr(torch.Tensor, "share_memory_", full)
    with pytest.raises(ChannelError, match=r"no room for the network's weights \(.* MB\): unable .* No space left"):
        SharedRunState(settings, {"evaluation": network_of(1.0)})
