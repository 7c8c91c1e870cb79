"""Drive a simulated track at the keyboard or a wheel, and keep each finished race as a demonstration.

python -m pip install pygame-ce
python examples/keyboard.py --map valley --folder laps                 # arrow keys; Escape ends
python examples/keyboard.py --map valley --folder laps --wheel 0 5 2   # a gamepad: stick and triggers

demonstrations = ({"map_name": "valley", "inputs": "laps/valley_28350.inputs"},)
"""

import argparse
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pygame
from gymnasium.utils.play import play

from trackmania_rl.games.envs import RACE_ID
from trackmania_rl.protocol.input_script import write_input_script
from trackmania_rl.race.actions import FORWARD, actions_of_game

KEYS = {"left": pygame.K_LEFT, "right": pygame.K_RIGHT, "accelerate": pygame.K_UP, "brake": pygame.K_DOWN}
PATIENCE = {"cutoff_no_progress_within_ms": 60_000, "cutoff_race_longer_than_ms": 600_000}
RELEASED = -1.0


class Laps(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Keeps the actions of a race, and writes those of a finished one to a file of inputs."""

    def __init__(self, env: gymnasium.Env[Any, Any], folder: Path) -> None:
        super().__init__(env)
        self.game = env.unwrapped.races.settings.game  # type: ignore[attr-defined]
        self.folder = folder
        self.actions: list[Any] = []

    def actions_of_keys(self) -> dict[tuple[int, ...], int]:
        """Return the action for each set of pressed keys."""
        held = [tuple(code for key, code in KEYS.items() if getattr(keys, key)) for keys in self.game.inputs]
        return {keys: action for action, keys in enumerate(held)}

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        """Begin a race."""
        self.actions = []
        return self.env.reset(**options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take a step, and write the file after the finish."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        self.actions.append(action)
        if info["race_finished"] and (terminated or truncated):
            times_ms = self.game.ms_per_action * np.arange(len(self.actions))
            events = actions_of_game(self.game).events(times_ms, np.array(self.actions))
            self.folder.mkdir(parents=True, exist_ok=True)
            file = self.folder / f"{info['map']}_{info['race_time_ms']}.inputs"
            file.write_text(write_input_script(events), encoding="ascii")
            print(f"finished after {info['race_time_ms'] / 1000:.2f} s: {file}")
        return observation, reward, terminated, truncated, info


class Wheel(gymnasium.ActionWrapper[Any, Any, Any]):
    """Takes steer, gas and brake from axes of the first wheel or gamepad."""

    def __init__(self, env: gymnasium.Env[Any, Any], axes: list[int]) -> None:
        super().__init__(env)
        self.steer, self.gas, self.brake = axes
        self.device = pygame.joystick.Joystick(0)

    def pedal(self, axis: int) -> float:
        """Return a pedal's position, -1 (released) to 1. Devices report 0 until it is moved."""
        position = self.device.get_axis(abs(axis))
        return (-position if axis < 0 else position) or RELEASED

    def action(self, action: Any) -> Any:
        """Return the device's action in place of the keyboard's."""
        steer = np.clip(self.device.get_axis(self.steer), -1.0, 1.0)
        return np.array([steer, self.pedal(self.gas), self.pedal(self.brake)], dtype=np.float32)


def main() -> None:
    """Drive until the window is closed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--map", default="valley", help="track to drive (%(default)s)")
    parser.add_argument("--folder", type=Path, default=Path("laps"), help="of the files (%(default)s)")
    parser.add_argument("--speed", type=float, default=1.0, help="of the game's clock (%(default)s)")
    axes = ("STEER", "GAS", "BRAKE")
    about = "axes of a wheel or gamepad, in place of the keyboard; negative for a pedal that is at 1 when released"
    parser.add_argument("--wheel", type=int, nargs=3, metavar=axes, help=about)
    options = parser.parse_args()
    pygame.init()
    if options.wheel and pygame.joystick.get_count() == 0:
        parser.error("--wheel: no wheel or gamepad is connected")
    overrides = PATIENCE | {"actions": "analog" if options.wheel else "keys"}
    env = gymnasium.make(RACE_ID, maps=options.map, overrides=overrides, render_mode="rgb_array")
    laps = Laps(env, options.folder)
    fps = round(options.speed * 1000 / laps.game.ms_per_action)
    if options.wheel:
        play(Wheel(laps, options.wheel), fps=fps, zoom=2, keys_to_action={}, noop=np.array(FORWARD))
    else:
        actions = laps.actions_of_keys()
        nothing = actions.pop(())
        play(laps, fps=fps, zoom=2, keys_to_action=actions, noop=nothing)


if __name__ == "__main__":
    main()
