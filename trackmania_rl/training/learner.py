"""The training loop: from a race to gradients, new weights and figures."""

from __future__ import annotations

import contextlib
import errno
import functools
import logging
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
from tensordict import TensorDictBase

from trackmania_rl.agents.agent import ProcessLosses
from trackmania_rl.channels.rollouts import POLL_S
from trackmania_rl.errors import UserError, is_logged, one_line, warn_once
from trackmania_rl.race.race import Race
from trackmania_rl.race.rewards import first_not_finite, reward_as_stored
from trackmania_rl.training.hooks.hook import Figures, Hook, Interval, RunContext
from trackmania_rl.training.updates import apply_schedules, publish_settings, publish_weights

log = logging.getLogger(__name__)

LEARNED_FROM: Final = ("state_float", "actions", "rewards", "meters_advanced_along_centerline")
"""Race columns that reach the replay memory, or that rewards are computed from."""
FRAMES_PER_ROUND: Final = 500
"""Frames per training loop round without collectors."""
MOST_REFUSED_IN_A_ROW: Final = 20
"""Consecutive refused races that end the run."""

Condition = Callable[[], bool]


def learn(
    run: RunContext,
    hooks: Sequence[Hook],
    should_stop: Condition = lambda: False,
    compilation: threading.Thread | None = None,
) -> None:
    """Train until the run ends.

    Args:
        run: the run's parts, after the checkpoint was loaded.
        hooks: act in order at each point.
        should_stop: returns whether the run ends.
        compilation: thread that compiles the update; the first update waits for the thread's end.
    """
    agent = run.agent
    memory = run.memory
    replay = run.replay
    tick = make_tick(run, hooks)
    changing_losses = [hook for hook in hooks if getattr(hook.on_losses, "__func__", None) is not Hook.on_losses]
    # A synchronous run ends between two turns.
    must_end: Condition = (lambda: False) if run.settings.takes_turns else should_stop

    for race in _races(run, hooks, lambda: run.stop_reason is not None or should_stop(), tick):
        if race is not None:  # a round without collectors has none
            with race, _guard(run, race):
                if not reward_race(run, race):
                    continue
                run.statistics.add(race)
                run.progress.add(race.facts)
                for hook in hooks:
                    act = hook.on_fragment if race.facts.is_under_way else hook.on_race
                    log_figures(run, act(race))
                if race.facts.fill_buffer:
                    replay.store(race)

        apply_schedules(run)
        run.resets.reset_if_due()
        for hook in hooks:
            hook.before_updates()
        while replay.is_batch_due and not must_end():
            if compilation is not None and compilation.is_alive():
                compilation.join(POLL_S)
                tick()
                continue
            batch = replay.draw()
            for hook in hooks:
                changed = hook.on_batch(batch)
                batch = batch if changed is None else changed
            losses = agent.update(batch, _process_losses(changing_losses, batch))
            memory.update_priority(batch)
            run.numbers.check(losses)
            for hook in hooks:
                log_figures(run, hook.on_update(batch, losses))
            if agent.updates % run.settings.sync.send_shared_network_every_n_batches == 0:
                run.numbers.require_sound_networks()
                agent.average_weights()
                if not run.settings.takes_turns:
                    publish_weights(run)
            tick()
        for hook in hooks:
            log_figures(run, hook.after_updates())
        if not run.settings.takes_turns:
            run.channels.run_state.publish(frames_total=run.statistics.frames_total)
        tick()
    run.is_within_turn = False


def reward_race(run: RunContext, race: Race) -> bool:
    """Compute a race's rewards. Refuse the race, and return False, if it has a non-finite number.

    Raises:
        UserError: if the reward has another form, or `MOST_REFUSED_IN_A_ROW` races are refused in a row.
    """
    columns: dict[str, Any] = {name: race.columns[name] for name in LEARNED_FROM if name in race.columns}
    for optional in ("q_values", "action_log_prob"):
        of_decisions = race.columns.get(optional)
        if of_decisions is not None and not np.isnan(of_decisions).all():  # some agents have none
            columns[optional] = of_decisions
    columns["meters"] = race.facts.meters
    if (name := first_not_finite(columns)) is not None:
        _refuse(run, race, name)
        return False
    given = run.reward(race.rollout_results(), run.settings, run.statistics.frames_total)
    rewarded = reward_as_stored(given, race.n_actions)
    if (name := first_not_finite(rewarded._asdict())) is not None:
        _refuse(run, race, name)
        return False
    race.rewards, race.potentials = rewarded
    run.statistics.races_refused_in_a_row = 0
    return True


@contextlib.contextmanager
def _guard(run: RunContext, race: Race) -> Iterator[None]:
    """Refuse a worker's race that raises an error. Other races are made by this machine's code."""
    try:
        yield
    except Exception as error:
        if race.facts.sequence == 0:
            raise
        _count_refused(run, race, f"it raises {type(error).__name__}: {one_line(error)}")


def make_tick(run: RunContext, hooks: Sequence[Hook]) -> Callable[[], None]:
    """Return a function that publishes edits and calls the hooks' `tick`, at most every `POLL_S`."""
    ticks = Interval()
    acts: list[Callable[[], object]] = [functools.partial(publish_settings, run), *(hook.tick for hook in hooks)]

    def tick() -> None:
        if not ticks.is_due(POLL_S):
            return
        run.statistics.observe(
            learner_waited_s=run.channels.rollouts.waited_s,
            replay_transitions=len(run.memory),
            replay_capacity=run.memory.capacity or 0,
        )
        for act in acts:
            try:
                act()
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE):
                    raise
                warn_once("too many open files: connections are refused, and files are not written", log)

    return tick


def log_figures(run: RunContext, figures: Figures | None) -> None:
    """Log the figures that a hook returned."""
    if figures:
        values = {name: float(value) for name, value in figures.items() if name != "log_pbar"}
        run.newest_figures |= values
        run.figures.log_hook_figures(values)
        if figures.get("log_pbar"):
            run.statistics.hook_figures |= values


def _process_losses(hooks: Sequence[Hook], batch: TensorDictBase) -> ProcessLosses | None:
    """Return the function with which hooks change losses; None without one, so the update stays compiled."""
    if not hooks:
        return None

    def process(losses: TensorDictBase) -> TensorDictBase:
        for hook in hooks:
            changed = hook.on_losses(batch, losses)
            losses = losses if changed is None else changed
        return losses

    return process


def _refuse(run: RunContext, race: Race, what: str) -> None:
    """Count a race with non-finite numbers. End the run if there are too many from this machine in a row."""
    reason = f"its {what} holds numbers that are not finite"
    _count_refused(run, race, reason)
    if race.facts.sequence > 0:  # a worker cannot end the run
        return
    run.statistics.races_refused_in_a_row += 1
    if run.statistics.races_refused_in_a_row >= MOST_REFUSED_IN_A_ROW:
        raise UserError(
            f"{MOST_REFUSED_IN_A_ROW} races in a row are refused, the last one on {race.facts.map_name} since "
            f"{reason}: mend what makes them (the environment, the reward or own floats)"
        )


def _count_refused(run: RunContext, race: Race, reason: str) -> None:
    run.statistics.races_refused += 1
    if is_logged(run.statistics.races_refused):
        log.warning(
            "a race of collector %d on %s is refused, since %s; races refused so far: %s",
            race.facts.collector,
            race.facts.map_name,
            reason,
            f"{run.statistics.races_refused:,}",
        )


def _races(
    run: RunContext, hooks: Sequence[Hook], should_stop: Condition, tick: Callable[[], None]
) -> Iterator[Race | None]:
    """Yield races until the run ends; None for each round in a run without collectors."""
    if not run.has_collectors:
        yield None  # updates that a resumed run has left
        while not should_stop():
            run.statistics.frames_total += FRAMES_PER_ROUND
            run.replay.add_stored(FRAMES_PER_ROUND)
            yield None
    elif run.settings.takes_turns:
        yield from _races_of_turns(run, hooks, should_stop, tick)
    else:
        while not should_stop():
            race = run.channels.rollouts.get(POLL_S)
            if race is None:
                tick()
            else:
                yield race


def _races_of_turns(
    run: RunContext, hooks: Sequence[Hook], should_stop: Condition, tick: Callable[[], None]
) -> Iterator[Race]:
    """Yield each turn's races in collector order; collectors play at the same time.

    Weights and frames are published between two turns only.
    """
    rollouts = run.channels.rollouts
    collectors = range(run.settings.game.n_collectors)
    while not should_stop():
        publish_weights(run)
        for hook in hooks:
            hook.begin_turn()
        run.is_within_turn = True
        for collector in collectors:
            rollouts.give_turn(collector, run.n_turns)
        early: defaultdict[int, deque[Race]] = defaultdict(deque)
        for collector in collectors:
            yield from _races_of_turn(run, collector, early, tick)
        run.n_turns += 1
        run.is_within_turn = False


def _races_of_turn(
    run: RunContext, collector: int, early: Mapping[int, deque[Race]], tick: Callable[[], None]
) -> Iterator[Race]:
    """Yield the races from one collector's turn. Other races wait in `early`."""
    rollouts = run.channels.rollouts
    while True:
        is_at_turn = rollouts.is_at_turn(collector)
        while early[collector]:
            yield early[collector].popleft()
        race = rollouts.get(POLL_S if is_at_turn else 0.0)
        if race is not None:
            early[race.facts.collector].append(race)
        elif is_at_turn:
            tick()
        else:
            break
