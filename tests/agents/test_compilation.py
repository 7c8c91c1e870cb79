"""Compiler: what a run of weeks asks of it, which is to be compiled anew after each edit of the configuration."""

import functools
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from trackmania_rl.agents import compilation
from trackmania_rl.agents.compilation import Compiler

LIMIT_OF_TORCH = 8


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """What was compiled; the graphs are made and guarded as ever, but torch runs them as they are."""
    made: list[Any] = []

    def keep(graph: torch.fx.GraphModule, _: list[torch.Tensor]) -> Callable[..., Any]:
        made.append(graph)
        return graph.forward

    torch._dynamo.reset()  # forget what another test compiled
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=keep))
    with torch._dynamo.config.patch(recompile_limit=LIMIT_OF_TORCH):  # restored at the end
        yield made
    torch._dynamo.reset()


@pytest.fixture
def warnings_said(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level(logging.WARNING, logger=compilation.__name__)
    return lambda: [record.getMessage() for record in caplog.records if record.name == compilation.__name__]


def _plus_length(tensor: torch.Tensor, setting: str) -> torch.Tensor:
    return tensor + len(setting)


def _negative(tensor: torch.Tensor) -> torch.Tensor:
    return -tensor


def _results(function: Callable[[torch.Tensor, str], torch.Tensor], n_settings: int) -> list[float]:
    """Of a call with each of so many settings."""
    return [function(torch.zeros(3), "x" * length)[2].item() for length in range(n_settings)]


def test_beyond_the_limit_everything_runs_as_it_is_and_says_so_once(
    graphs: list[Any], warnings_said: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compilation, "MOST_COMPILATIONS", 3)
    compiler = Compiler()
    function, other = compiler.compiled(_plus_length), compiler.compiled(_negative)
    assert _results(function, 6) == list(range(6))
    assert other(torch.ones(2)).tolist() == [-1.0, -1.0]
    assert len(graphs) == 3
    (warning,) = warnings_said()
    assert "it was compiled 3 times" in warning
