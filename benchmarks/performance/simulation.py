"""Rates of the simulated game: physics and pictures, games of one process, and the vector environments around them."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from benchmarks.performance.measuring import (
    DEFAULT_SIZE,
    FULL_SIZE,
    PROJECT,
    Figure,
    Machine,
    Options,
    settings_for,
    times_in_turns,
)
from trackmania_rl.errors import UserError
from trackmania_rl.games.envs import make_race_vector_env
from trackmania_rl.games.in_process import InProcessGames
from trackmania_rl.protocol.input_script import KeyState
from trackmania_rl.race.actions import BatchDecision
from trackmania_rl.settings import MapEntry, Settings, load_settings
from trackmania_rl.simulator.picture.renderer import Renderer
from trackmania_rl.simulator.race import SimulatedRace
from trackmania_rl.simulator.tracks.track_file import load_track

TRACK = PROJECT / "maps" / "valley.toml"
MAP = MapEntry(
    map_name="valley", map_path="valley.toml", reference_line="valley_0.5m.npy", is_explo=True, fill_buffer=False
)
SIZES_PX = ((160, 120), (64, 48), (640, 480))
TICKS_PER_ACTION = 5
TICKS_PER_PICTURE = 20
"""Ratio of measured ticks and pictures, which take longer."""
TICKS_BEFORE_RESTART = 1_500
"""At full throttle straight ahead, the car has stopped at a wall by then."""
THROTTLE = KeyState(left=False, right=False, accelerate=True, brake=False)
BYTES_PER_PIXEL = 4
FLOOR_REPETITIONS = 3
FLOOR_ACTIONS = 300
BARE = "the games alone"

Step = Callable[[np.ndarray], object]


def measure(options: Options, machine: Machine) -> list[Figure]:
    """Measure ticks in steps of one action, and pictures of several sizes along the track."""
    return [_measure_ticks(options), *(_measure_pictures(options, machine, *size) for size in SIZES_PX)]


def _measure_ticks(options: Options) -> Figure:
    race = SimulatedRace(load_track(TRACK))

    def drive() -> None:
        made = 0
        while made < options.ticks:
            race.give_up()
            race.set_input(THROTTLE)
            until = min(options.ticks, made + TICKS_BEFORE_RESTART)
            while made < until:
                made += race.advance(TICKS_PER_ACTION)

    drive()  # compiles, or loads what was compiled
    timing = times_in_turns(options, drive=drive)["drive"]
    return Figure.of_rate("simulation", "physics", timing, options.ticks, "ticks/s")


def _measure_pictures(options: Options, machine: Machine, width_px: int, height_px: int) -> Figure:
    track = load_track(TRACK)
    ribbon = track.ribbon
    start, finish = np.searchsorted(ribbon.station_m, [0.0, track.finish_station_m])
    sections = np.linspace(start, finish, max(1, options.ticks // TICKS_PER_PICTURE // 10)).astype(int)
    rotations = np.stack([ribbon.left, ribbon.up, ribbon.forward], axis=2)[sections]
    renderer = Renderer(track)

    def draw() -> None:
        for section, rotation in zip(sections, rotations, strict=True):
            renderer.render(ribbon.center_m[section], rotation, section, width_px, height_px)

    draw()
    timing = times_in_turns(options, draw=draw)["draw"]
    floor = 1e3 / machine.copy_ms(BYTES_PER_PIXEL * width_px * height_px)
    name = f"picture, {width_px} x {height_px}"
    note = "floor: writing its pixels"
    return Figure.of_rate("simulation", name, timing, len(sections), "pictures/s", floor=floor, note=note)


def game_settings(options: Options, width_px: int, height_px: int) -> Settings:
    """Return the full-size configuration for the simulated game at its highest speed."""
    size = (f"image_width_px={width_px}", f"image_height_px={height_px}")
    return settings_for(FULL_SIZE, options, "running_speed=1000.0", *size)


def game_floor(width_px: int, height_px: int) -> tuple[float, str]:
    """Return floor and explanation of a rate of actions: the fastest of a few short drives of one game."""
    race = SimulatedRace(load_track(TRACK))
    fastest_s = float("inf")
    for _ in range(FLOOR_REPETITIONS):
        race.give_up()
        race.set_input(THROTTLE)
        start_s = time.perf_counter()
        for _ in range(FLOOR_ACTIONS):
            race.advance(TICKS_PER_ACTION)
            if width_px:
                race.render(width_px, height_px)
        fastest_s = min(fastest_s, time.perf_counter() - start_s)
    made_of = f"the game alone, {TICKS_PER_ACTION} ticks" + (" and a picture" if width_px else "")
    return FLOOR_ACTIONS / fastest_s, made_of


def measure_in_process(options: Options, machine: Machine) -> list[Figure]:
    """Measure actions of games that one process steps, with pictures and without; the policy draws at random."""
    figures = []
    for height_px, width_px in (options.image_size_px, (0, 0)):
        for n_games in options.in_process_games:
            settings = game_settings(options, width_px, height_px)
            rounds = max(1, (1 if width_px else 5) * options.client_actions // n_games)
            play = _playing(_stepping(settings, n_games), rounds, n_games, len(settings.game.inputs))
            play()  # compiles, or loads what was compiled
            timing, count = times_in_turns(options, play=play)["play"], rounds * n_games
            name = f"{n_games} games, " + (f"{width_px} x {height_px} frames" if width_px else "floats only")
            floor, floor_is = game_floor(width_px, height_px)
            note = f"{1e3 * count / timing.processor_ms:,.0f} per second of one core; floor: {floor_is}"
            figures.append(Figure.of_rate("in process", name, timing, count, "actions/s", floor=floor, note=note))
    return figures


def measure_environments(options: Options, machine: Machine) -> list[Figure]:
    """Measure Gymnasium's vector environment, and Stable-Baselines3's if it is installed, beside the bare games."""
    settings, figures = load_settings(DEFAULT_SIZE), []
    for n_games in options.in_process_games:
        envs = make_race_vector_env(n_games, MAP.map_name)
        envs.reset(seed=0)
        steps: dict[str, Step] = {BARE: _stepping(settings, n_games), "Gymnasium": envs.step}
        try:
            from trackmania_rl.games.envs.sb3 import RaceVecEnv
        except UserError:  # the package is missing
            pass
        else:
            vec_env = RaceVecEnv(n_games, MAP.map_name)
            vec_env.reset()
            steps["Stable-Baselines3"] = vec_env.step
        rounds, n_actions = max(1, 5 * options.client_actions // n_games), len(settings.game.inputs)
        plays = {name: _playing(step, rounds, n_games, n_actions) for name, step in steps.items()}
        timings = times_in_turns(options, **plays)
        for name, timing in timings.items():
            bare = None if name == BARE else timings[BARE]
            note = "" if bare is None else f"the ratio is to {BARE}"
            title, count = f"{n_games} games, {name}", rounds * n_games
            figures.append(Figure.of_rate("environments", title, timing, count, "actions/s", bare, note=note))
    return figures


def _playing(step: Step, rounds: int, n_games: int, n_actions: int) -> Callable[[], None]:
    """Return a function that steps games with drawn actions, mostly forward, so that the cars get somewhere."""
    rng = np.random.default_rng(0)
    drawn = np.where(rng.random((1 << 12, n_games)) < 0.5, 0, rng.integers(0, n_actions, (1 << 12, n_games)))

    def play() -> None:
        for i in range(rounds):
            step(drawn[i % len(drawn)])

    return play


def _stepping(settings: Settings, n_games: int) -> Step:
    """Start games in this process; return the function that steps them with actions (G,)."""
    games = InProcessGames(n_games, settings.game, settings.observation, PROJECT / settings.game.maps_folder)
    for game in range(n_games):
        games.begin(game, MAP)
    is_greedy = np.ones(n_games, dtype=bool)
    q_values = np.zeros((n_games, len(settings.game.inputs)), dtype=np.float32)

    def step(actions: np.ndarray) -> None:
        received = games.recv()
        for game in received.ended:
            games.begin(game, MAP)
        n = len(received.ids)
        games.send(received.ids, BatchDecision(actions[:n], is_greedy[:n], q_values[:n]))

    return step
