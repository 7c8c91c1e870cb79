"""Decisions for games in threads of their own: one thread answers all games that wait with one pass of the network.

A game waits for its own answer only. The answering thread waits a little for games that are about to come, because one
pass through the network costs nearly the same for one state as for many; for a game that is slow, restarts or hangs it
waits once, and then no more until that game asks again.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from trackmania_rl.race.policy import BatchDecision, PolicyDecision

RaceT = TypeVar("RaceT")


class StopCollecting(Exception):  # noqa: N818  # not an error: the run ends
    """Raised out of a race when the run ends while it is driven."""


@dataclass(frozen=True, slots=True)
class Question(Generic[RaceT]):
    """A state of one game that waits for its decision.

    Attributes:
        game: who asks.
        race: what the game is driving, by which the decision is made.
        image: (S, H, W) uint8, the newest of S frames last.
        floats: (F,) float32.
    """

    game: int
    race: RaceT
    image: npt.NDArray[np.uint8]
    floats: npt.NDArray[np.float32]


class DecisionDesk(Generic[RaceT]):
    """Brings questions to the one thread that decides, and answers back.

    Args:
        n_games: whose numbers are 0 to n_games - 1; each has one question at a time.
    """

    def __init__(self, n_games: int) -> None:
        self._inbox: queue.SimpleQueue[Question[RaceT] | Exception] = queue.SimpleQueue()
        self._answers: list[queue.SimpleQueue[PolicyDecision | None]] = [queue.SimpleQueue() for _ in range(n_games)]
        self._on_time: set[int] = set()  # games that answered within the patience last time
        self._is_closed = threading.Event()

    def ask(self, question: Question[RaceT]) -> PolicyDecision:
        """Hand in a question and wait for its answer.

        Raises:
            StopCollecting: if the desk closes before.
        """
        self._inbox.put(question)
        answer = self._answers[question.game].get()
        if answer is None:
            raise StopCollecting
        return answer

    def give_up(self, error: Exception) -> None:
        """Let `gather` raise an error: a game can't go on."""
        self._inbox.put(error)

    def pause(self, seconds: float) -> None:
        """Wait, in a game's thread.

        Raises:
            StopCollecting: if the desk closes meanwhile.
        """
        if self._is_closed.wait(seconds):
            raise StopCollecting

    def gather(self, timeout_s: float, patience_s: float) -> list[Question[RaceT]]:
        """The questions that have come, at most one of each game.

        Args:
            timeout_s: how long to wait for the first one; with none in time the list is empty.
            patience_s: how long to wait after that for the games that came promptly so far.

        Raises:
            Exception: what a game gave up with.
        """
        first = self._take(timeout_s)
        if first is None:
            return []
        gathered = [first]
        deadline_s = time.perf_counter() + patience_s
        missing = self._on_time - {first.game}
        while missing:
            question = self._take(max(deadline_s - time.perf_counter(), 0.0))
            if question is None:
                break
            gathered.append(question)
            missing.discard(question.game)
        while (question := self._take(0.0)) is not None:
            gathered.append(question)
        self._on_time = (self._on_time - missing) | {question.game for question in gathered}
        return gathered

    def answer(self, questions: Sequence[Question[RaceT]], decision: BatchDecision) -> None:
        """Answer questions; row i of the decision belongs to question i."""
        assert len(questions) == len(decision.actions) == len(decision.q_values)
        rows = zip(questions, decision.actions.tolist(), decision.is_greedy.tolist(), decision.q_values, strict=True)
        for question, action, is_greedy, q_values in rows:
            self._answers[question.game].put(PolicyDecision(action, is_greedy, q_values))

    def close(self) -> None:
        """Raise `StopCollecting` in every game that waits for an answer, or asks later."""
        self._is_closed.set()
        for answers in self._answers:
            answers.put(None)

    def _take(self, timeout_s: float) -> Question[RaceT] | None:
        try:
            item = self._inbox.get(timeout=timeout_s) if timeout_s > 0 else self._inbox.get_nowait()
        except queue.Empty:
            return None
        if isinstance(item, Exception):
            raise item
        return item
