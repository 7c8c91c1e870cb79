"""Collectors on other machines: messages, the server of a run, and a collector's ends, over gRPC on loopback."""

import contextlib
import dataclasses
import itertools
import json
import math
import multiprocessing
import os
import random
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import grpc
import numpy as np
import pytest
import torch
import zstandard

from trackmania_rl.agents.weights import digest_of, packed
from trackmania_rl.channels import over_grpc, remote
from trackmania_rl.channels import workers_pb2 as pb
from trackmania_rl.channels.heartbeat import Heartbeat
from trackmania_rl.channels.over_grpc import MessageError, WorkerAccess, decode_race, encode_race
from trackmania_rl.channels.remote import LearnerAddress, RemoteLearner, WorkerSide
from trackmania_rl.channels.rollouts import Rollouts, frames_shape, make_stop_flag, slot_bytes
from trackmania_rl.channels.run_state import (
    NO_WEIGHTS,
    WEIGHTS_KINDS,
    Channels,
    LearnerFaultError,
    SharedRunState,
)
from trackmania_rl.doctor.findings import Level
from trackmania_rl.errors import PassingError, UserError
from trackmania_rl.multiprocess import serving
from trackmania_rl.multiprocess.serving import ServeWorkers
from trackmania_rl.multiprocess.worker import WorkerConfig, check_learner
from trackmania_rl.paths import SHIPPED_FOLDER, program_version
from trackmania_rl.race.race import CollectorProgress, CyclePosition, Fragment, Race, RaceFacts
from trackmania_rl.runs.folder import RunFolder
from trackmania_rl.settings import UserSettings, settings_from_flat
from trackmania_rl.telemetry.live.feed import ASKED, FOLDER, LiveCar, LiveReader, write_cars

from ..keep_games_command import wait_until
from ..lacking import lacks
from .conftest import SPACES, acquired, got, network_of

if sys.platform != "win32":
    import resource

TOKEN_TEXT = "correct-horse"
FACTS = {"observation": "a", "actions": "a", "network": "a", "map valley.toml": "b"}
ON_LOOPBACK = WorkerAccess("127.0.0.1", 0, TOKEN_TEXT)
WORKER = "0" * 32


def unchanged(columns):
    return columns


def a_race(seed, n_actions=9, **facts):
    """A race as a collector puts it, with all kinds of values."""
    rng = np.random.default_rng(seed)
    columns = {
        "frames": rng.integers(0, 256, (n_actions + 1, 1, 6, 8), dtype=np.uint8),
        "state_float": rng.standard_normal((n_actions + 1, 5)).astype(np.float32),
        "actions": rng.integers(0, 3, n_actions),
        "action_was_greedy": rng.random(n_actions) < 0.5,
        "q_values": np.full((n_actions, 3), np.nan, dtype=np.float32),
        "action_log_prob": np.full(n_actions, np.nan, dtype=np.float32),
        "meters_advanced_along_centerline": np.linspace(0, 1 / 3, n_actions + 1),
    }
    values = {
        "map_name": "valley",
        "track": "valley",
        "is_explo": True,
        "fill_buffer": True,
        "n_actions": n_actions,
        "race_finished": True,
        "race_time_ms": 450,
        "meters": 0.1 + 0.2,
        "first_value": float("-inf"),
        "furthest_zone_idx": 7,
        "position": CyclePosition(number=5, place=1, generator="a", generator_number=2),
        "inputs": "0.00 press up\n",
        "cutoff_reason": None,
        "checkpoint_times_ms": (),
        "timings_ms": {"a": 1e-300},
    }
    return Race(columns, RaceFacts(**(values | facts)))


def message_of(seed, sequence, compress=unchanged, **stats):
    return encode_race(a_race(seed, **stats), sequence, compress)


@pytest.mark.parametrize("stats", [{}, {"fragment": Fragment(False, 3, 2, 1, 0, 5)}], ids=["race", "fragment"])
def test_a_race_arrives_bit_for_bit(settings, stats):
    received = decode_race(message_of(1, 4, **stats), settings.game.most_states, SPACES, unchanged)
    expected = a_race(1, **stats)
    assert received.columns.keys() == expected.columns.keys()
    for name, column in expected.columns.items():
        assert received.columns[name].dtype == column.dtype
        np.testing.assert_array_equal(received.columns[name], column)
    assert received.facts == expected.facts.with_changes(sequence=4)


def with_compressor(settings, name):
    return settings_from_flat(settings.flat() | {"sample_compressor": f"{over_grpc.__name__}:{name}"})


def test_the_learner_decompresses_races(settings, tmp_path):
    halves = with_compressor(settings, "HalfFloats")
    run = Learner(halves, tmp_path)
    player = Player(run.address, halves)
    player.state.pull()
    player.play(1)
    with got(run.rollouts) as race:
        columns, expected = race.columns, a_race(1).columns
        assert columns["state_float"].dtype == np.float32
        np.testing.assert_allclose(columns["state_float"], expected["state_float"], rtol=1e-3)
        assert (columns["state_float"] != expected["state_float"]).any()
        assert columns["meters_advanced_along_centerline"].dtype == np.float64
    player.close()
    run.close()


def test_an_error_of_the_decompressor_refuses_the_race(settings):
    with pytest.raises(MessageError, match="first_history"):
        decode_race(message_of(1, 1), settings.game.most_states, SPACES, lambda columns: columns["first_history"])


COLUMNS_SPOILED = {
    "actions": lambda a: a + 3,
    "state_float": lambda f: f[:, :4],
    "frames": lambda f: f[:-2],
    "q_values": lambda q: q[:, :, None],
    "action_log_prob": lambda p: p[:, None],
    "action_was_greedy": lambda g: g.astype(np.int64),
    "meters_advanced_along_centerline": lambda m: m * np.nan,
    "collector": lambda _: np.zeros(9),
    "race_time": lambda _: np.zeros(9),
    "info_mine": lambda _: np.zeros(4),
    "../../evil": lambda _: np.zeros(9),
}
FACTS_SPOILED = (
    {"n_actions": 8},
    {"meters": float("nan")},
    {"mean_speed_m_s": float("inf")},
    {"figures": {"a": 1e40}},
    {"inputs": "0.00 press up \u2028"},
    {"fragment": Fragment(True, 0, 11, 0, 0, 9)},
    {"fragment": Fragment(False, 0, 0, 0, 0, 11)},
)


def spoiled():
    """Races that decode as messages, but do not fit the run."""
    for name, change in COLUMNS_SPOILED.items():
        race = a_race(2)
        race.columns[name] = change(race.columns.get(name))
        yield race
    for missing in ("state_float", "q_values", "meters_advanced_along_centerline"):
        race = a_race(2)
        del race.columns[missing]
        yield race
    for facts in FACTS_SPOILED:
        race = a_race(2)
        race.facts = race.facts.with_changes(**facts)
        yield race
    yield a_race(2, n_actions=0)


FORGED = {
    b'"map_name": "valley"': b'"map_name": "../ley"',
    b'"inputs"': b'"inputz"',
    b'"generator"': b'"genera4or"',
    b'"furthest_zone_idx": 7': b'"furthest_zone_idx":""',
    b'"timings_ms"': b'"../../../x"',
    b'"race_time_ms": 450': b'"race_time_ms": -45',
    b'"is_explo": true': b'"is_explo": 1234',
    b"0.00 press": b"\\ud800 pre",
    b"float32": b"object_",
}
"""Texts in the messages of a race, and others of the same length that are refused."""


def refusal(data, max_actions):
    """The error of a damaged race; some bits have no meaning, and the race is the same."""
    try:
        results = decode_race(data, max_actions, SPACES, unchanged).columns
    except MessageError as error:
        return str(error)
    for name, value in a_race(1).columns.items():
        np.testing.assert_array_equal(results[name], value)
    return ""


def test_damaged_and_foreign_messages_give_one_error(settings):
    max_actions, message, rng = settings.game.most_states, message_of(1, 1), random.Random(5)
    mutated = [message[: rng.randrange(len(message))] for _ in range(50)]
    for _ in range(150):
        data = bytearray(message)
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        mutated.append(bytes(data))
    bomb = a_race(1)
    bomb.columns["frames"] = np.zeros(1 << 26, dtype=np.uint8)
    mutated += [b"", b"x" * 1000, message + b"x", message + message, encode_race(bomb, 1, unchanged)]
    for data in mutated:
        text = refusal(data, max_actions)
        assert "\n" not in text
        assert len(text) < 400
    for race in spoiled():
        assert refusal(encode_race(race, 1, unchanged), max_actions), race
    content = zstandard.ZstdDecompressor().decompress(message)
    for old, new in FORGED.items():
        forged = content.replace(old, new)
        assert forged != content
        assert refusal(zstandard.ZstdCompressor(write_checksum=True).compress(forged), max_actions)


def test_columns_without_numbers_are_not_sent():
    race = a_race(1)
    race.columns["own"] = np.array([None] * 9)
    with pytest.raises(MessageError, match="a race cannot be sent"):
        encode_race(race, 1, unchanged)


class Learner:
    """A run's channels with a server of workers."""

    def __init__(self, settings, folder, access=ON_LOOPBACK, state=None):
        self.run_state = SharedRunState(settings, {kind: network_of(0.5) for kind in WEIGHTS_KINDS})
        self.rollouts = Rollouts(settings.game.most_states, SPACES, 2, stop=self.run_state.stop_flag)
        self.channels = Channels(self.rollouts, self.run_state)
        self.server = ServeWorkers(access, network_of(0.0))
        self.server.run = SimpleNamespace(
            settings=settings,
            spaces=SPACES,
            channels=self.channels,
            session=3,
            progress={1000: CollectorProgress(n_races=6)},
            maps_folder=Path("maps"),
            folder=RunFolder(folder / "save", folder / "tensorboard"),
        )
        if state is not None:
            self.server.load_state_dict(state)
        self.server.begin()
        scheme = "http" if access.certificate is None else "https"
        self.address = f"{scheme}://localhost:{self.server.port}"

    def take(self, seed):
        """Receive a race as the learner does, and compare it with the one sent."""
        with got(self.rollouts) as race:
            np.testing.assert_array_equal(race.columns["state_float"], a_race(seed).columns["state_float"])
            assert race.facts.position == a_race(seed).facts.position
            return race.facts.collector

    def close(self):
        self.server.end()
        self.run_state.publish(stop=True)
        self.rollouts.close()


@pytest.fixture
def learner(settings, tmp_path):
    opened = []

    def open_it(*arguments, **named):
        opened.append(Learner(settings, tmp_path, *arguments, **named))
        return opened[-1]

    yield open_it
    for one in opened:
        one.close()


@pytest.fixture(autouse=True)
def facts(monkeypatch):
    monkeypatch.setattr(over_grpc, "fingerprint", lambda *_: FACTS)
    monkeypatch.setattr(over_grpc, "map_facts", lambda *_: {})


class Player:
    """A collector's ends, connected to a learner."""

    def __init__(self, address, settings, name=WORKER, token=TOKEN_TEXT, certificate=None, folder=SHIPPED_FOLDER):
        machine = WorkerSide(
            settings_of=WorkerConfig(SHIPPED_FOLDER, UserSettings()).settings_of,
            settings=settings,
            facts=FACTS,
            maps_folder=SHIPPED_FOLDER / "maps",
            folder=folder,
            frames_shape=frames_shape(settings.game.most_states, SPACES),
            weights_bytes=packed(network_of(0.0)).numel(),
        )
        self.stop, server = make_stop_flag(), LearnerAddress(address, token, certificate)
        self.state = RemoteLearner(server, name, machine, self.stop, multiprocessing.RawValue(Heartbeat))

    def play(self, *seeds):
        for seed in seeds:
            acquired(self.state)
            self.state.put(0, a_race(seed))

    def weight(self, kind="exploration"):
        network = network_of(9.0)
        self.state.pull_weights(kind, network, NO_WEIGHTS)
        return network[0].weight[0, 0].item()

    def close(self):
        self.stop.value = True
        if self.state._channel is not None:
            self.state._channel.close()


@pytest.fixture
def connect(settings):
    players = []

    def connect_it(to, **named):
        players.append(Player(to if isinstance(to, str) else to.address, settings, **named))
        players[-1].state.pull()
        return players[-1]

    yield connect_it
    for player in players:
        player.close()


def test_a_collector_plays_for_a_run_until_another_call_replaces_its_own(learner, connect):
    run = learner()
    player = connect(run)
    assert player.state.progress.n_races == 6
    assert player.weight() == player.weight("evaluation") == 0.5
    run.server.tick()
    assert run.server.run.n_workers == 1
    run.run_state.publish(weights={"exploration": network_of(2.0)}, frames_total=50)
    wait_until(lambda: player.weight() == 2.0 and player.state.frames_total == 50)
    assert player.weight("evaluation") == 0.5

    player.play(1, 2, 3)
    assert [run.take(seed) for seed in (1, 2, 3)] == [1000] * 3
    wait_until(lambda: not player.state._races)
    again = connect(run)
    other = connect(run, name="1" * 32)
    run.server.tick()
    assert run.server.run.n_workers == 2
    again.play(4)
    assert run.take(4) == 1000
    other.play(5)
    assert run.take(5) == 1001
    assert run.rollouts.get(timeout_s=0.1) is None


def test_a_race_counts_once_across_a_killed_learner(learner, connect):
    run = learner()
    player = connect(run)
    player.play(1, 2, 3)
    run.take(1)
    wait_until(lambda: run.server._workers[WORKER].received == 3)
    checkpoint = run.server.state_dict()
    assert checkpoint["workers"] == {WORKER: [1000, 1]}, "two races are received, but not learned from"
    run.take(2)
    wait_until(lambda: list(player.state._races) == [3])
    run.close()
    wait_until(lambda: not player.state._is_connected)
    player.play(*range(4, 4 + remote.MOST_RACES - 1))
    assert player.state.acquire_frames(0, 0.05) is None, "the collector waits"
    after = learner(dataclasses.replace(ON_LOOPBACK, port=run.server.port), state=checkpoint)
    for seed in range(3, 4 + remote.MOST_RACES - 1):
        after.take(seed)
    player.play(99)
    after.take(99)
    assert after.server.state_dict()["workers"] == {WORKER: [1000, 4 + remote.MOST_RACES - 1]}
    assert after.rollouts.get(timeout_s=0.1) is None


def test_a_run_that_begins_anew_gets_no_race_of_the_one_before(learner, connect):
    run = learner()
    player = connect(run)
    run.close()
    wait_until(lambda: not player.state._is_connected)
    player.play(1, 2)
    anew = learner(dataclasses.replace(ON_LOOPBACK, port=run.server.port))
    wait_until(lambda: not player.state._races)
    player.play(3)
    anew.take(3)
    assert anew.rollouts.get(timeout_s=0.1) is None


def test_a_collector_of_a_busy_learner_waits(learner, connect, monkeypatch):
    monkeypatch.setattr(remote, "MOST_ACTIONS_QUEUED", 0)
    run = learner()
    player = connect(run)
    player.play(*range(remote.MOST_QUEUED))
    wait_until(lambda: player.state._received == remote.MOST_QUEUED)
    assert player.state.acquire_frames(0, 0.2) is None
    run.take(0)
    player.play(4)


def metadata_of(token=TOKEN_TEXT, version=None):
    return (over_grpc.TOKEN, token), (over_grpc.VERSION, version or program_version())


def call(run, method, *messages, **metadata):
    """Code and details of a raw call; its first answer's bytes in place of details if no later message is refused."""
    data = [one if isinstance(one, bytes) else one.SerializeToString() for one in messages]
    with grpc.insecure_channel(run.address.removeprefix("http://")) as channel:
        try:
            if method == "Describe":
                describe = channel.unary_unary(f"/{over_grpc.SERVICE}/Describe")
                return "OK", describe(*data, metadata=metadata_of(**metadata), timeout=30)
            play = channel.stream_stream(f"/{over_grpc.SERVICE}/Play")
            answers = play(iter(data), metadata=metadata_of(**metadata), timeout=30)
            answer = next(answers)
            while len(messages) > 1:
                next(answers)
        except grpc.RpcError as error:
            return error.code().name, error.details()
        return "OK", answer


def hello_of(name):
    return pb.Upload(hello=pb.Hello(collector=name))


def test_hostile_clients_are_refused_in_one_line_and_others_play_on(learner, connect, monkeypatch):
    run = learner()
    good = connect(run)
    for method in ("Describe", "Play"):
        for token in ("wrong", ""):
            assert call(run, method, b"", token=token) == ("UNAUTHENTICATED", "the token differs from the learner's")
        code, text = call(run, method, b"", version="0.0.7")
        assert (code, "the worker '0.0.7'" in text) == ("FAILED_PRECONDITION", True)
        assert call(run, method, b"\xff" * 20)[0] == "INVALID_ARGUMENT"
    race, hello = message_of(1, 1), hello_of("3" * 32)
    assert call(run, "Play", pb.Upload(race=race), hello)[0] == "INVALID_ARGUMENT", "a race before the hello"
    assert call(run, "Play", hello_of("../x"))[0] == "INVALID_ARGUMENT"
    assert call(run, "Play", hello)[0] == "OK"
    rng = random.Random(3)
    for _ in range(30):
        data = bytearray(race)
        data[rng.randrange(12, len(data))] ^= 255
        assert call(run, "Play", hello, pb.Upload(race=bytes(data)))[0] == "INVALID_ARGUMENT"
    upload = pb.Upload(race=race).SerializeToString()
    for position, bit in itertools.product(range(len(upload) - len(race)), range(8)):
        data = bytearray(upload)
        data[position] ^= 1 << bit
        assert call(run, "Play", hello, bytes(data))[0] == "INVALID_ARGUMENT", "a part of the message is lost"
    large = bytes(serving.MOST_UPLOAD_BYTES + slot_bytes(run.run_state.settings.game.most_states, SPACES) + 100)
    assert call(run, "Play", hello, pb.Upload(race=large))[0] == "RESOURCE_EXHAUSTED"
    monkeypatch.setattr(serving, "MOST_WORKERS", 1)
    assert call(run, "Play", hello_of("4" * 32))[0] == "FAILED_PRECONDITION"
    good.play(1)
    run.take(1)
    assert run.rollouts.get(timeout_s=0.1) is None


def a_car(**changes):
    """A car as a worker's collector shows it."""
    values = {"collector": 0, "game": 1, "map_name": "valley", "track": "valley", "position": (1.5, 20.0, -3.0)}
    return LiveCar(**values | {"is_explo": True, "timestamp_s": time.time()} | changes)


def test_cars_of_a_worker_are_on_the_live_page_while_it_is_open(learner, connect, tmp_path):
    run, page = learner(), LiveReader(tmp_path / "save")
    live = tmp_path / "worker" / FOLDER
    live.mkdir(parents=True)
    player = connect(run, folder=live.parent)
    write_cars(live, 0, [a_car(timestamp_s=time.time() + 5.0)])  # by the worker's clock
    time.sleep(0.2)
    assert not (live / ASKED).exists(), "the page is not open"

    def is_shown():
        run.server.tick()
        return page.cars()

    wait_until(is_shown)
    [car] = page.cars()
    assert (car.collector, car.game, car.position) == (1000, 1, (1.5, 20.0, -3.0))
    assert car.timestamp_s <= time.time()
    player.play(1)
    run.take(1)


def test_damaged_cars_are_refused(learner):
    run, hello = learner(), hello_of("3" * 32)
    too_many = [a_car()] * (over_grpc.MOST_CARS + 1)
    spoiled = [a_car(map_name="../x"), a_car(track="a/b"), a_car(position=(1.0, math.nan, 0.0)), a_car(game=-1)]
    texts = [over_grpc.encode_cars(cars) for cars in (too_many, *([car] for car in spoiled))]
    for text in (*texts, "{}", "[[", '[{"game": 1}]', over_grpc.encode_cars([a_car()])[:-1]):
        assert call(run, "Play", hello, pb.Upload(cars=text))[0] == "INVALID_ARGUMENT", text[:80]


def test_a_call_that_another_one_replaced_brings_no_race(learner):
    run, later = learner(), threading.Event()

    def uploads():
        yield hello_of(WORKER).SerializeToString()
        later.wait(60)
        yield pb.Upload(race=message_of(1, 1)).SerializeToString()

    with grpc.insecure_channel(run.address.removeprefix("http://")) as channel:
        answers = channel.stream_stream(f"/{over_grpc.SERVICE}/Play")(uploads(), metadata=metadata_of(), timeout=30)
        next(answers)
        assert call(run, "Play", hello_of(WORKER))[0] == "OK"
        later.set()
        with pytest.raises(grpc.RpcError, match="has replaced this one"):
            list(answers)
    assert run.rollouts.get(timeout_s=0.1) is None


def n_files():
    """Open files of this process."""
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
def many_files():
    """Lets a test have more open files than `select` can take, and waits until they are closed."""
    limits, before = resource.getrlimit(resource.RLIMIT_NOFILE), n_files()
    yield
    wait_until(lambda: n_files() < before + 50)
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.mark.skipif(sys.platform != "linux", reason="counts files as Linux does")
def test_idle_connections_without_a_call_are_bounded(many_files, learner, connect):
    run = learner()
    good = connect(run)
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= 4 * serving.MOST_CONNECTIONS
    with contextlib.ExitStack() as closing:
        idle = []
        for _ in range(serving.MOST_CONNECTIONS + 50):
            idle.append(closing.enter_context(socket.create_connection(("127.0.0.1", run.server.port))))
        wait_until(lambda: sum(map(is_closed, idle)) >= 50)
        good.play(1)
        run.take(1)
        wait_until(lambda: not good.state._races)


def is_closed(connection):
    """The other end has closed it."""
    connection.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while connection.recv(1 << 12):
            pass
        return True
    return False


def news_of(run, digests, number):
    """The first news of a call."""
    context = SimpleNamespace(is_active=lambda: True)
    return list(itertools.islice(run.server._news(serving._Worker(1005, call=context), digests, context), number))


def test_weights_come_in_pieces_and_again_only_after_a_change(learner, monkeypatch):
    monkeypatch.setattr(over_grpc, "PIECE_BYTES", 100)
    run, digests = learner(), {}
    whole = packed(network_of(0.5)).numpy().tobytes()
    n_pieces = 2 * math.ceil(len(whole) / 100)
    pieces = [news.weights for news in news_of(run, digests, 1 + n_pieces)[1:]]
    for kind in WEIGHTS_KINDS:
        assert b"".join(piece.piece for piece in pieces if piece.kind == kind) == whole
    assert max(len(piece.piece) for piece in pieces) == 100
    assert set(digests.values()) == {digest_of(whole)}
    run.run_state.publish(frames_total=7)
    assert news_of(run, digests, 2)[1] == pb.News(frames_total=7)


VALUES = packed(network_of(1.0)).numpy().tobytes()
NAN = np.full(len(VALUES) // 4, np.nan, dtype=np.float32).tobytes()


def weights(data=VALUES, **changes):
    """News of a kind of weights, whole."""
    piece = {"kind": "exploration", "digest": digest_of(data), "size": len(data), "offset": 0, "piece": data}
    return pb.News(weights=pb.Weights(**(piece | changes)))


HOSTILE = {
    "no message": ([b"\xff" * 20], "is damaged"),
    "a large message": ([bytes(over_grpc.MOST_NEWS_BYTES + 1)], "too large"),
    "no facts": ([{"facts": {}}], "observation is missing there"),
    "escapes in facts": ([{"facts": FACTS | {"a\x1b[2J": "b"}}], r"a\?\[2J is b there"),
    "no progress": ([{"progress": "{}"}], "progress of this collector is damaged"),
    "negative progress": ([{"progress": json.dumps(CollectorProgress(n_races=-5).state_dict())}], "is damaged"),
    "no settings": ([{"settings": "[1]"}], "settings cannot be used"),
    "other weights": ([{}, weights(b"1234")], "another network"),
    "a piece elsewhere": ([{}, weights(offset=5)], "another network, or damaged"),
    "damaged weights": ([{}, weights(digest=b"x")], "weights are damaged"),
    "weights not finite": ([{}, weights(NAN), weights(NAN, kind="evaluation")], "not finite"),
}


@pytest.fixture
def evil(learner):
    """`evil(news)` serves these news and returns the address; a dictionary changes the description."""
    servers, ends = [], threading.Event()

    def serve(news):
        run = learner()
        description = run.server._description(serving._Worker(1000))

        def follow(*_):
            for one in news:
                if isinstance(one, dict):
                    changed = pb.Description()
                    changed.CopyFrom(description)
                    for name, value in one.items():
                        changed.ClearField(name)
                        changed.MergeFrom(pb.Description(**{name: value}))
                    one = pb.News(description=changed)
                yield one if isinstance(one, bytes) else one.SerializeToString()
            ends.wait(60)

        server = grpc.server(ThreadPoolExecutor(1), options=(("grpc.max_send_message_length", -1),))
        handlers = {"Play": grpc.stream_stream_rpc_method_handler(follow)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(over_grpc.SERVICE, handlers),))
        servers.append(server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        return f"http://127.0.0.1:{port}"

    yield serve
    ends.set()
    for server in servers:
        server.stop(None)


@pytest.mark.parametrize(("news", "text"), HOSTILE.values(), ids=HOSTILE)
def test_hostile_learners_are_refused_in_one_line(evil, connect, news, text):
    with pytest.raises(LearnerFaultError, match=text) as caught:
        connect(evil(news)).weight()
    assert str(caught.value).isprintable()


def test_a_learner_names_no_files_outside_the_maps_folder(settings):
    values = over_grpc.settings_for_workers(settings, 1)
    read = WorkerConfig(SHIPPED_FOLDER, UserSettings()).settings_of
    read(json.dumps(values))
    for path in ("/etc/passwd", "../../etc/passwd", "C:\\x"):
        values["game"]["map_cycle"][0]["map_path"] = path
        with pytest.raises(UserError, match="is no file within"):
            read(json.dumps(values))


def test_workers_get_no_whole_paths_of_the_learners_machine(settings, tmp_path):
    (tmp_path / "valley.toml").write_text("")
    entry = {
        "map_name": "v",
        "map_path": f"{tmp_path}/valley.toml",
        "is_explo": True,
        "fill_buffer": True,
        "reference_line": "v.npy",
    }
    changed = settings_from_flat(settings.flat() | {"maps_folder": str(tmp_path), "map_cycle": [entry]})
    told = json.dumps(over_grpc.settings_for_workers(changed, 1))
    facts = over_grpc.fingerprint(changed, SPACES, torch.nn.Linear(1, 1), tmp_path)
    assert str(tmp_path) not in told + json.dumps(facts)
    assert "valley.toml" in told
    assert "map valley.toml" in facts


@pytest.mark.parametrize("other", [{"network": "c"}, {"map valley.toml": ""}, {}])
def test_machines_must_share_the_facts_about_a_run(other):
    over_grpc.require_same(FACTS, FACTS | {"map more.toml": "d"})
    own = FACTS | other if other else dict.fromkeys(over_grpc.NEEDED_FACTS, "a")
    with pytest.raises(UserError, match=f"cannot be played here: {next(iter(other), 'map valley.toml')} is "):
        over_grpc.require_same(FACTS, own)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """PEM files of a certificate for localhost, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    crt, key = folder / "server.crt", folder / "server.key"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    try:
        subprocess.run([*command, "-keyout", key, "-out", crt], check=True, capture_output=True)
    except FileNotFoundError:
        lacks("there is no openssl")
    return crt, key


def test_tls_needs_the_learners_certificate(learner, connect, certificate):
    access = WorkerAccess.of_command("127.0.0.1:0", TOKEN_TEXT, certificate, False)
    run = learner(access)
    player = connect(run, certificate=certificate[0].read_bytes())
    player.play(1)
    run.take(1)
    with pytest.raises(LearnerFaultError, match="no TLS connection"):
        connect(run)
    damaged = dataclasses.replace(access, key=b"nonsense")
    with pytest.raises(UserError, match="is damaged"):
        learner(damaged)
    with pytest.raises(PassingError, match="cannot be served"):
        learner(dataclasses.replace(access, port=run.server.port))


def test_the_doctor_checks_a_learner(learner, certificate):
    run = learner(WorkerAccess.of_command("127.0.0.1:0", TOKEN_TEXT, certificate, False))
    right = LearnerAddress(run.address, TOKEN_TEXT, certificate[0].read_bytes())
    servers = {
        "serves run simulated to this worker: a token": right,
        "the token differs": dataclasses.replace(right, token="wrong"),
        "no TLS connection": dataclasses.replace(right, certificate=None),
        "does not answer": dataclasses.replace(right, address="https://localhost:9"),
    }
    for text, server in servers.items():
        [finding] = check_learner(server)
        assert text in finding.text
        assert (finding.level is Level.OK) == (server is right)


@pytest.mark.parametrize("address", ["0.0.0.0:8470", "[::]:8470", "192.168.0.7:8470", "learner:8470"])
def test_beyond_this_machine_a_learner_asks_for_token_and_tls(address, certificate):
    for token, files in (("", certificate), (TOKEN_TEXT, None), ("", None)):
        with pytest.raises(UserError, match="give a token"):
            WorkerAccess.of_command(address, token, files, False)
    assert WorkerAccess.of_command(address, "", None, True).token is None
    assert WorkerAccess.of_command(address, TOKEN_TEXT, certificate, False).certificate
    http = f"http://{address}"
    with pytest.raises(UserError, match="without TLS"):
        LearnerAddress.of_command(http, TOKEN_TEXT, None, False)
    assert LearnerAddress.of_command(http, TOKEN_TEXT, None, True).address == http


@pytest.mark.parametrize("address", ["8470", "x:99999", ":80", "h:"])
def test_a_wrong_address_is_refused(address):
    with pytest.raises(UserError, match="write HOST:PORT"):
        WorkerAccess.of_command(address, "", None, True)


def test_a_worker_that_ray_starts_tells_why_it_ended(learner, ray_here):
    from trackmania_rl.multiprocess.cluster import WorkerJob

    run, config = learner(), WorkerConfig(SHIPPED_FOLDER, UserSettings())
    job = WorkerJob(5, run.server, LearnerAddress(run.address, "another token"), config)
    job.start()
    failures = []
    wait_until(lambda: failures.append(job.failure(0.1)) or failures[-1])
    assert "refuses this worker: the token differs" in failures[-1]
    job.end()
