"""RecordedStep: what is recorded when, played back into new tensors, and what happens where recording fails."""

import contextlib
import logging
from typing import NamedTuple

import pytest
import torch

from trackmania_rl.agents import recorded_step
from trackmania_rl.agents.recorded_step import WARM_UPS, RecordedStep


class Pair(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor | None


class FakeGraph:
    """Playing it back doubles what the recorded function read, as that function does."""

    def replay(self):
        inputs, output = FakeGraph.places
        output.copy_(2 * inputs)


@pytest.fixture
def without_gpu(monkeypatch):
    stream = type("Stream", (), {"wait_stream": lambda self, other: None})
    monkeypatch.setattr(torch.cuda, "Stream", stream)
    monkeypatch.setattr(torch.cuda, "current_stream", stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "CUDAGraph", FakeGraph)
    monkeypatch.setattr(torch.cuda, "graph", lambda graph, **kwargs: contextlib.nullcontext())


def test_it_runs_a_few_times_records_once_and_plays_back(without_gpu):
    calls, settings = [], [object()]

    def double(pair: Pair) -> Pair:
        calls.append(pair.first.shape)
        result = 2 * pair.first
        FakeGraph.places = pair.first, result
        return Pair(result, pair.second)

    step = RecordedStep(double, settings=lambda: settings[0])
    results = [step(Pair(torch.full((5,), float(number)), None)) for number in range(WARM_UPS + 4)]
    assert len(calls) == WARM_UPS + 1
    for number, result in enumerate(results):  # each in memory of its own
        assert torch.equal(result.first, torch.full((5,), 2.0 * number))
        assert result.second is None

    step(Pair(torch.zeros(7), None))  # another shape
    assert calls[-1] == (7,)
    settings[0] = object()
    step(Pair(torch.zeros(5), None))  # other settings
    assert len(calls) == WARM_UPS + 3


def test_where_recording_fails_it_says_so_once_and_runs_on(without_gpu, monkeypatch, caplog):
    def fail(graph, **kwargs):
        try:
            raise RuntimeError("operation not permitted when stream is capturing\nmore")
        finally:
            raise RuntimeError("a recording could not be ended")

    stream_of_before, streams = torch.cuda.Stream(), []
    monkeypatch.setattr(torch.cuda, "graph", fail)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream_of_before)
    monkeypatch.setattr(torch.cuda, "set_stream", streams.append)
    step = RecordedStep(lambda tensor: 2 * tensor, settings=lambda: None)
    with caplog.at_level(logging.WARNING, logger=recorded_step.__name__):
        results = [step(torch.tensor(float(number))).item() for number in range(WARM_UPS + 3)]
    assert results == [2.0 * number for number in range(WARM_UPS + 3)]
    (record,) = caplog.records
    assert record.message.endswith("operation not permitted when stream is capturing")
    assert streams == [stream_of_before]


@pytest.mark.gpu
def test_a_gpu_plays_back_what_it_recorded():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device here")
    total = torch.zeros(3, device="cuda")

    def add(tensor):
        total.add_(tensor)
        return total * 2

    step = RecordedStep(add, settings=lambda: None)
    for number in range(1, 9):
        result = step(torch.full((3,), float(number), device="cuda"))
    assert torch.equal(total, torch.full((3,), 36.0, device="cuda"))
    assert torch.equal(result, total * 2)
