"""Drive a simulated track at the keyboard, and keep each finished race as a demonstration.

python -m pip install pygame-ce
python examples/keyboard.py --map valley --folder laps      # arrow keys; Escape ends

demonstrations = ({"map_name": "valley", "inputs": "laps/valley_28350.inputs"},)
"""

import argparse
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.utils.play import play

from trackmania_rl.games.envs import RACE_ID
from trackmania_rl.protocol.input_script import write_input_script
from trackmania_rl.race.actions import actions_of_game

KEYS = {"left": 1073741904, "right": 1073741903, "accelerate": 1073741906, "brake": 1073741905}
"""pygame's codes of the arrow keys."""
PATIENCE = {"cutoff_no_progress_within_ms": 60_000, "cutoff_race_longer_than_ms": 600_000}


class Laps:
    """Keeps the actions of a race, and writes those of a finished one to a file of inputs."""

    def __init__(self, env: gymnasium.Env[Any, Any], folder: Path) -> None:
        self.game = env.unwrapped.races.settings.game  # type: ignore[attr-defined]
        self.folder = folder
        self.actions: list[int] = []

    def actions_of_keys(self) -> dict[tuple[int, ...], int]:
        """Return the action for each set of pressed keys."""
        held = [tuple(code for key, code in KEYS.items() if getattr(keys, key)) for keys in self.game.inputs]
        return {keys: action for action, keys in enumerate(held)}

    def add(self, _: Any, __: Any, action: Any, reward: float, terminated: bool, truncated: bool, info: Any) -> None:
        """Add a step, as `gymnasium.utils.play.play` calls it."""
        self.actions.append(int(action))
        if not (terminated or truncated):
            return
        if info["race_finished"]:
            times_ms = self.game.ms_per_action * np.arange(len(self.actions))
            events = actions_of_game(self.game).events(times_ms, np.array(self.actions))
            self.folder.mkdir(parents=True, exist_ok=True)
            file = self.folder / f"{info['map']}_{info['race_time_ms']}.inputs"
            file.write_text(write_input_script(events), encoding="ascii")
            print(f"finished after {info['race_time_ms'] / 1000:.2f} s: {file}")
        self.actions = []


def main() -> None:
    """Drive until the window is closed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--map", default="valley", help="track to drive (%(default)s)")
    parser.add_argument("--folder", type=Path, default=Path("laps"), help="of the files (%(default)s)")
    parser.add_argument("--speed", type=float, default=1.0, help="of the game's clock (%(default)s)")
    options = parser.parse_args()
    env = gymnasium.make(RACE_ID, maps=options.map, overrides=PATIENCE, render_mode="rgb_array")
    laps = Laps(env, options.folder)
    actions = laps.actions_of_keys()
    nothing = actions.pop(())
    fps = round(options.speed * 1000 / laps.game.ms_per_action)
    play(env, fps=fps, zoom=2, callback=laps.add, keys_to_action=actions, noop=nothing)


if __name__ == "__main__":
    main()
