"""Live view of a collector's games: cars, races and pictures as a `LiveReader` of the run's folder gets them."""

import dataclasses
import shutil
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from trackmania_rl.games.in_process import InProcessGames
from trackmania_rl.games.protocol import Received
from trackmania_rl.race.actions import BatchDecision
from trackmania_rl.race.spaces import race_spaces
from trackmania_rl.settings import MapEntry, Settings, load_settings
from trackmania_rl.simulator.tracks.track_generator import TrackRecipe
from trackmania_rl.telemetry.live import LiveReader
from trackmania_rl.telemetry.live.feed import ASKED_FOR_S, CAR_IS_OLD_S, CARS_EVERY_S, FOLDER, LiveMirror
from trackmania_rl.telemetry.live.playback import RacePlayback
from trackmania_rl.track.game_map import line_begins_m

SIZE_PX = (37, 29)
ENTRIES = (
    MapEntry(
        map_name="the straight", map_path="straight.toml", reference_line="line.npy", is_explo=True, fill_buffer=True
    ),
    MapEntry(map_name="judged", map_path="straight.toml", reference_line="line.npy", is_explo=False, fill_buffer=True),
)
"""An exploration race and an evaluation race."""


class Clock:
    """Seconds that pass only where a test adds them."""

    now_s = 1000.0

    def __call__(self):
        return self.now_s


@dataclass
class Driving:
    """A collector's games with random actions: exploration races in even games, evaluation races in odd ones."""

    games: Any
    mirror: LiveMirror
    settings: Settings
    clock: Clock
    rng: np.random.Generator
    received: Received | None = None  # the newest states
    decision: BatchDecision | None = None  # the newest decisions
    ended: dict[int, dict[str, npt.NDArray[np.generic]]] = field(default_factory=dict)  # newest race of each game
    is_closed: bool = False

    def close(self):
        if not self.is_closed:
            self.is_closed = True
            self.mirror.close()

    def begin(self, game):
        self.mirror.begins(game, ENTRIES[game % 2])
        self.games.begin(game, ENTRIES[game % 2])

    def drive(self, n_actions, seconds_each=0.0):
        """Mostly forward, so that races finish; the next race begins at once."""
        n_values = len(self.settings.game.inputs)
        for _ in range(n_actions):
            self.clock.now_s += seconds_each
            self.received = self.games.recv()
            self.mirror.received(self.received)
            ids = self.received.ids
            actions = self.rng.choice([0, 0, 0, 1, 2, 4], len(ids))
            q_values = self.rng.standard_normal((len(ids), n_values), dtype=np.float32)
            self.decision = BatchDecision(actions, self.rng.random(len(ids)) < 0.5, q_values)
            self.games.send(ids, self.decision)
            for game, race in self.received.ended.items():
                self.ended[game] = race.copy().rollout_results()
                self.begin(game)

    def drive_until_race_ends(self, reader, game):
        while game not in self.ended:
            reader.race_of(0, game)
            self.drive(1, seconds_each=0.1)
        return reader.race_of(0, game)


@pytest.fixture(scope="module")
def maps_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("maps")
    np.save(folder / "line.npy", np.arange(0.0, 60.0, 0.5)[:, None] * np.array([0, 0, 1.0]) + (0, 100, 0))
    (folder / "straight.toml").write_text('name = "straight"\nline = "line.npy"\nedge = "wall"\ncheckpoints_m = [20]\n')
    return folder


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def make_driving(tmp_path, maps_folder, repository_root, clock):
    """`make_driving(n_games=3, collector=0, image=(17, 15))`: a run whose folder is `tmp_path`."""
    made = []

    def make(n_games=3, collector=0, image=(0, 0)):
        overrides = (f"image_width_px={image[0]}", f"image_height_px={image[1]}", "cutoff_race_longer_than_ms=9000")
        settings = load_settings(repository_root / "config_files" / "config.py", overrides)
        games = InProcessGames(n_games, settings.game, settings.observation, maps_folder)
        has_frames = race_spaces(settings).has_image
        begins_m = line_begins_m(settings.observation)
        mirror = LiveMirror(games, tmp_path / FOLDER, collector, maps_folder, has_frames, begins_m, clock)
        driving = Driving(games, mirror, settings, clock, np.random.default_rng(collector))
        for game in range(n_games):
            driving.begin(game)
        made.append(driving)
        return driving

    yield make
    for driving in made:
        driving.close()


@pytest.fixture
def reader(tmp_path, clock):
    return LiveReader(tmp_path, clock)


def test_every_car_is_where_its_game_has_it(make_driving, reader):
    driving, other = make_driving(n_games=3), make_driving(n_games=5, collector=1)
    assert reader.cars() == []
    driving.drive(40, seconds_each=0.001)
    before = driving.games.motion(np.arange(3))
    driving.drive(1, seconds_each=CARS_EVERY_S)
    cars = reader.cars()
    assert [(car.collector, car.game) for car in cars] == [(0, 0), (0, 1), (0, 2)]
    assert [car.map_name for car in cars] == ["the straight", "judged", "the straight"]
    assert [car.is_explo for car in cars] == [True, False, True]
    assert {car.track for car in cars} == {"straight"}
    np.testing.assert_array_equal([car.position for car in cars], before.position_m)
    other.drive(2, seconds_each=0.1)
    assert [(car.collector, car.game) for car in reader.cars()[3:]] == [(1, game) for game in range(5)]
    assert reader.race_of(8, 99) is None, "no such game"


def test_cars_are_shown_at_intervals_and_only_while_they_are_looked_at(make_driving, reader, tmp_path):
    driving = make_driving(n_games=2)
    driving.drive(3)
    assert list((tmp_path / FOLDER).iterdir()) == []
    reader.cars()
    shown = set()
    for _ in range(40):
        driving.drive(1, seconds_each=0.3 * CARS_EVERY_S)  # so every fourth one
        shown |= {car.timestamp_s for car in reader.cars()}
    assert len(shown) == 10
    driving.drive(1, seconds_each=ASKED_FOR_S + 0.1)
    (file,) = (tmp_path / FOLDER).glob("cars-*")
    written = file.read_bytes()
    driving.drive(5, seconds_each=1.0)
    assert file.read_bytes() == written


def test_the_race_of_the_watched_game(make_driving, reader):
    driving = make_driving(n_games=3)
    race = driving.drive_until_race_ends(reader, 2)
    driven = driving.ended[2]
    n_states = len(driven["actions"]) + 1
    assert (race.collector, race.game, race.map_name, race.is_explo) == (0, 2, "the straight", True)
    assert race.race_finished
    assert race.race_time_ms == driven["race_time"] == race.time_ms[-1]
    assert race.time_ms[:-1].tolist() == (np.arange(n_states - 1) * 50).tolist()
    np.testing.assert_array_equal(race.position, driven["position_m"])
    np.testing.assert_array_equal(race.q_values[:-1], driven["q_values"])
    np.testing.assert_array_equal(race.was_greedy[:-1], driven["action_was_greedy"])
    controls = driving.games._actions.controls(driven["actions"])
    np.testing.assert_array_equal(np.stack((race.gas, race.brake, race.steer), axis=1)[:-1], controls)
    for name in ("speed_mps", "gear", "meters_advanced", "steer", "gas", "brake", "q_values"):
        assert len(getattr(race, name)) == n_states
    assert race.meters_advanced[0] == 0
    assert 55 < race.meters_advanced[-1] < 65
    assert 5 < race.speed_mps.max() < 60
    assert race.frames is None
    assert reader.race_of(0, 2) is race, "there is no other one yet"


@pytest.mark.parametrize("how", ["killed", "closed", "files deleted", "other files"])
def test_a_collector_that_is_gone_shows_nothing(how, make_driving, reader, tmp_path):
    (tmp_path / FOLDER).mkdir()
    old = tmp_path / FOLDER / "race-0-1.safetensors"
    old.write_bytes(b"left behind")
    driving = make_driving(n_games=2)
    assert not old.exists()
    reader.cars()
    driving.drive(3, seconds_each=0.1)
    assert len(reader.cars()) == 2
    match how:
        case "killed":
            driving.clock.now_s += CAR_IS_OLD_S
        case "closed":
            driving.close()
            assert [file.name for file in (tmp_path / FOLDER).iterdir()] == ["asked"]
        case "files deleted":
            shutil.rmtree(tmp_path / FOLDER)
        case "other files":
            for name in ("cars-0.safetensors", "race-0-evaluated.safetensors"):
                (tmp_path / FOLDER / name).write_bytes(b"damaged")
    assert reader.cars() == []
    assert reader.race_of(0, 0) is reader.evaluated() is None


def test_games_that_cannot_be_shown_are_played_on(make_driving, reader, tmp_path, caplog):
    driving = make_driving(n_games=2)

    def no_motion(_):
        raise TypeError("a user's own environment has no motion")

    driving.games.motion = no_motion
    reader.cars()
    driving.drive(5, seconds_each=0.1)
    assert reader.cars() == []
    assert driving.received.ids.tolist() == [0, 1]
    driving.close()
    shutil.rmtree(tmp_path / FOLDER)
    (tmp_path / FOLDER).write_text("in the way")
    driving = make_driving(n_games=2)
    reader.cars()
    driving.drive(5, seconds_each=0.1)
    assert "the live page cannot show its races" in caplog.text


def test_frames_of_a_game_that_cannot_be_drawn_again_come_with_the_race(make_driving, reader, monkeypatch):
    module = "trackmania_rl.telemetry.live.feed"
    monkeypatch.setattr(f"{module}.MOST_FRAME_BYTES", 30 * 15 * 17)
    monkeypatch.setattr(f"{module}.SIMULATED", "another game")
    driving = make_driving(n_games=1, image=(17, 15))
    race = driving.drive_until_race_ends(reader, 0)
    frames = driving.ended[0]["frames"][:, 0]
    every = -(-len(frames) // 30)
    assert every >= 2
    np.testing.assert_array_equal(race.frames, frames[::every])
    assert race.frame_time_ms.tolist() == race.time_ms[::every].tolist()
    playback = RacePlayback(race)
    for time_ms, number in ((0, 0), (50 * every - 1, 0), (50 * every, 1), (1e6, -1), (-3, 0)):
        np.testing.assert_array_equal(playback.picture(time_ms), race.frames[number])


def test_a_race_is_played_back_as_its_game_showed_it(make_driving, reader, tmp_path, repository_root):
    driving, pictures = make_driving(n_games=1), []
    while not driving.ended:
        reader.race_of(0, 0)
        pictures.append(driving.games.picture(0, *SIZE_PX))
        driving.drive(1, seconds_each=0.1)
    race = reader.race_of(0, 0)
    playback = RacePlayback(race)
    assert playback.duration_ms == race.race_time_ms
    for state in (0, 1, 7, 30, len(pictures) - 2, 3):  # forward, and back
        np.testing.assert_array_equal(playback.picture(float(race.time_ms[state]), *SIZE_PX), pictures[state])
    between = playback.picture(race.time_ms[7] + 25.0, *SIZE_PX)
    assert (between != pictures[7]).any()
    assert (between != pictures[8]).any()

    generated = dataclasses.replace(race, track=TrackRecipe(seed=3, difficulty=0.0).name, map_file="gone.toml")
    assert RacePlayback(generated).picture(0, *SIZE_PX).shape == (29, 37, 3)
    (tmp_path / "damaged.toml").write_text("[")
    files = [str(repository_root / "maps" / "kart.toml"), str(tmp_path / "gone.toml"), str(tmp_path / "damaged.toml")]
    for map_file in (*files, r"My Challenges\ESL-Hockolicious.Challenge.Gbx"):
        other = RacePlayback(dataclasses.replace(race, map_file=map_file))
        assert other.picture(500) is None, "no picture of another track"
