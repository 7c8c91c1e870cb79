"""Imitation of recorded races: record a race, train on it without a game, and evaluate the result.

    python examples/offline_training.py research/planner/records/valley.inputs --map valley

3000 updates take a minute or two. docs/datasets.rst has the commands for the same.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from trackmania_rl.drivers.evaluation import evaluate_map, load_driver
from trackmania_rl.experience_replay.dataset_environments import environment_spec
from trackmania_rl.experience_replay.episodes import DataSetForm
from trackmania_rl.experience_replay.minari_files import write_dataset
from trackmania_rl.games.in_process import InProcessGames
from trackmania_rl.paths import PROJECT_FOLDER
from trackmania_rl.race.rewards import RaceReward
from trackmania_rl.race.spaces import race_spaces
from trackmania_rl.run import train
from trackmania_rl.seeds import SeedTree
from trackmania_rl.settings import load_settings
from trackmania_rl.track.named_maps import map_entries
from trackmania_rl.training.datasets import policies_of_inputs, record_races

CONFIG = PROJECT_FOLDER / "config_files" / "config.py"


def main(inputs: Path, map_name: str, folder: Path, max_updates: int, overrides: Sequence[str] = ()) -> str:
    """Record, learn and drive; return a description of the result."""
    settings = load_settings(CONFIG, overrides)
    maps_folder = PROJECT_FOLDER / settings.game.maps_folder
    [entry] = map_entries(settings, maps_folder, [map_name])
    form = DataSetForm(race_spaces(settings))
    games = InProcessGames(1, settings.game, settings.observation, maps_folder)

    reward = RaceReward(settings, form.spaces, SeedTree(settings.run.seed))
    policies = policies_of_inputs(inputs, entry, settings, form.spaces, n_races=1, n_forced_actions=0)
    episodes = record_races(policies, games, entry, settings, form, reward, str(inputs))
    spec = environment_spec(settings, [map_name])
    dataset = write_dataset("examples/expert-v0", episodes, form, spec, "One race", folder / "datasets")

    of_the_run = {
        "run_name": "cloned",
        "n_collectors": 0,
        "offline": dataset.folder,
        "agent": "trackmania_rl.agents.behaviour_cloning:BehaviourCloning",
        "buffer_test_ratio": 0,  # one race is too little for a test loss
    }
    sets = [*overrides, *(f"{name}={value}" for name, value in of_the_run.items())]
    train(CONFIG, overrides=sets, output_folder=folder, max_updates=max_updates)

    evaluation = evaluate_map(load_driver(folder / "save" / "cloned"), games, entry, n_races=1)
    return f"the clone's best race on {map_name}: {evaluation.best_race_name}"


if __name__ == "__main__":  # processes of the training import this file again
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("inputs", type=Path)
    parser.add_argument("--map", default="valley")
    parser.add_argument("--folder", type=Path, default=Path("offline_example"))
    parser.add_argument("--max-updates", type=int, default=3000)
    parser.add_argument("--set", action="append", default=[])
    arguments = parser.parse_args()
    print(main(arguments.inputs, arguments.map, arguments.folder, arguments.max_updates, arguments.set))
