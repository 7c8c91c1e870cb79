"""From a collector's games to whoever looks: cars, races and pictures; and what either side does without the other."""

import os
import shutil
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest

from trackmania_rl.games.wrapped import WrappedGames
from trackmania_rl.telemetry.live import LiveReader, RacePlayback
from trackmania_rl.telemetry.live.feed_file import FOLDER, N_STAGES, FeedMemory
from trackmania_rl.telemetry.live.shown_games import CARS_EVERY_S, SHOWN_FOR_S

NO_PROCESS = 2**22 + 1
"""Beyond what Linux gives."""
Make = Callable[..., SimpleNamespace]


def file_of(folder: Path, collector: int = 0) -> Path:
    [file] = (folder / FOLDER).glob(f"collector-{collector}.*.bin")
    return file


def test_every_car_is_where_its_game_has_it(make_driving: Make, reader: LiveReader) -> None:
    driving = make_driving(n_games=3)
    assert reader.cars() == [], "nobody had looked"
    driving.drive(40, seconds_each=0.001)
    before = driving.inside.motion(np.arange(3))
    driving.drive(1, seconds_each=CARS_EVERY_S)
    cars = reader.cars()
    assert [(car.collector, car.game) for car in cars] == [(0, 0), (0, 1), (0, 2)]
    assert [car.map_name for car in cars] == ["the straight", "judged", "the straight"]
    assert [car.is_explo for car in cars] == [True, False, True]
    assert {car.track for car in cars} == {"straight"}
    assert [car.race_time_ms for car in cars] == before.race_time_ms.tolist() == [40 * 50] * 3
    np.testing.assert_array_equal([car.position for car in cars], before.position_m)
    np.testing.assert_allclose([car.speed_mps for car in cars], before.speed_m_s, rtol=1e-6)
    controls = driving.inside._actions.controls(driving.decision.actions)
    np.testing.assert_array_equal([(car.gas, car.brake, car.steer) for car in cars], controls)
    np.testing.assert_array_equal([car.q_values for car in cars], driving.decision.q_values)
    assert all(20 < car.meters_advanced < 60 for car in cars)
    assert all(car.zone > 40 for car in cars)
    assert all(car.gear >= 1 for car in cars)
    assert all(car.age_s < 5 for car in cars)


def test_games_behind_sockets_are_seen_and_their_races_as_well(make_driving: Make, reader: LiveReader) -> None:
    driving = make_driving(n_games=2, image=(17, 15), transport="socket")
    meters: list[float] = []
    while len(driving.ended) < 2:
        reader.watch(0, 1)
        meters += [car.meters_advanced for car in reader.cars()]
        driving.drive(1, seconds_each=0.2)
    assert 0 <= min(meters) < 3
    assert 50 < max(meters) < 62
    assert reader.picture().shape == (15, 17)
    race = reader.race()
    assert race.game == 1
    np.testing.assert_array_equal(race.position[:-1], driving.ended[1]["position_m"])
    assert RacePlayback(race).picture(race.time_ms[10], 17, 15).shape == (15, 17, 3), "the same race is driven again"


def test_cars_are_told_so_often_and_no_more(make_driving: Make, reader: LiveReader, tmp_path: Path) -> None:
    driving = make_driving(n_games=2)
    reader.cars()
    memory = FeedMemory(file_of(tmp_path))
    driving.drive(100, seconds_each=0.01)
    assert (memory.cars["sequence"] // 2).tolist() == [10, 10]
    memory.close()


def test_nothing_is_told_while_nobody_looks(make_driving: Make, reader: LiveReader, tmp_path: Path) -> None:
    driving = make_driving(n_games=2)
    unseen = make_driving(n_games=2, collector=1)
    unseen.drive(3)
    memory = FeedMemory(file_of(tmp_path, collector=1))
    assert memory.cars["sequence"].tolist() == [0, 0]
    memory.close()
    reader.cars()
    driving.drive(3, seconds_each=0.1)
    told = [car.race_time_ms for car in reader.cars() if car.collector == 0]
    driving.drive(1, seconds_each=SHOWN_FOR_S + 0.1)  # this one is told: it has heard of the last look only now
    driving.drive(1, seconds_each=SHOWN_FOR_S + 0.1)
    driving.drive(5, seconds_each=1.0)
    late = [car.race_time_ms for car in reader.cars() if car.collector == 0]
    assert late == [told[0] + 50, told[1] + 50]


def test_the_race_of_the_watched_game(make_driving: Make, reader: LiveReader) -> None:
    driving = make_driving(n_games=3)
    for _ in range(30):
        reader.watch(0, 2)
        driving.drive(5, seconds_each=0.1)
        if 2 in driving.ended:
            break
    race, driven = reader.race(), driving.ended[2]
    assert race is not None
    n_states = len(driven["actions"]) + 1
    assert (race.collector, race.game, race.map_name, race.is_explo) == (0, 2, "the straight", True)
    assert race.race_finished
    assert race.race_time_ms == driven["race_time"] == race.time_ms[-1]
    assert race.time_ms[:-1].tolist() == (np.arange(n_states - 1) * 50).tolist()
    np.testing.assert_array_equal(race.position[:-1], driven["position_m"])
    np.testing.assert_array_equal(race.position[-1], driven["last_m"])
    np.testing.assert_array_equal(race.q_values[:-1], driven["q_values"])
    np.testing.assert_array_equal(race.was_greedy[:-1], driven["action_was_greedy"])
    np.testing.assert_array_equal(race.zone, driven["current_zone_idx"])
    controls = driving.inside._actions.controls(driven["actions"])
    np.testing.assert_array_equal(np.stack((race.gas, race.brake, race.steer), axis=1)[:-1], controls)
    for name in ("speed_mps", "gear", "meters_advanced", "steer", "gas", "brake", "q_values"):
        assert len(getattr(race, name)) == n_states
    assert race.meters_advanced[0] == 0
    assert 55 < race.meters_advanced[-1] < 65
    assert 5 < race.speed_mps.max() < 60
    assert race.frames is None
    assert reader.race() is race, "there is no other one yet"


def test_without_a_watched_game_the_newest_evaluated_race(make_driving: Make, reader: LiveReader) -> None:
    driving = make_driving(n_games=4)
    assert reader.race() is None
    for _ in range(300):
        reader.cars()
        driving.drive(1, seconds_each=0.1)
    race = reader.race()
    assert race is not None
    assert race.game in (1, 3)
    assert not race.is_explo
    driving.close()
    assert reader.race() is race, "it stays when the training has ended"


def test_races_of_several_watched_games_have_places_of_their_own(
    make_driving: Make, reader: LiveReader, tmp_path: Path, clock: Callable[[], float]
) -> None:
    driving = make_driving(n_games=6)
    readers = [LiveReader(tmp_path, clock) for _ in range(N_STAGES - 1)]
    for _ in range(60):
        for game, one in zip((0, 2, 5), readers, strict=True):
            one.watch(0, game)
        driving.drive(2, seconds_each=0.1)
    races = [one.race() for one in readers]
    assert [race.game for race in races] == [0, 2, 5]
    reader.watch(0, 4)  # there is no more room: the one that was asked for longest ago gives way
    driving.drive(1)
    assert [reader.picture() for _ in range(2)] == [None, None]
    for _ in range(60):
        reader.watch(0, 4)
        driving.drive(2, seconds_each=0.1)
    assert reader.race().game == 4
    for one in readers:
        one.close()


def test_the_picture_is_what_the_watched_game_shows(make_driving: Make, reader: LiveReader) -> None:
    driving = make_driving(n_games=2, image=(17, 15))
    assert reader.picture() is None
    reader.watch(0, 1)
    driving.drive(20)
    driving.drive(1, seconds_each=0.2)
    picture = reader.picture()
    assert picture.shape == (15, 17)
    np.testing.assert_array_equal(picture, driving.inside._columns.frames[1, 20, 0])
    assert picture.std() > 5
    driving.clock.now_s += 10
    assert reader.picture() is None, "nobody has watched for long"


def test_a_car_that_is_being_written_is_read_as_it_was_before(
    make_driving: Make, reader: LiveReader, tmp_path: Path
) -> None:
    driving = make_driving(n_games=2)
    reader.cars()
    driving.drive(3, seconds_each=0.1)
    before = reader.cars()
    memory = FeedMemory(file_of(tmp_path))
    memory.cars["sequence"][1] += 1
    memory.cars["race_time_ms"][:] = 12_345
    first, second = reader.cars()
    assert (first.race_time_ms, second.race_time_ms) == (12_345, before[1].race_time_ms)
    memory.cars["sequence"][1] += 1
    assert reader.cars()[1].race_time_ms == 12_345
    memory.close()


def test_no_mixture_is_ever_read(make_driving: Make, reader: LiveReader, tmp_path: Path) -> None:
    make_driving(n_games=1)
    memory = FeedMemory(file_of(tmp_path))
    reader.cars()

    def write() -> None:
        for number in range(1, 400):
            memory.cars["sequence"][0] += 1
            for name in ("race_time_ms", "position_m", "speed_m_s", "q_values"):
                memory.cars[name][0] = number
                time.sleep(0)  # the other thread may look now
            memory.cars["sequence"][0] += 1
            time.sleep(0.0005)

    writer = threading.Thread(target=write)
    writer.start()
    seen = []
    while writer.is_alive():
        seen += reader.cars()
    memory.close()
    assert len({car.race_time_ms for car in seen}) > 10
    assert all({*car.position, car.speed_mps, *car.q_values} == {float(car.race_time_ms)} for car in seen)


@pytest.mark.parametrize("how", ["killed", "number_given_to_another", "over"])
def test_a_collector_that_is_gone_shows_nothing(
    how: str, make_driving: Make, reader: LiveReader, tmp_path: Path
) -> None:
    driving = make_driving(n_games=2)
    reader.cars()
    driving.drive(3, seconds_each=0.1)
    assert len(reader.cars()) == 2
    memory = FeedMemory(file_of(tmp_path))
    memory.header["beat_s"] = time.time() - 3600
    driving.clock.now_s += 2
    assert len(reader.cars()) == 2, "it may compile for long, but its process is there"
    if how == "killed":
        memory.header["pid"] = NO_PROCESS
    elif how == "number_given_to_another":
        memory.header["process_began_s"] = psutil.Process().create_time() - 100
    else:
        memory.header["is_over"] = 1
    memory.close()
    driving.clock.now_s += 2
    assert reader.cars() == []
    assert LiveReader(tmp_path, driving.clock).cars() == []


def test_a_collector_that_begins_again_is_found_and_the_old_file_goes(
    make_driving: Make, reader: LiveReader, tmp_path: Path
) -> None:
    (tmp_path / FOLDER).mkdir()
    old = tmp_path / FOLDER / "collector-0.7.bin"
    old.write_bytes(b"left behind")
    driving = make_driving(n_games=2)
    assert not old.exists()
    reader.cars()
    driving.drive(2, seconds_each=0.1)
    assert len(reader.cars()) == 2
    driving.close()
    assert reader.cars() == [], "at once, as whoever looks should see nothing of a training that has ended"
    assert list((tmp_path / FOLDER).iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32", reason="there a file that is open cannot be taken away")
def test_a_training_that_takes_its_files_away_shows_nothing_at_once(
    make_driving: Make, reader: LiveReader, tmp_path: Path
) -> None:
    driving = make_driving(n_games=2)
    reader.cars()
    driving.drive(2, seconds_each=0.1)
    assert len(reader.cars()) == 2
    shutil.rmtree(tmp_path / FOLDER)  # as it does when its collectors had to be killed
    assert reader.cars() == []


def test_two_collectors_of_many_games(make_driving: Make, reader: LiveReader) -> None:
    drivings = [make_driving(n_games=n_games, collector=number) for number, n_games in enumerate((5, 7))]
    reader.cars()
    for driving in drivings:
        driving.drive(2, seconds_each=0.1)
    cars = [(car.collector, car.game) for car in reader.cars()]
    assert cars == [*((0, game) for game in range(5)), *((1, game) for game in range(7))]
    reader.watch(1, 99)  # no such game, nor such a collector
    reader.watch(8, 0)
    assert reader.race() is None


@pytest.mark.parametrize("damage", ["other", "version", "short", "sizes"])
def test_a_file_of_something_else_is_told_once_and_left_alone(
    damage: str,
    make_driving: Make,
    reader: LiveReader,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    make_driving(n_games=2)
    file = file_of(tmp_path)
    whole = bytearray(file.read_bytes())
    if damage == "other":
        whole[:4] = b"what"
    elif damage == "version":
        whole[8] = 77
    elif damage == "short":
        del whole[-9:]
    else:
        whole[12:16] = (2**31 - 1).to_bytes(4, "little")
    wrong = file.with_name("collector-3.1.bin")
    wrong.write_bytes(whole)
    for _ in range(3):
        assert reader.cars() == []
        reader._next_look_s = 0
    assert [wrong.name in record.getMessage() for record in caplog.records] == [True]


def test_no_run_shows_nothing(tmp_path: Path) -> None:
    reader = LiveReader(tmp_path / "nowhere")
    reader.watch(0, 0)
    assert (reader.cars(), reader.race(), reader.picture()) == ([], None, None)


def test_where_no_file_can_be_made_games_are_played_unseen(
    make_driving: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / FOLDER).write_text("in the way")
    driving = make_driving(n_games=2)
    assert driving.games is driving.inside
    assert "nobody can watch" in caplog.text


def test_an_environment_without_a_car_is_played_on(make_driving: Make, reader: LiveReader) -> None:
    driving = make_driving(n_games=2)

    def no_motion(_: object) -> None:
        raise TypeError("an environment of somebody's own tells no motion")

    driving.inside.motion = no_motion
    reader.cars()
    driving.drive(5, seconds_each=0.1)
    assert reader.cars() == []
    assert isinstance(driving.games, WrappedGames)
    assert driving.received.ids.tolist() == [0, 1]


def test_frames_of_a_game_that_cannot_be_drawn_again_come_with_the_race(
    make_driving: Make, reader: LiveReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = "trackmania_rl.telemetry.live.shown_games"
    monkeypatch.setattr(f"{module}.MOST_FRAME_BYTES", 30 * 15 * 17)
    monkeypatch.setattr(f"{module}.SIMULATED", "another game")
    driving = make_driving(n_games=1, image=(17, 15))
    while not driving.ended:
        reader.watch(0, 0)
        driving.drive(1, seconds_each=0.1)
    race, frames = reader.race(), driving.ended[0]["frames"][:, 0]
    every = -(-len(frames) // 30)
    assert every >= 2
    np.testing.assert_array_equal(race.frames, frames[::every])
    assert race.frame_time_ms.tolist() == race.time_ms[::every].tolist()


def test_file_names_say_whose_they_are(make_driving: Make, tmp_path: Path) -> None:
    make_driving(n_games=1, collector=4)
    assert file_of(tmp_path, 4).name == f"collector-4.{os.getpid()}.bin"
