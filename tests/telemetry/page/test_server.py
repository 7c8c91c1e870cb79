"""The server's answers: pages, refusals, and the same values for all tabs."""

import contextlib
import re
import socket
import time
from http.client import HTTPConnection

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from tests.run_log import write_races
from tests.telemetry.conftest import status_of
from tests.telemetry.page.conftest import LIVE, make_run, race_line, serving
from trackmania_rl.runs.log import RunLog
from trackmania_rl.telemetry.page import server
from trackmania_rl.telemetry.page import server as server_module
from trackmania_rl.telemetry.page.server import make_app

TOKEN = "a-secret-word"
LIVE_ELSEWHERE = "ws://box.example:8600/live"


def edit_token(client):
    match = re.search(r'name="edit-token" content="([^"]+)"', client.get("/").text)
    return match[1]


def test_the_page_needs_nothing_from_elsewhere(client):
    page = client.get("/")
    assert page.status_code == 200
    assert "default-src 'self'" in page.headers["content-security-policy"]
    for address in re.findall(r'(?:src|href)="([^"#]+)"', page.text):
        assert address.startswith("/static/")
        assert client.get(address).status_code == 200
    assert "MIT License" in client.get("/static/vendor/uPlot-LICENSE.txt").text


def test_only_runs_of_the_folder_are_opened(client, run, repository_root):
    make_run(run.path.parent, repository_root, "other", n_races=3)
    outside = make_run(run.path.parent.parent, repository_root, "outside")
    assert client.get("/runs/other/api/settings").json()["error"] == ""
    with client.websocket_connect(f"{LIVE.removesuffix('/live')}/runs/other/live") as tab:
        assert tab.receive_json()["run"]["name"] == "other"
    for name in ("nowhere", f"..%2f{outside.name}", ".%2e"):
        assert client.get(f"/runs/{name}/api/settings").status_code in (404, 422)


def test_every_tab_gets_the_same_and_their_number_is_bounded(client, page, run, monkeypatch):
    monkeypatch.setattr(server_module, "MOST_TABS", 2)
    watched = set()
    cars = page.cars
    monkeypatch.setattr(page, "cars", lambda watches: watched.update(watches) or cars(watches))
    with client.websocket_connect(LIVE) as tab, client.websocket_connect(LIVE) as other:
        first = tab.receive_json()
        assert first["run"]["name"] == "tested"
        assert len(first["races"]["curves"]["valley/evaluated"]) == 10
        assert other.receive_json()["races"] == first["races"]
        with client.websocket_connect(LIVE) as one_too_many, pytest.raises(WebSocketDisconnect):
            one_too_many.receive_json()
        wrong = ("no JSON", "[]", '{"watch": "0:3"}', '{"watch": [0, -3]}', '{"watch": [true, false]}', " " * 2000)
        for message in (*wrong, '{"watch": [0, 3]}'):
            other.send_text(message)
        write_races(run.run_log, [race_line(22)])
        for socket in (tab, other):
            while not (races := socket.receive_json().get("races")):
                pass
            assert races["curves"]["valley/evaluated"] == [[8800, 29.78, 976.5]]
        while (0, 3) not in watched:
            tab.receive_json()
    assert watched <= {None, (0, 3)}


def test_an_edit_needs_the_page_s_own_token(client, run):
    edit = {"name": "evaluation_weights_decay", "text": "0.8"}
    assert client.post("/api/settings", json=edit).status_code == 403
    assert client.post("/api/settings", json=edit, headers={"X-Edit-Token": "wrong"}).status_code == 403
    assert "evaluation_weights_decay = 0.8" not in run.settings.read_text()
    token = {"X-Edit-Token": edit_token(client)}
    assert client.post("/api/settings", json=edit, headers=token).json() == {
        "changed": {"evaluation_weights_decay": "0.998 -> 0.8"}
    }
    assert "evaluation_weights_decay = 0.8" in run.settings.read_text()
    refused = client.post("/api/settings", json=edit | {"text": "7"}, headers=token)
    assert refused.status_code == 422
    assert "evaluation_weights_decay = 7: input should be less than 1" in refused.json()["detail"]
    assert "evaluation_weights_decay = 0.8" in run.settings.read_text()
    other_site = token | {"Origin": "http://evil.example"}
    assert client.post("/api/settings", json=edit, headers=other_site).status_code == 403


def test_half_open_connections_do_not_shut_others_out(page, monkeypatch, caplog):
    monkeypatch.setattr(server, "MOST_CONNECTIONS", 50)
    with serving(page) as port, contextlib.ExitStack() as closing:
        at = ("127.0.0.1", port)
        half_open = []
        for n_more, answered in ((30, 200), (40, 503)):
            half_open += [closing.enter_context(socket.create_connection(at, timeout=60)) for _ in range(n_more)]
            for connection in half_open[-n_more:]:
                connection.sendall(b"GET / HTTP/1.1\r\n")
            asking = HTTPConnection(*at, timeout=60)
            asking.request("GET", "/metrics", headers={"Host": "localhost"})
            assert asking.getresponse().status == answered
            asking.close()
        for connection in half_open:
            connection.close()
    assert all("concurrency" in record.message for record in caplog.records)


@pytest.mark.parametrize(
    ("header", "status"), [({"Content-Length": str(400 << 20)}, 413), ({"Transfer-Encoding": "chunked"}, 411)]
)
def test_a_large_body_is_refused_by_its_header(client, header, status):
    answer = client.post("/api/settings", content=b"{}", headers=header)
    assert (answer.status_code, answer.headers["connection"]) == (status, "close")


def test_only_names_of_this_machine_reach_the_page(client):
    for host in ("localhost:8600", "127.0.0.1:8600", "[::1]:8600", "LOCALHOST"):
        assert client.get("/", headers={"Host": host}).status_code == 200
    for host in ("evil.example", "evil.example:8600", "127.0.0.1.evil.example:8600", ""):
        for path in ("/", "/metrics"):
            assert client.get(path, headers={"Host": host}).status_code == 421
        with pytest.raises(WebSocketDisconnect), client.websocket_connect(LIVE, headers={"Host": host}):
            pass
    other_site = {"Origin": "http://evil.example"}
    with pytest.raises(WebSocketDisconnect), client.websocket_connect(LIVE, headers=other_site):
        pass


def test_a_page_for_other_machines_needs_its_token_everywhere(page):
    app = make_app(page, host="0.0.0.0", port=8600, token=TOKEN)
    with TestClient(app, base_url="http://box.example:8600", follow_redirects=False) as client:
        for path in ("/", "/api/settings", "/static/app.js", "/?token=wrong", f"/api/settings?token={TOKEN}"):
            assert client.get(path).status_code == 401
        with pytest.raises(WebSocketDisconnect), client.websocket_connect(LIVE_ELSEWHERE):
            pass
        bearer = {"Authorization": f"Bearer {TOKEN}"}
        assert client.get("/", headers=bearer).status_code == 200
        for path in ("/healthz", "/metrics"):
            assert client.get(path).status_code == 401
            assert client.get(path, headers=bearer).status_code in (200, 503)
        entered = client.get(f"/?token={TOKEN}")
        assert (entered.status_code, entered.headers["location"]) == (303, "/")
        assert "HttpOnly" in entered.headers["set-cookie"]
        assert "samesite=strict" in entered.headers["set-cookie"].lower()
        assert client.get("/").status_code == 200
        with client.websocket_connect(LIVE_ELSEWHERE) as tab:
            assert tab.receive_json()["run"]["name"] == "tested"


def _tell(run, **changes):
    now_s = time.monotonic()
    times = {"timestamp_s": now_s, "ticked_at_s": now_s - 2.0, "raced_at_s": now_s - 3.0}
    figures = {"frames_total": 12_345.0, "collectors_alive": 2.0, "collector_restarts_total": 7.0}
    losses = {"loss": 0.5, 'odd"name\\': 1.5}
    status = status_of(**{**times, "figures": figures, "losses": losses, **changes})
    with contextlib.closing(RunLog(run.run_log, lambda: 0.0, 1)) as log:
        log.write_status(status)


def test_health_is_200_while_the_training_beats_and_503_otherwise(client, run):
    run.run_log.unlink()
    answer = client.get("/healthz")
    not_trained = {"ok": False, "run": "tested", "problem": "this run is not being trained"}
    assert (answer.status_code, answer.json()) == (503, not_trained)
    _tell(run)
    answer = client.get("/healthz")
    assert answer.status_code == 200
    said = answer.json()
    assert (said["ok"], said["run"], said["collectors_alive"]) == (True, "tested", 2.0)
    assert said["seconds_since_race"] == pytest.approx(3.0, abs=2.0)
    assert "seconds_since_checkpoint" not in said
    _tell(run, timestamp_s=time.monotonic() - 61.0)
    answer = client.get("/healthz")
    assert answer.status_code == 503
    assert answer.json()["problem"].startswith("no status for 6")
    _tell(run, is_over=True)
    assert client.get("/healthz").json()["problem"] == "the training has ended"


def test_metrics_are_readable_by_prometheus(client, run):
    run.run_log.unlink()
    assert _samples(client) == {("trackmania_up", ""): 0.0}
    _tell(run)
    samples = _samples(client)
    assert samples[("trackmania_up", "")] == 1.0
    assert samples[("trackmania_frames_total", "")] == 12_345.0
    assert samples[("trackmania_collector_restarts_total", "")] == 7.0
    assert samples[("trackmania_learning", "loss")] == 0.5
    assert samples[("trackmania_learning", 'odd"name\\')] == 1.5
    assert samples[("trackmania_seconds_since_race", "")] == pytest.approx(3.0, abs=2.0)
    _tell(run, is_over=True)
    samples = _samples(client)
    assert samples[("trackmania_up", "")] == 0.0
    assert samples[("trackmania_frames_total", "")] == 12_345.0


def _samples(client):
    """The values of /metrics by name and label, as Prometheus's own parser reads them."""
    answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    families = text_string_to_metric_families(answer.text)
    return {(s.name, s.labels.get("name", "")): s.value for family in families for s in family.samples}
