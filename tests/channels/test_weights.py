"""SharedWeights: versions, copies, processes, and a reader that dies at a bad moment."""

import multiprocessing

import pytest
import torch
from torch import nn

from trackmania_rl.agents.flat_parameters import flatten_parameters
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


@pytest.fixture
def dead_reader(monkeypatch):
    """Shared weights whose lock was taken by somebody who will not give it back."""
    monkeypatch.setattr(shared_weights, "LOCK_TIMEOUT_S", 0.05)
    shared = SharedWeights(network_of(1.0), SPAWN)
    shared._lock.acquire()
    return shared


def test_a_reader_that_cannot_lock_keeps_its_weights(dead_reader):
    reader = network_of(0.0)
    assert dead_reader.pull_if_newer(reader, 0) == 0
    assert values(reader) == {0.0}


def test_the_publisher_takes_a_dead_readers_lock_over(dead_reader):
    dead_reader.publish(network_of(2.0))
    reader = network_of(0.0)
    assert dead_reader.pull_if_newer(reader, 0) == 2
    assert values(reader) == {2.0}
