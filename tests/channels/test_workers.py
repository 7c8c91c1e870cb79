"""Workers: messages, the server of a run, and a worker's spool, over gRPC on loopback."""

import contextlib
import dataclasses
import json
import random
import socket
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import grpc
import numpy as np
import pytest
import torch
import zstandard
from gymnasium.spaces import Discrete

from trackmania_rl.channels import over_grpc
from trackmania_rl.channels.over_grpc import (
    Description,
    MessageError,
    News,
    WorkerAccess,
    decode,
    decode_race,
    encode,
    encode_race,
    join_messages,
)
from trackmania_rl.channels.rollouts import RolloutBounds, Rollouts
from trackmania_rl.channels.run_state import Channels, RunState
from trackmania_rl.doctor.findings import Level
from trackmania_rl.errors import PassingError, UserError
from trackmania_rl.multiprocess import serving
from trackmania_rl.multiprocess.serving import ServeWorkers
from trackmania_rl.multiprocess.worker import LearnerAddress, Spool, WorkerConfig, check_learner
from trackmania_rl.paths import SHIPPED_FOLDER
from trackmania_rl.race.progress import CollectorProgress
from trackmania_rl.race.race import Fragment, Race, RaceFacts, RacePosition
from trackmania_rl.race.spaces import Spaces
from trackmania_rl.settings import UserSettings, settings_from_flat

if sys.platform != "win32":
    import resource

from ..keep_games_command import wait_until
from ..lacking import lacks
from .conftest import got, network_of

SPACES = Spaces((0.0,) * 5, (1.0,) * 5, Discrete(3), (1, 6, 8))
TOKEN_TEXT = "correct-horse"
FACTS = {"network": "a", "map valley.toml": "b"}
ON_LOOPBACK = WorkerAccess("127.0.0.1", 0, TOKEN_TEXT)
WORKER = "0" * 32


def a_race(seed, n_actions=9, **facts):
    """A race as a collector puts it, with all kinds of values."""
    rng = np.random.default_rng(seed)
    columns = {
        "frames": rng.integers(0, 256, (n_actions + 1, 1, 6, 8), dtype=np.uint8),
        "state_float": rng.standard_normal((n_actions + 1, 5)).astype(np.float32),
        "actions": rng.integers(0, 3, n_actions),
        "action_was_greedy": rng.random(n_actions) < 0.5,
        "q_values": np.full((n_actions, 3), np.nan, dtype=np.float32),
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
        "position": RacePosition(number=5, place=1, generator="a", generator_number=2),
        "inputs": "0.00 press up\n",
        "cutoff_reason": None,
        "checkpoint_times_ms": (),
        "timings_ms": {"a": 1e-300},
    }
    return Race(columns, RaceFacts(**(values | facts)))


def message_of(seed, sequence, compress=over_grpc.all_columns, **stats):
    return encode_race(a_race(seed, **stats), sequence, compress)


def bounds_of(settings):
    return RolloutBounds.of_game(settings.game, SPACES)


@pytest.mark.parametrize("stats", [{}, {"fragment": Fragment(False, 3, 2, 1, 0, 5)}], ids=["race", "fragment"])
def test_a_race_arrives_bit_for_bit(settings, stats):
    received = decode_race(message_of(1, 4, **stats), bounds_of(settings), SPACES)
    expected = a_race(1, **stats)
    assert received.columns.keys() == expected.columns.keys()
    for name, column in expected.columns.items():
        assert received.columns[name].dtype == column.dtype
        np.testing.assert_array_equal(received.columns[name], column)
    assert received.facts == expected.facts.with_changes(sequence=4)


def test_half_floats_arrive_as_floats(settings):
    message = message_of(1, 1, over_grpc.half_floats)
    assert len(message) < len(message_of(1, 1))
    results = decode_race(message, bounds_of(settings), SPACES).columns
    expected = a_race(1).columns
    assert results["state_float"].dtype == np.float32
    np.testing.assert_allclose(results["state_float"], expected["state_float"], rtol=1e-3)
    assert results["meters_advanced_along_centerline"].dtype == np.float64


COLUMNS_SPOILED = {
    "actions": lambda a: a + 3,
    "state_float": lambda f: f[:, :4],
    "frames": lambda f: f[:-2],
    "q_values": lambda q: q[:, :, None],
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
    b"0.00 press": b"\\ud800 pres",
}
"""Texts in the header of a race, and others of the same length that are refused."""


def refusal(data, bounds):
    """The error of a damaged race; some bits have no meaning, and the race is the same."""
    try:
        results = decode_race(data, bounds, SPACES).columns
    except MessageError as error:
        return str(error)
    for name, value in a_race(1).columns.items():
        np.testing.assert_array_equal(results[name], value)
    return ""


def test_damaged_and_foreign_messages_give_one_error(settings):
    bounds, message, rng = bounds_of(settings), message_of(1, 1), random.Random(5)
    mutated = [message[: rng.randrange(len(message))] for _ in range(50)]
    for _ in range(150):
        data = bytearray(message)
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        mutated.append(bytes(data))
    mutated += [b"", b"x" * 1000, message + b"x", message + message, encode(News())]
    for race in spoiled():
        assert refusal(encode_race(race, 1, over_grpc.all_columns), bounds), race
    bomb = encode(a_race(1).facts, {"actions": np.zeros(1 << 26, dtype=np.uint8)})
    for data in [*mutated, bomb]:
        text = refusal(data, bounds)
        assert "\n" not in text
        assert len(text) < 400
    content = zstandard.ZstdDecompressor().decompress(message)
    for old, new in FORGED.items():
        forged = content.replace(old, new)
        assert forged != content
        assert refusal(zstandard.ZstdCompressor(write_checksum=True).compress(forged), bounds)


def test_what_is_no_data_is_not_sent():
    race = a_race(1)
    race.columns["own"] = np.array([None] * 9)
    with pytest.raises(MessageError, match="a race cannot be sent"):
        encode_race(race, 1, over_grpc.all_columns)


class Learner:
    """A run's channels with a server of workers, and the news as a worker decodes them."""

    def __init__(self, settings, access=ON_LOOPBACK, state=None):
        self.run_state = RunState(settings, {"exploration": network_of(0.5)})
        self.rollouts = Rollouts(bounds_of(settings), 2, stop=self.run_state.stop_flag)
        self.server = ServeWorkers(access, {"exploration": network_of(0.0)})
        self.server.run = SimpleNamespace(
            settings=settings,
            spaces=SPACES,
            channels=Channels(self.rollouts, self.run_state),
            session=3,
            progress={1000: CollectorProgress(n_races=6)},
            maps_folder=Path("maps"),
            statistics=SimpleNamespace(checkpoint_time_s=None),
        )
        if state is not None:
            self.server.load_state_dict(state)
        self.server.begin()
        scheme = "http" if access.certificate is None else "https"
        self.address = f"{scheme}://localhost:{self.server.port}"

    def close(self):
        self.server.end()
        self.run_state.publish(stop=True)
        self.rollouts.close()


@pytest.fixture
def learner(settings):
    opened = []

    def open_it(*arguments, **named):
        opened.append(Learner(settings, *arguments, **named))
        return opened[-1]

    yield open_it
    for one in opened:
        one.close()


@pytest.fixture(autouse=True)
def facts(monkeypatch):
    monkeypatch.setattr(over_grpc, "fingerprint", lambda *_: FACTS)


def refused(connect, *arguments, **named):
    """The end of a call at its beginning."""
    with pytest.raises(grpc.RpcError) as caught:
        connect(*arguments, **named)
    return caught.value.code().name, caught.value.details()


class Client:
    """One call of a worker; `send` messages, `receive` the next answer."""

    def __init__(self, learner, token=TOKEN_TEXT, certificate=None, worker=WORKER):
        self.sent = SimpleNamespace(items=[], changed=threading.Condition(), ends=False)
        self._closing = contextlib.ExitStack()
        server = LearnerAddress(learner.address, token, certificate)
        self.description, self.call = self._closing.enter_context(server.call(self._requests(), worker))

    def _requests(self):
        n_sent = 0
        while True:
            with self.sent.changed:
                self.sent.changed.wait_for(lambda: len(self.sent.items) > n_sent or self.sent.ends)  # noqa: B023
                if len(self.sent.items) <= n_sent:
                    return
            yield self.sent.items[n_sent]
            n_sent += 1

    def send(self, *messages):
        with self.sent.changed:
            self.sent.items.append(join_messages(messages))
            self.sent.changed.notify_all()

    def receive(self, kind=News):
        return decode(next(self.call), kind, 1 << 24)

    def error(self):
        """The end of the call, with its code."""
        with pytest.raises(grpc.RpcError) as caught:
            list(self.call)
        assert "\n" not in caught.value.details()
        return caught.value.code().name, caught.value.details()

    def news_of(self, sequence):
        """The news that the learner has taken a race."""
        while (news := self.receive()[0]).taken < sequence:
            pass
        return news

    def close(self):
        with self.sent.changed:
            self.sent.ends = True
            self.sent.changed.notify_all()
        self._closing.close()


@pytest.fixture
def connect():
    clients = []

    def connect_it(*arguments, **named):
        clients.append(Client(*arguments, **named))
        return clients[-1]

    yield connect_it
    for client in clients:
        client.close()


def take(learner, seed):
    """Receive a race as the learner does, count it, and compare it with the one sent."""
    with got(learner.rollouts) as race:
        np.testing.assert_array_equal(race.columns["state_float"], a_race(seed).columns["state_float"])
        assert race.facts.position == a_race(seed).facts.position
        learner.server.on_race(race)
        return race.facts.collector


def test_a_worker_plays_for_a_run_until_another_call_replaces_its_own(learner, connect, settings):
    run = learner()
    client = connect(run)
    joined = client.description
    assert joined.facts == FACTS
    assert (joined.received, joined.progress["n_races"], joined.name) == (0, 6, "session-3/call-1")
    run.server.tick()
    assert run.server.run.n_workers == 1
    _, arrays = client.receive()
    assert set(arrays["exploration"].view(np.float32).tolist()) == {0.5}
    run.run_state.publish(weights={"exploration": network_of(2.0)}, frames_total=50)
    received = [client.receive()]
    while not received[-1][1]:
        received.append(client.receive())
    assert set(received[-1][1]["exploration"].view(np.float32).tolist()) == {2.0}
    assert 50 in [news.frames_total for news, _ in received]

    client.send(*(message_of(sequence, sequence) for sequence in (1, 2, 2, 1)))  # repeats are dropped
    client.send(message_of(3, 3))
    assert [take(run, seed) for seed in (1, 2, 3)] == [1000] * 3
    assert client.news_of(3).acknowledged == 0, "no checkpoint holds them"
    again = connect(run)
    assert again.description.received == 3
    assert client.error()[0] == "ABORTED"
    other = connect(run, worker="1" * 32).description
    assert other.settings["run"].pop("seed") != joined.settings["run"].pop("seed")
    assert other.settings == joined.settings
    run.server.tick()
    assert run.server.run.n_workers == 2
    assert run.rollouts.get(timeout_s=0.2) is None
    again.send(message_of(4, 4))
    assert take(run, 4) == 1000


def test_the_end_of_a_run_waits_for_what_waits_for_room(learner, connect):
    run = learner()
    client = connect(run)
    for sequence in range(1, 10):  # twice the room
        client.send(message_of(sequence, sequence))
    with got(run.rollouts):
        run.server.end()
    assert not [thread for thread in threading.enumerate() if thread.name == "worker 1000"]


def test_counts_of_races_survive_the_learner(learner, connect):
    run = learner()
    client = connect(run)
    for sequence in (1, 2):
        client.send(message_of(sequence, sequence))
    take(run, 1)
    assert client.news_of(1).taken == 1, "the second one waits in the queue"
    run.server.tick()
    state = run.server.state_dict()
    assert state == {WORKER: [1000, 1]}, "the second one is received, but was not counted"
    after = learner(state=state)
    client = connect(after)
    assert client.description.received == 1
    for sequence in (1, 2, 3):
        client.send(message_of(sequence, sequence))
    assert take(after, 2) == 1000
    assert take(after, 3) == 1000
    client.news_of(3)
    assert after.server.state_dict() == {WORKER: [1000, 3]}
    after.server.run.statistics.checkpoint_time_s = 5.0
    after.server.tick()
    while client.receive()[0].acknowledged < 3:
        pass
    assert after.rollouts.get(timeout_s=0.2) is None


def test_hostile_clients_are_refused_in_one_line_and_others_play_on(learner, connect, monkeypatch):
    run = learner()
    good = connect(run)
    for token in ("wrong", ""):
        assert refused(connect, run, token=token) == ("UNAUTHENTICATED", "the token differs from the learner's")
    with monkeypatch.context() as patch:
        patch.setattr("trackmania_rl.multiprocess.worker.program_version", lambda: "0.0.7")
        code, text = refused(connect, run)
    assert code == "FAILED_PRECONDITION"
    assert "the worker '0.0.7'" in text
    assert list(connect(run, worker="").call) == [], "a call that only looks"
    forged = Description.model_construct(run="../x", settings={}, facts={"a\nb": "1"})
    for message in (b"", b"x" * 100, encode(News()), encode(forged)):
        client = connect(run, worker="3" * 32)
        client.send(message)
        assert client.error()[0] == "INVALID_ARGUMENT"
    rng, race = random.Random(3), message_of(1, 1)
    for _ in range(20):
        data = bytearray(race)
        data[rng.randrange(12, len(data))] ^= 255
        client = connect(run, worker="3" * 32)
        client.send(bytes(data))
        assert client.error()[0] == "INVALID_ARGUMENT"
    large = connect(run, worker="3" * 32)
    large.send(bytes(over_grpc.PACKET_BYTES + bounds_of(run.run_state.settings).slot_bytes + 100))
    assert large.error()[0] in ("RESOURCE_EXHAUSTED", "CANCELLED")
    good.send(message_of(1, 1))
    take(run, 1)
    good.news_of(1)


@pytest.mark.skipif(sys.platform == "win32", reason="counts files as Linux does")
def test_idle_connections_without_a_call_are_bounded(learner, connect):
    run = learner()
    good = connect(run)
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= 4 * serving.MOST_CONNECTIONS
    with contextlib.ExitStack() as closing:
        idle = []
        for _ in range(serving.MOST_CONNECTIONS + 50):
            idle.append(closing.enter_context(socket.create_connection(("127.0.0.1", run.server.port))))
        wait_until(lambda: sum(map(is_closed, idle)) >= 50)
        good.send(message_of(1, 1))
        take(run, 1)
        good.news_of(1)


def is_closed(connection):
    """The other end has closed it."""
    connection.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while connection.recv(1 << 12):
            pass
        return True
    return False


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
    own = FACTS | other if other else {"network": "a"}
    with pytest.raises(UserError, match=f"cannot be played here: {next(iter(other), 'map valley.toml')} is "):
        over_grpc.require_same(FACTS, own)


def test_no_more_workers_than_the_most(learner, connect, monkeypatch):
    run = learner()
    monkeypatch.setattr(serving, "MOST_WORKERS", 2)
    for worker in ("0", "1"):
        connect(run, worker=worker * 32)
    assert refused(connect, run, worker="2" * 32)[0] == "FAILED_PRECONDITION"


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
    own = certificate[0].read_bytes()
    client = connect(run, certificate=own)
    client.send(message_of(1, 1))
    take(run, 1)
    without = LearnerAddress(run.address, TOKEN_TEXT)
    with pytest.raises(grpc.RpcError) as caught, without.call(iter(())):
        pass
    assert "no TLS connection" in str(without.refusal(caught.value))
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


def test_the_spool_holds_races_of_one_run_until_they_are_acknowledged(tmp_path, monkeypatch):
    spool = Spool(tmp_path, most_bytes=100)
    assert spool.begin("run", received=7) == 7
    with pytest.raises(PassingError, match="another worker"):
        Spool(tmp_path, most_bytes=100)
    for sequence in (8, 9, 10):
        assert not spool.is_full(False, 1)
        spool.add(sequence, 20, bytes(40))
    assert spool.is_full(False, 1)
    assert not spool.is_full(True, 1)
    assert spool.packet_after(8, 41) == (8, b"")
    assert spool.packet_after(8, 40) == (10, join_messages([bytes(40)] * 2))
    monkeypatch.setattr(over_grpc, "PACKET_BYTES", 40)
    assert spool.packet_after(8, 40) == (9, join_messages([bytes(40)]))
    spool.acknowledge(8)
    assert not spool.is_full(False, 1)
    spool.add(11, 20, bytes(40))
    assert spool.is_full(False, 1)
    spool.taken = 9
    assert not spool.is_full(False, 1)
    spool.add(12, 20, bytes(20))
    assert spool.packet_after(0, 1)[0] == 10, "those that were taken make room"
    worker = spool.worker
    spool.lock_file.release()

    spool = Spool(tmp_path, most_bytes=100)
    assert spool.worker == worker
    assert spool.begin("run", received=9) == 12
    assert spool.packet_after(9, 1) == (10, join_messages([bytes(40)]))
    spool.lock_file.release()
    spool = Spool(tmp_path, most_bytes=100)
    assert spool.begin("another run", received=0) == 0
    assert spool.packet_after(0, 1) == (0, b"")


def test_a_worker_that_ray_starts_tells_why_it_ended(learner, ray_here):
    from trackmania_rl.multiprocess.cluster.workers import WorkerJob

    run, config = learner(), WorkerConfig(Path("maps"), SHIPPED_FOLDER, UserSettings())
    job = WorkerJob(5, LearnerAddress(run.address, "another token"), config, run.run_state)
    job.start()
    failures = []
    wait_until(lambda: failures.append(job.failure(0.1)) or failures[-1])
    assert "refuses this worker: the token differs" in failures[-1]
    job.end()
