"""Events: a view whenever it changes, nothing twice, and an end with the job, the token and the server."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import psutil
import pytest

from dicast.app.access.scopes import Scope
from dicast.app.application import Dicast
from dicast.app.server import events, interface, parts
from dicast.app.server.interface import CONNECTIONS_MAX
from tests.e2e.cluster import ROOT, until
from tests.server.serving import JOB, SECRET, client, installation, problem, served


def told(lines: Iterator[str]) -> Iterator[dict[str, str]]:
    """Events as they come: their fields by name."""
    fields: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(": ")
        if line and name:
            fields[name] = value
        elif fields:
            yield fields
            fields = {}


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "LOOK_EVERY_S", 0.02)
    monkeypatch.setattr(events, "TOKEN_EVERY_S", 0.1)


def test_changes_are_sent_once_and_go_on_where_they_stopped(http: httpx2.Client, dicast: Dicast) -> None:
    dicast.submit({**JOB, "id": "j"})
    key = dicast.keys.at("job", "j")
    with http.stream("GET", "/jobs/j/events") as reply:
        assert reply.headers["content-type"].startswith("text/event-stream")
        found = told(reply.iter_lines())
        first = next(found)
        assert (first["event"], json.loads(first["data"])["state"]) == ("progress", "submitted")
        dicast.store.hset(key, "state", "running")
        second = next(found)
        assert json.loads(second["data"])["state"] == "running"
    with http.stream("GET", "/jobs/j/events", headers={"Last-Event-ID": second["id"]}) as reply:
        found = told(reply.iter_lines())
        dicast.store.hset(key, mapping={"state": "completed", "report": "{}"})
        last = next(found)
        assert (last["event"], json.loads(last["data"])["state"]) == ("ended", "completed")
        assert next(found, None) is None
    again = http.get("/jobs/j/events", headers={"Last-Event-ID": last["id"]})
    assert (again.status_code, again.content) == (204, b"")
    assert "ended" in http.get("/jobs/j/events", headers={"Last-Event-ID": "another"}).text
    problem(http.get("/jobs/none/events"), 404, "unknown-job")


def test_a_stream_ends_with_its_job_and_with_its_token(http: httpx2.Client, address: str, dicast: Dicast) -> None:
    dicast.submit({**JOB, "id": "j"})
    with http.stream("GET", "/jobs/j/events") as reply:
        found = told(reply.iter_lines())
        next(found)
        dicast.store.delete(dicast.keys.at("job", "j"))
        assert [event["event"] for event in found] == ["gone"]
    dicast.submit({**JOB, "id": "k"})
    token = dicast.tokens.issue("reader", ["job:read"], ttl_s=600)
    with client(address, token) as reader, reader.stream("GET", "/jobs/k/events") as reply:
        found = told(reply.iter_lines())
        next(found)
        issued = next(one for one in dicast.tokens.list() if one.subject == "reader")
        dicast.tokens.revoke(issued.id)
        began = time.monotonic()
        assert list(found) == []
        assert time.monotonic() - began < 30


def test_streams_are_counted_and_bounded(
    http: httpx2.Client, address: str, token: str, dicast: Dicast, monkeypatch: pytest.MonkeyPatch
) -> None:
    dicast.submit({**JOB, "id": "j"})
    counted = parts.Streams(2)
    monkeypatch.setattr(parts.Parts, "streams", counted)
    with http.stream("GET", "/jobs/j/events") as one, http.stream("GET", "/jobs/j/events") as two:
        assert one.status_code == two.status_code == 200
        refused = http.get("/jobs/j/events")
        problem(refused, 503, "too-many-streams")
        assert "retry-after" in refused.headers

    def free() -> bool:
        with client(address, token) as other, other.stream("GET", "/jobs/j/events") as reply:
            return reply.status_code == 200

    until(free, "places are given back", 10)


def test_one_subject_takes_no_more_streams_than_its_share(
    http: httpx2.Client, address: str, dicast: Dicast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever tokens it has; a view, a list and every other request go on besides."""
    monkeypatch.setattr(parts.Parts, "streams", parts.Streams(4, share=2))
    greedy = [dicast.tokens.issue("greedy", [Scope.JOB_READ], ttl_s=600) for _ in range(2)]
    with client(address, greedy[0]) as first, client(address, greedy[1]) as second:
        with first.stream("GET", "/cluster/events") as one, second.stream("GET", "/cluster/events") as two:
            assert one.status_code == two.status_code == 200
            for each in (first, second):
                problem(each.get("/cluster/events"), 503, "too-many-streams")
                assert each.get("/cluster/nodes").status_code == 200
            with http.stream("GET", "/cluster/events") as other:
                assert other.status_code == 200

        def free() -> bool:
            with first.stream("GET", "/cluster/events") as reply:
                return reply.status_code == 200

        until(free, "its places are given back", 10)
    until(lambda: not parts.Parts.streams._open, "nobody is kept in mind", 10)


def test_a_slow_reader_holds_no_memory_and_is_cut_off(
    dicast: Dicast, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes nothing while large views change all the time."""
    monkeypatch.setattr(events, "SEND_S", 0.5)
    monkeypatch.setattr(interface, "SILENT_S", 1.0)
    dicast.submit({**JOB, "id": "j"})
    key, stop = dicast.keys.at("job", "j"), threading.Event()

    def change() -> None:
        n = 0
        while not stop.wait(0.005):
            n += 1
            dicast.store.hset(key, mapping={"state": "running", "why": f"{n} " + "x" * 200_000})

    changing, this = threading.Thread(target=change), psutil.Process()
    with served(dicast) as address:
        at, readers, before = urlsplit(address), [], this.memory_info().rss

        def held() -> int:
            return len([c for c in this.net_connections("tcp") if c.raddr and c.laddr.port == at.port])

        changing.start()
        try:
            for _ in range(10):
                readers.append(plain := socket.socket())
                plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                plain.connect((at.hostname, at.port))
                plain.sendall(
                    f"GET /jobs/j/events HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n".encode()
                )
            until(lambda: held() == 10, "all are connected", 10)
            until(lambda: held() == 0, "those who take nothing are cut off", 30)
            assert this.memory_info().rss - before < 60e6
        finally:
            stop.set()
            changing.join()
            for plain in readers:
                plain.close()


def test_sigterm_ends_streams_and_the_server(tmp_path: Path, redis_url: str) -> None:
    dicast = installation(tmp_path, redis_url)
    dicast.submit({**JOB, "id": "j"})
    token = dicast.tokens.issue("reader", ["job:read"], ttl_s=600)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environ = {**os.environ, **dicast.settings.environ(), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "dicast", "serve", "--port", str(port)]
    with (tmp_path / "log").open("wb") as log:
        server = subprocess.Popen(command, env=environ, cwd=tmp_path, stderr=log)
    address = f"http://127.0.0.1:{port}"

    def alive() -> bool:
        assert server.poll() is None, (tmp_path / "log").read_text()
        try:
            return httpx2.get(f"{address}/healthz").status_code == 200
        except httpx2.TransportError:
            return False

    try:
        until(alive, "the server answers", 20)
        with client(address, token) as http, http.stream("GET", "/jobs/j/events") as reply:
            found = told(reply.iter_lines())
            next(found)
            began = time.monotonic()
            server.send_signal(signal.SIGTERM)
            assert list(found) == []
            assert server.wait(timeout=30) in (0, -signal.SIGTERM)
            assert time.monotonic() - began < 30
    finally:
        server.kill()
        server.wait()
    said = (tmp_path / "log").read_text()
    assert "Traceback" not in said and SECRET not in said and token not in said
    assert CONNECTIONS_MAX > parts.STREAMS_MAX
