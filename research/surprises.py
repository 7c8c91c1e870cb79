"""Where a trained driver is surprised: greedy races of a run, and where along the track their values suddenly fall.

    python research/surprises.py save/simulated --races 8

A value is the return that the driver expects, so along a greedy race in a game without chance value = reward + next
value. Where the right side is lower, the driver learns of something that it had not foreseen: as a rule the car has
touched a wall, or begun to slide, which it believed to miss by a little. Small differences of both signs are the
network's usual error. A surprise is a fall of more than --threshold seconds at one action.

The simulated game only. Race 1 is greedy throughout, the further ones begin with the forced actions of
scripts/evaluate.py; the same checkpoint gives the same races.
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from rich.console import Console
from rich.table import Table

PROJECT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(PROJECT))  # so that it runs from a checkout that is not installed, and from anywhere

from trackmania_rl.cli import command, whole_number  # noqa: E402
from trackmania_rl.errors import UserError  # noqa: E402
from trackmania_rl.games.in_process import InProcessGames  # noqa: E402
from trackmania_rl.games.protocol import rollout  # noqa: E402
from trackmania_rl.race.policy import ELAPSED_ACTIONS_FLOAT  # noqa: E402
from trackmania_rl.race.rewards import NO_ENGINEERED_REWARDS, race_rewards, state_potentials  # noqa: E402
from trackmania_rl.race.spaces import race_views  # noqa: E402
from trackmania_rl.schedules import linear  # noqa: E402
from trackmania_rl.settings import MapEntry  # noqa: E402
from trackmania_rl.track.named_maps import map_entries  # noqa: E402
from trackmania_rl.training.evaluation import (  # noqa: E402
    FORCED_START_ACTIONS,
    TrainedDriver,
    forced_actions,
    greedy_after,
    load_driver,
)

THRESHOLD_S = 0.05
"""A fall in value by less than this time is the network's usual error."""
STRETCH_M = 50
"""Surprises are summed up by stretches of the track of this length."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class WatchedRace:
    """One race.

    Attributes:
        race_time_ms: the finish time, or the time driven until the race was cut off.
        race_finished: whether the finish was reached.
        meters: (T - 1,) where each action but the last one began, from the start of the line.
        gains_s: (T - 1,) by how much the driver's expectations rose at each of these actions, in seconds of race time;
            negative where it was disappointed.
    """

    race_time_ms: int
    race_finished: bool
    meters: Floats
    gains_s: Floats

    def surprises_s(self, threshold_s: float) -> Floats:
        """(T - 1,) seconds lost where they are more than `threshold_s` at one action, else 0."""
        return np.where(self.gains_s < -threshold_s, -self.gains_s, 0.0)


def watch_race(driver: TrainedDriver, games: InProcessGames, entry: MapEntry, number: int) -> WatchedRace:
    """Drive race `number` (1 is greedy throughout) and compare each value with what came of it."""
    settings = driver.settings
    forced = forced_actions(driver.settings, driver.spaces, entry, number, FORCED_START_ACTIONS if number > 1 else 0)
    race = rollout(games, entry, lambda: greedy_after(forced, driver.actor))
    results, stats = race.rollout_results, race.end_race_stats
    rewards = race_rewards(
        results["state_float"],
        results["meters_advanced_along_centerline"],
        results.get("race_time"),
        places=games.layout,
        settings=settings.reward,
        engineered=NO_ENGINEERED_REWARDS,
        ms_per_action=settings.game.ms_per_action,
    )
    gamma = linear(settings.agent.gamma_schedule, driver.frames_total)
    rows = np.arange(len(results["state_float"]))
    views = race_views(games.layout, settings.game)
    frames, floats, actions = (results[name][None] for name in ("frames", "state_float", "actions"))
    images, later = views.look(frames, floats, actions, np.zeros_like(rows), rows)
    later[:, ELAPSED_ACTIONS_FLOAT] = 1  # the next state within the mini-race that began with this one
    values = results["q_values"].max(axis=1)  # (T,)
    later_values = driver.actor.act_batch(images, later).q_values.max(axis=1)  # (T + 1,)
    potentials = state_potentials(results["state_float"], places=games.layout, settings=settings.reward)
    shaped = rewards[:-1] + gamma * potentials[1:-1] - potentials[:-2]  # what values were learned of
    gains = shaped + gamma * later_values[1:-1] - values[:-1]
    gains[: len(forced)] = 0  # what is forced may well be a mistake, but it is no surprise
    start_m = results["meters_advanced_along_centerline"][0]
    return WatchedRace(
        race_time_ms=stats["race_time_ms"],
        race_finished=stats["race_finished"],
        meters=results["meters_advanced_along_centerline"][: len(gains)] - start_m,
        gains_s=gains.astype(np.float64) / (-settings.reward.constant_reward_per_ms * 1000),
    )


def watch(driver: TrainedDriver, maps_folder: Path, entry: MapEntry, n_races: int) -> Iterator[WatchedRace]:
    """Drive a map.

    Raises:
        UserError: if the map can't be used, or time costs nothing, so that values are no times.
    """
    if driver.settings.reward.constant_reward_per_ms >= 0:
        raise UserError("constant_reward_per_ms is not negative: values cannot be told as times")
    games = InProcessGames(1, driver.settings.game, driver.settings.observation, maps_folder)
    for number in range(1, n_races + 1):
        yield watch_race(driver, games, entry, number)


def stretches_table(races: list[WatchedRace], surprises_s: list[Floats]) -> Table:
    """How many surprises there are on each stretch of the track, and what they cost."""
    table = Table(title="surprises by stretch", title_justify="left")
    for heading in ("from, m", "races with one", "seconds per race"):
        table.add_column(heading, justify="right")
    length_m = max(race.meters.max() for race in races)
    borders_m = np.arange(0, length_m + STRETCH_M, STRETCH_M)
    lost_s = np.array(  # (races, stretches)
        [np.histogram(race.meters, borders_m, weights=s)[0] for race, s in zip(races, surprises_s, strict=True)]
    )
    for start_m, of_stretch_s in zip(borders_m[:-1], lost_s.T, strict=True):
        if of_stretch_s.any():
            table.add_row(f"{start_m:.0f}", f"{(of_stretch_s > 0).sum()}/{len(races)}", f"{of_stretch_s.mean():.2f}")
    return table


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("run", type=Path, metavar="RUN", help="the run's folder, save/{run_name}")
    add("--map", metavar="NAME", help="a map of the run or a track (default: the run's first map)")
    add("--checkpoint", type=Path, metavar="FILE", help="another checkpoint of this run (default: the newest)")
    add("--races", type=whole_number(1), default=8, metavar="N", help="how many races (default %(default)s)")
    add("--threshold", type=float, default=THRESHOLD_S, metavar="S", help="in seconds (default %(default)s)")
    return parser.parse_args()


@command
def main() -> None:
    """Run the command line."""
    arguments = parse_arguments()
    console = Console(highlight=False)
    torch.set_num_threads(1)
    driver = load_driver(arguments.run, arguments.checkpoint, "cpu")
    maps_folder = PROJECT / driver.settings.game.maps_folder
    entry = map_entries(driver.settings, maps_folder, [arguments.map] if arguments.map else ())[0]
    races = list(watch(driver, maps_folder, entry, arguments.races))
    finished_s = [race.race_time_ms / 1000 for race in races if race.race_finished]
    surprises_s = [race.surprises_s(arguments.threshold) for race in races]
    count = np.mean([(of_race_s > 0).sum() for of_race_s in surprises_s])
    lost_s = np.mean([of_race_s.sum() for of_race_s in surprises_s])
    console.print(stretches_table(races, surprises_s))
    median = f"median {statistics.median(finished_s):.2f} s" if finished_s else "no time"
    console.print(
        f"{entry.map_name} after {driver.frames_total:,} frames: {len(finished_s)} of {len(races)} races finished, "
        f"{median}; in a race {count:.1f} surprises, together {lost_s:.2f} s",
        soft_wrap=True,
    )


if __name__ == "__main__":
    sys.exit(main())
