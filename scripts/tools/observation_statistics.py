"""Measure mean and standard deviation of every float of the observation, and write them as state_normalization.py.

The floats come from random races, from inputs files and replays (--inputs), or from the replay memory in a run's
checkpoint (--run). Random races are slow and end soon: prefer a good driver's. Put the file beside the configuration of
a new run.

Examples:
  python scripts/tools/observation_statistics.py --races 200 --output my_config/state_normalization.py
  python scripts/tools/observation_statistics.py --inputs save/simulated/best_runs/valley_25460/valley_25460.inputs \
      --map valley --output my_config/state_normalization.py
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # if not installed

from trackmania_rl.cli import command, whole_number, writing
from trackmania_rl.errors import UserError
from trackmania_rl.paths import PROJECT_FOLDER
from trackmania_rl.settings import DemonstrationEntry, Settings, load_settings
from trackmania_rl.settings.game import RACES

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from trackmania_rl.race.observation import ObservationLayout
    from trackmania_rl.race.spaces import Spaces

States = npt.NDArray[np.float32]
"""(n, F) state floats."""
MOST_NAMED = 8
"""Most maps, or blocks with constant floats, in a message."""


@command
def main(words: Sequence[str] | None = None) -> None:
    from trackmania_rl.race.observation import ObservationLayout, normalization_text

    arguments = parse_arguments(words)
    output: Path = arguments.output
    if output.exists() and not arguments.force:
        raise UserError(f"{output} is there already: name another file with --output, or add --force to replace it")
    if arguments.run is None:
        settings = load_settings(arguments.config, arguments.set)
        states, measured = of_races(settings, arguments)
    else:
        settings, states, measured = of_memory(arguments.run)
    layout = ObservationLayout(settings.observation, settings.game.actions)
    text = normalization_text(layout, states, settings.observation, f"Measured in {measured}.")
    with writing(output):
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(text, encoding="utf-8")
    print(f"wrote {output}: {measured}{constant_floats(layout, states)}")


def parse_arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--output", type=Path, required=True, metavar="FILE", help="the file to write")
    add("--force", action="store_true", help="replace the file")
    add("--config", type=Path, default=PROJECT_FOLDER / "config_files" / "config.py", help="configuration file")
    add("--set", action="append", default=[], metavar="NAME=VALUE", help="override a setting; may be repeated")
    add("--races", type=whole_number(1), default=100, metavar="N", help="races at random (default %(default)s)")
    maps = "a map of the map cycle, a track file, or generated:0.5:0-99; may be repeated (default: the map cycle)"
    add("--map", action="append", default=[], metavar="NAME", help=maps)
    source = parser.add_mutually_exclusive_group()
    given = "drive these inputs files or replays, on the one --map, in place of races at random"
    source.add_argument("--inputs", type=Path, nargs="+", default=[], metavar="FILE", help=given)
    source.add_argument("--run", type=Path, metavar="RUN", help="take the states in this run's checkpoint instead")
    return parser.parse_args(words)


def of_races(settings: Settings, arguments: argparse.Namespace) -> tuple[States, str]:
    """Drive races; return their states and a description."""
    from trackmania_rl.games.protocol import rollout
    from trackmania_rl.games.race_games import RaceGames
    from trackmania_rl.seeds import SeedTree
    from trackmania_rl.track.named_maps import map_entries
    from trackmania_rl.training.demonstrations import load_demonstrations, replayed

    maps_folder = PROJECT_FOLDER / settings.game.maps_folder
    seeds, builder = SeedTree(settings.run.seed), RaceGames(settings)
    with tempfile.TemporaryDirectory() as tracks_folder:
        entries = map_entries(settings, maps_folder, arguments.map, tracks_folder)
        if arguments.inputs and len(entries) != 1:
            raise UserError(f"--inputs: name the one map that they are driven on with --map; these are {len(entries)}")
        names = [DemonstrationEntry(map_name=entries[0].map_name, inputs=str(file)) for file in arguments.inputs]
        game = settings.game.model_copy(update={"demonstrations": tuple(names), "map_cycle": tuple(entries)})
        given = load_demonstrations(game, Path.cwd())
        games = builder.make_games(0, maps_folder, seeds.rng("observation statistics/games"))
        spaces, rng = builder.spaces, seeds.rng("observation statistics/actions")
        races = [(one.entry, one.actions) for one in given]
        if not given:
            longest = game.most_states
            numbers = range(arguments.races)
            races = [(entries[number % len(entries)], random_actions(spaces, rng, longest)) for number in numbers]
        with contextlib.closing(games):
            driven = (
                rollout(games, entry, functools.partial(replayed, acts, spaces.n_values)) for entry, acts in races
            )
            states = np.concatenate([race.columns["state_float"].copy() for race in driven])
    source = f"{len(given)} races by inputs" if given else f"{arguments.races} races at random"
    maps = ", ".join(entry.map_name for entry in entries[:MOST_NAMED]) + (", ..." if len(entries) > MOST_NAMED else "")
    return states, f"{len(states):,} states of {source} on {maps}"


def random_actions(spaces: Spaces, rng: np.random.Generator, n_actions: int) -> npt.NDArray[Any]:
    """Draw actions (n_actions, ...), each kept for ten decisions on average, nine of ten forwards."""
    spaces.action.seed(int(rng.integers(2**31)))
    actions: list[Any] = []
    while len(actions) < n_actions:
        accelerates = spaces.throttle_actions and rng.random() < 0.9
        action = rng.choice(spaces.throttle_actions) if accelerates else spaces.action.sample()
        actions += [action] * rng.geometric(0.1)
    return np.array(actions[:n_actions])


def of_memory(run_folder: Path) -> tuple[Settings, States, str]:
    """Return a run's settings, the states in its checkpoint, and a description."""
    from trackmania_rl.drivers.loading import load_run_settings
    from trackmania_rl.training.datasets import rows_of_run

    settings = load_run_settings(run_folder)
    if settings.game.games != RACES:
        raise UserError(f"{run_folder}: its environment is no race; its own bounds normalize its observations")
    states = rows_of_run(run_folder)["state_floats"].numpy()
    return settings, states, f"{len(states):,} states in the memory of {run_folder}"


def constant_floats(layout: ObservationLayout, states: States) -> str:
    """Describe the constant floats, except the time in the mini-race."""
    is_constant = states.min(axis=0) == states.max(axis=0)
    numbers = {block.name: int(is_constant[block.slice].sum()) for block in layout.row_blocks[1:]}
    blocks = [f"{number} of {name}" for name, number in numbers.items() if number > 0]
    if not blocks:
        return ""
    named = ", ".join(blocks[:MOST_NAMED]) + (", ..." if len(blocks) > MOST_NAMED else "")
    return f"; floats that never changed keep their standard deviation: {named}"


if __name__ == "__main__":
    sys.exit(main())
