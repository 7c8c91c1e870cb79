"""Parts of a race that reach the learner while it goes on: where it is cut, and what each part adds to those before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from trackmania_rl.race.policy import BatchDecision, PolicyDecision
from trackmania_rl.settings import Settings, shifts_of


class Fragment(NamedTuple):
    """Which part of its race a rollout is. Rows are the rollout's, from 0.

    The last rollout of a race brings all of it once more, for statistics and records; what of it is new is said here.

    Attributes:
        is_last: whether the race is over.
        race_row: which of the race's states is the first row.
        n_actions_before: so many of its actions came with earlier rollouts.
        first_row: the rows before this one are not needed.
        first_transition: transitions from the rows before this one came with earlier rollouts.
        end_transition: transitions from this row on come with later rollouts, which hold all of their actions.
    """

    is_last: bool
    race_row: int
    n_actions_before: int
    first_row: int
    first_transition: int
    end_transition: int

    @classmethod
    def whole(cls, n_actions: int) -> Fragment:
        """A race of so many actions, all of which is new."""
        return cls(True, 0, 0, 0, 0, n_actions)


@dataclass
class RaceInFragments:
    """How much of a race under way has been handed on.

    A transition is handed on together with the state that it leads to, `n_steps` actions later, so that the transitions
    of all fragments are those of the whole race. Each fragment begins with the rows that its first transition needs.

    Attributes:
        n_steps: the most actions that one transition spans, or that views of its state need.
        n_earlier_rows: how many earlier rows views look at.
        n_decided: actions chosen so far.
        n_actions: actions handed on.
        n_transitions: transitions handed on.
        last: the decisions of which the last one of this race is one, and its row there; None before the first.
    """

    n_steps: int
    n_earlier_rows: int = 0
    n_decided: int = 0
    n_actions: int = 0
    n_transitions: int = 0
    last: tuple[BatchDecision, int] | None = None

    @classmethod
    def of_settings(cls, settings: Settings) -> RaceInFragments:
        """A race of which nothing has been handed on."""
        views = (shifts_of(view.shift) for view in settings.observation.views.values())
        shifts = [*settings.game.frame_shifts, *(shift for view in views for shift in view)]
        # The last row's action and reward come with the next fragment.
        return cls(max(settings.replay.n_steps, max(shifts) + 1), n_earlier_rows=-min(shifts))

    def decided(self, decisions: BatchDecision, row: int) -> None:
        """Note a decision."""
        self.n_decided += 1
        self.last = decisions, row

    @property
    def last_decision(self) -> PolicyDecision | None:
        """What was decided last; None before the first decision."""
        if self.last is None:
            return None
        decisions, row = self.last
        action = decisions.actions[row]
        is_number = decisions.actions.ndim > 1
        return PolicyDecision(
            action.copy() if is_number else int(action), bool(decisions.is_greedy[row]), decisions.q_values[row].copy()
        )

    def begin_again(self) -> None:
        """Forget the race: it was lost with its game, and begins once more."""
        self.last = None
        self.n_decided = self.n_actions = self.n_transitions = 0

    @property
    def n_to_hand_on(self) -> int:
        """How many actions could be handed on while the game waits for a decision.

        They end at the last state in which one was made: the state in which the game waits may turn out to be the
        race's end, as a finish in that very moment shows with the next action only.
        """
        return self.n_decided - 1 - self.n_actions

    def cut(self) -> tuple[range, Fragment]:
        """Cut the race under way; there must be something to hand on.

        Returns:
            The states of the race that the rollout holds, and what of it is new.
        """
        first, last = self._first_row_needed(), self.n_decided - 1
        end_transition = max(self.n_transitions, last - self.n_steps + 1)
        fragment = Fragment(
            is_last=False,
            race_row=first,
            n_actions_before=self.n_actions - first,
            first_row=0,
            first_transition=self.n_transitions - first,
            end_transition=end_transition - first,
        )
        self.n_actions, self.n_transitions = last, end_transition
        return range(first, last + 1), fragment

    def end(self, n_actions: int) -> Fragment:
        """Say what of a race is new that has ended after `n_actions`, and is handed on as a whole."""
        return Fragment(
            is_last=True,
            race_row=0,
            n_actions_before=self.n_actions,
            first_row=self._first_row_needed(),
            first_transition=self.n_transitions,
            end_transition=n_actions,
        )

    def _first_row_needed(self) -> int:
        return max(0, self.n_transitions - self.n_earlier_rows)
