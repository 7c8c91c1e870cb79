"""SharedWeights: versions, copies, processes, and readers that die at a bad moment."""

import multiprocessing
import os
import signal
import sys
import time

import pytest
import torch
from torch import nn

from trackmania_rl.agents.flat_parameters import flatten_parameters
from trackmania_rl.channels.protocols import ChannelError
from trackmania_rl.channels.shared_memory import weights as shared_weights
from trackmania_rl.channels.shared_memory.weights import SharedWeights

SPAWN = multiprocessing.get_context("spawn")


def network_of(value):
    network = nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.fill_(value)
    return network


def values(network):
    return set(flatten_parameters(network).tolist())


def test_only_newer_weights_are_pulled():
    shared = SharedWeights(network_of(1.0), SPAWN)
    reader = network_of(0.0)
    version = shared.pull_if_newer(reader, 0)
    assert (version, values(reader)) == (1, {1.0})

    reader = network_of(-1.0)
    assert shared.pull_if_newer(reader, version) == version
    assert values(reader) == {-1.0}

    assert shared.publish(network_of(2.0)) == 2
    assert shared.pull_if_newer(reader, version) == 2
    assert values(reader) == {2.0}


def test_a_machine_without_room_for_them_is_told_so(monkeypatch):
    def full(vector):
        raise RuntimeError("unable to write to file </torch_1>:\nNo space left on device (28)")

    monkeypatch.setattr(torch.Tensor, "share_memory_", full)
    with pytest.raises(ChannelError, match=r"no room for the network's weights \(.* MB\): unable .* No space left"):
        SharedWeights(network_of(1.0), SPAWN)


def test_the_given_network_is_the_shared_one():
    uncompiled_shared_network = network_of(1.0)
    SharedWeights(uncompiled_shared_network, SPAWN).publish(network_of(4.0))
    assert values(uncompiled_shared_network) == {4.0}


def _read_and_answer(shared, connection):
    torch.set_num_threads(1)
    reader = network_of(0.0)
    version = shared.pull_if_newer(reader, 0)
    connection.send((version, values(reader)))
    connection.recv()  # the other side has published
    version = shared.pull_if_newer(reader, version)
    connection.send((version, values(reader)))


def test_another_process_sees_what_is_published():
    shared = SharedWeights(network_of(1.0), SPAWN)
    here, there = SPAWN.Pipe()
    process = SPAWN.Process(target=_read_and_answer, args=(shared, there), daemon=True)
    process.start()
    try:
        assert here.poll(60), "the reader did not answer within 60 s"
        assert here.recv() == (1, {1.0})
        shared.publish(network_of(3.0))
        here.send("published")
        assert here.poll(60), "the reader did not answer within 60 s"
        assert here.recv() == (2, {3.0})
        process.join(10)
        assert process.exitcode == 0
    finally:
        process.kill()


def test_a_copy_in_the_midst_of_which_somebody_publishes_is_not_taken(monkeypatch):
    shared = SharedWeights(network_of(1.0), SPAWN)
    published = iter([network_of(2.0), network_of(3.0)])
    clone = torch.Tensor.clone

    def clone_slowly(vector):
        copied = clone(vector)
        if (network := next(published, None)) is not None:
            shared.publish(network)
            copied[: len(copied) // 2] = flatten_parameters(network)[: len(copied) // 2]
        return copied

    monkeypatch.setattr(torch.Tensor, "clone", clone_slowly)
    reader = network_of(0.0)
    assert shared.pull_if_newer(reader, 0) == 3
    assert values(reader) == {3.0}


def test_a_reader_that_finds_a_publication_half_done_keeps_its_weights(monkeypatch):
    monkeypatch.setattr(shared_weights, "LOOK_AGAIN_AFTER_S", 0.0)
    shared = SharedWeights(network_of(1.0), SPAWN)
    shared._begun.value += 1  # the learner was stopped, or killed, as it copied
    reader = network_of(0.0)
    assert shared.pull_if_newer(reader, 0) == 0
    assert values(reader) == {0.0}


def _stop_while_copying(shared, connection):
    torch.set_num_threads(1)

    def clone(_):
        connection.send("in the midst")
        time.sleep(600)

    torch.Tensor.clone = clone
    shared.pull_if_newer(network_of(0.0), 0)


@pytest.mark.parametrize("number", ["SIGSTOP", "SIGKILL"])
@pytest.mark.skipif(sys.platform == "win32", reason="there are no such signals")
def test_a_reader_that_is_stopped_or_killed_in_the_midst_of_a_copy_holds_up_nobody(number):
    shared = SharedWeights(network_of(1.0), SPAWN)
    here, there = SPAWN.Pipe()
    process = SPAWN.Process(target=_stop_while_copying, args=(shared, there), daemon=True)
    process.start()
    try:
        assert here.poll(60), "the reader did not begin within 60 s"
        os.kill(process.pid, getattr(signal, number))
        began_s = time.monotonic()
        reader = network_of(0.0)
        for version in range(2, 100):
            shared.publish(network_of(float(version)))
            assert shared.pull_if_newer(reader, version - 1) == version
        assert values(reader) == {99.0}
        assert time.monotonic() - began_s < 5, "it takes milliseconds, and would take a lock's timeout"
    finally:
        process.kill()
