"""What guards every route: bodies, rates, origins, names, and answers that tell nothing of the inside."""

from __future__ import annotations

import contextlib
import http.client
import importlib
import inspect
import logging
import re
import socket
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import pytest

from dicast.app.access.audit import Audit, Part
from dicast.app.access.scopes import Scope
from dicast.app.application import Dicast
from dicast.app.server import guards, interface, parts
from dicast.app.server.interface import AddressUnavailable, check, configured, listening
from dicast.app.server.parts import Rates, RequestRate, ServerKeys
from dicast.app.server.problems import STATUSES
from dicast.app.server.routes import jobs
from dicast.app.submission.job_file import MAX_BYTES
from dicast.config.settings import SettingsError
from dicast.errors import DicastError
from dicast.workers.store.connection import connect
from tests.e2e.cluster import until
from tests.server.serving import JOB, SECRET, client, installation, problem, served


# ------------------------------------------------------------------ bodies
def test_a_body_is_refused_before_it_is_read_whole(address: str, token: str, http: httpx2.Client) -> None:
    parts = urlsplit(address)
    for path, most in (("/jobs", MAX_BYTES), ("/pools/sim", guards.BODY_BYTES)):
        connection = http_client(parts)
        connection.putrequest("POST" if path == "/jobs" else "PATCH", path)
        connection.putheader("Authorization", f"Bearer {token}")
        connection.putheader("Content-Type", "application/json")
        connection.putheader("Content-Length", str(most + 1))
        connection.endheaders()  # and not one byte of it
        reply = connection.getresponse()
        assert (reply.status, reply.headers["Content-Type"]) == (413, "application/problem+json")
        connection.close()

    def endless():
        while True:
            yield b" " * 65_536

    began = time.monotonic()
    kind = {"Content-Type": "application/json"}
    with contextlib.suppress(httpx2.TransportError):  # the server may close while more is being sent
        problem(http.post("/jobs", content=endless(), headers=kind), 413, "body-too-large")
    with contextlib.suppress(httpx2.TransportError):
        problem(http.post("/jobs", content=endless(), headers={"Authorization": "Bearer x"}), 401, "token-refused")
    assert time.monotonic() - began < guards.BODY_S


def http_client(parts) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(parts.hostname, parts.port, timeout=10)


def test_a_body_that_does_not_come_is_given_up(address: str, token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guards, "PAUSE_S", 0.2)
    connection = http_client(urlsplit(address))
    connection.putrequest("POST", "/jobs")
    for name, value in (
        ("Authorization", f"Bearer {token}"),
        ("Content-Type", "application/json"),
        ("Content-Length", "9"),
    ):
        connection.putheader(name, value)
    connection.endheaders()
    connection.send(b"{")
    reply = connection.getresponse()
    assert (reply.status, b"body-too-slow" in reply.read()) == (408, True)
    connection.close()


def test_a_stranger_is_refused_before_the_body_is_read(address: str) -> None:
    connection = http_client(urlsplit(address))
    connection.putrequest("POST", "/jobs")
    connection.putheader("Content-Length", str(MAX_BYTES))
    connection.endheaders()
    assert connection.getresponse().status == 401
    connection.close()


# ------------------------------------------------------------------ rates
def test_a_bucket_fills_again_and_tells_of_its_first_refusal(redis_url: str) -> None:
    with connect(redis_url) as store:
        rates, rate = Rates(store, ServerKeys("n")), RequestRate(burst=2, per_s=0.5)
        take = [rates.take("token", "t", rate, now_ms) for now_ms in (1000, 1000, 1000, 2000, 3000, 3000, 999, 60_000)]
        assert [tuple(taken) for taken in take] == [
            (0, False), (0, False), (2, True), (1, False), (0, False), (2, True), (2, False), (0, False),
        ]  # fmt: skip
        assert rates.take("token", "u", rate, 3000).wait_s == 0
        assert 0 < store.pttl(ServerKeys("n").rate("token", "t")) <= 5000


def test_servers_share_the_rates_of_tokens_and_addresses(tmp_path: Path, redis_url: str) -> None:
    one, two = (installation(tmp_path, redis_url, DICAST_SERVER_RATE="60") for _ in range(2))
    token = one.tokens.issue("tester", [Scope.JOB_READ], ttl_s=600)
    with served(one) as first, served(two) as second, client(first, token) as a, client(second, token) as b:
        began = time.monotonic()
        replies = [caller.get("/jobs") for _ in range(9) for caller in (a, b)]
        took_s = time.monotonic() - began
        refused = [reply for reply in replies if reply.status_code != 200]
        assert 10 <= len(replies) - len(refused) <= 11 + took_s, "one bucket of ten for both, which fills meanwhile"
        problem(refused[0], 429, "too-many-requests")
        assert int(refused[0].headers["retry-after"]) >= 1
        with client(first) as stranger:  # guesses: the address runs dry
            guesses = [stranger.get("/jobs").status_code for _ in range(45)]
        assert set(guesses) == {401, 429}
        assert b.get("/healthz").status_code == 200
    said = [line.details["problem"] for line in one.audit.lines() if line.details.get("problem") == "too-many-requests"]
    assert 1 <= len(said) < len(refused) + guesses.count(429), "not each refusal has a line of its own"


def test_strangers_are_counted_and_push_nothing_out_of_the_log(
    dicast: Dicast, address: str, http: httpx2.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server sums their minute up by itself, though nobody comes any more."""
    assert http.patch("/pools", json={"slo": 7}).status_code == 200
    before = list(dicast.audit.lines())
    with client(address, "stranger's") as stranger, client(address) as nobody:
        for _ in range(60):
            problem(stranger.get("/jobs"), 401, "token-refused")
            problem(nobody.post("/jobs", json=JOB), 401, "token-refused")
    parts = Counter(part for part, _ in dicast.audit.entries())
    assert parts[Part.ORDERS] + parts[Part.WORK] == len(before)
    assert parts[Part.STRANGERS] <= 8, "of each kind the first in a minute, and the sums of one that is over"
    monkeypatch.setattr(interface, "SETTLE_EVERY_S", 0.01)
    later = Audit(dicast.store, "dicast", dicast.token_secrets, clock=lambda: time.time() + 120)
    monkeypatch.setitem(dicast.__dict__, "audit", later)
    with interface.counts_settled(dicast):
        until(lambda: later.pending() == 0, "all that is counted is summed up")
    lines = [line for part, line in later.entries() if part is Part.STRANGERS]
    assert sum(sum(line.details.get("counts", {"": 1}).values()) for line in lines) == 120
    assert later.verify().whole


# ------------------------------------------------------------------ origins
def test_other_sites_pages_and_other_names_are_refused(tmp_path: Path, redis_url: str) -> None:
    dicast = installation(tmp_path, redis_url, DICAST_REQUIRE_AUTH="false", DICAST_SERVER_NAMES="dicast.example, b")
    with served(dicast) as address, client(address) as http:
        assert http.post("/jobs", json={**JOB, "id": "a"}).status_code == 202
        own = urlsplit(address).netloc
        for headers in (
            {"Origin": "https://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"},
            {"Sec-Fetch-Site": "same-site"}, {"Origin": "http://127.0.0.1:1"}, {"Host": "evil.example"},
            {"Host": "127.0.0.1.evil.example"}, {"Host": "["}, {"Host": ""},
        ):  # fmt: skip
            problem(http.post("/jobs", json=JOB, headers=headers), 403, "foreign-request")
            if "Host" in headers:
                problem(http.get("/jobs", headers=headers), 403, "foreign-request")
        for headers in (
            {"Origin": f"http://{own}", "Sec-Fetch-Site": "same-origin"}, {"Host": "localhost:80"},
            {"Host": "DICAST.example."}, {"Host": "[::1]:80"},
        ):  # fmt: skip
            assert http.post("/jobs", json={**JOB, "id": "a"}, headers=headers).status_code == 202
        assert (
            "access-control-allow-origin" not in http.get("/jobs", headers={"Origin": "https://evil.example"}).headers
        )
        problem(http.request("OPTIONS", "/jobs", headers={"Origin": "https://evil.example"}), 405, "method-not-allowed")
    assert {line.outcome for line in dicast.audit.lines() if line.actor == "nobody"} == {"refused"}


def test_it_refuses_to_start_where_strangers_could_come_in(tmp_path: Path, redis_url: str) -> None:
    for host in ("0.0.0.0", "::", "192.168.0.1", "dicast.example"):
        with pytest.raises(SettingsError, match="DICAST_REQUIRE_AUTH=false is for a loopback address alone"):
            check(installation(tmp_path, redis_url, DICAST_REQUIRE_AUTH="false"), host)
        check(installation(tmp_path, redis_url), host)
    for host in ("127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost"):
        check(installation(tmp_path, redis_url, DICAST_REQUIRE_AUTH="false", DICAST_TOKEN_SECRET=""), host)
    with pytest.raises(SettingsError, match="DICAST_TOKEN_SECRET must be set where tokens are required"):
        configured(installation(tmp_path, redis_url, DICAST_TOKEN_SECRET=""), "127.0.0.1")
    with pytest.raises(SettingsError, match="DICAST_TOKEN_SECRET must have >= 32 bytes, got a hidden value"):
        installation(tmp_path, redis_url, DICAST_TOKEN_SECRET="x" * 31)


def test_an_address_that_is_taken_is_told_in_one_line() -> None:
    with listening("127.0.0.1", 0) as taken, pytest.raises(AddressUnavailable, match="Address already in use"):
        listening("127.0.0.1", taken.getsockname()[1])
    with pytest.raises(AddressUnavailable, match=r"cannot listen at nowhere\.invalid, port 1"):
        listening("nowhere.invalid", 1)


# ------------------------------------------------------------------ answers
def test_every_foreseen_error_has_a_status() -> None:
    def kinds(kind: type[DicastError]) -> set[type[DicastError]]:
        return {kind}.union(*map(kinds, kind.__subclasses__()))

    for elsewhere_raised in (
        "app.providers.batches",
        "app.reports.opinion_cache",
        "app.pipeline.plan",
        "app.operator.stack",
    ):
        importlib.import_module(f"dicast.{elsewhere_raised}")
    on_the_way = {kind.problem for kind in kinds(DicastError) if kind.__module__.startswith("dicast.")}
    # Raised where no request is: in a worker, at a command line, or when a process starts.
    elsewhere = {
        "provider-failure", "dataset-changed", "stack", "daemon", "results-mismatch", "results-damaged",
        "wrong-setting", "wrong-pools-file", "audit", "cache-error",
        "unusable-batch", "undecided-batch", "foreign-batch", "damaged-results",
    }  # fmt: skip
    assert on_the_way - elsewhere <= set(STATUSES)
    assert elsewhere <= on_the_way


def test_paths_and_methods_that_are_not_there_are_problems_too(http: httpx2.Client) -> None:
    problem(http.get("/nothing"), 404, "not-found")
    problem(http.get("/jobs/a/b/c"), 404, "not-found")
    problem(http.get("/jobs/..%2f..%2fetc%2fpasswd"), 404, "not-found")
    reply = http.put("/jobs")
    problem(reply, 405, "method-not-allowed")
    assert reply.headers["allow"] == "GET, POST"
    for path in ("/docs", "/redoc"):
        problem(http.get(path), 404, "not-found")


def test_allow_names_every_method_of_a_path(http: httpx2.Client) -> None:
    methods: dict[str, set[str]] = {}
    for route in interface.routes():
        methods.setdefault(route.path, set()).update(route.methods or ())
    for name in ("quote", "check"):
        methods[f"/jobs/{name}"] |= methods["/jobs/{job}"]  # to these it is a job of that name
    for path, there in methods.items():
        filled = re.sub(r"{\w+}", "x", path)
        for method in {"GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE", "TRACE"} - there:
            reply = http.request(method, filled)
            assert reply.status_code == 405, (method, path)
            assert reply.headers["allow"] == ", ".join(sorted(there)), (method, path)


def test_an_unforeseen_error_tells_a_name_and_nothing_else(
    http: httpx2.Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError(f"the secret is {SECRET}")

    monkeypatch.setattr(jobs, "read_job", fails)
    with caplog.at_level(logging.ERROR):
        reply = http.get("/jobs/a")
    told = problem(reply, 500, "internal")
    assert SECRET not in reply.text and "RuntimeError" not in reply.text
    assert told["detail"].split()[-1] in caplog.text
    assert reply.headers["x-content-type-options"] == "nosniff"


def test_a_store_that_is_away_is_told_as_such(tmp_path: Path, redis_url: str) -> None:
    with (
        served(installation(tmp_path, "redis://:hidden-password@127.0.0.1:1/0")) as address,
        client(address, "t") as http,
    ):
        problem(http.get("/jobs"), 503, "store-away")
        told = http.get("/readyz")
        assert problem(told, 503, "not-ready")["errors"] == ["store"]
        assert "hidden-password" not in told.text
        assert http.get("/healthz").json() == {"alive": True}


def test_nothing_may_be_kept_framed_or_guessed(http: httpx2.Client) -> None:
    for path in ("/healthz", "/jobs", "/nothing", "/openapi.json"):
        headers = http.get(path).headers
        assert (headers["x-content-type-options"], headers["cache-control"]) == ("nosniff", "no-store")
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "server" not in headers
        assert "set-cookie" not in headers


def test_a_slow_request_holds_up_no_other(http: httpx2.Client, address: str, token: str, monkeypatch) -> None:
    """What waits for the store does so in threads."""
    inside, go_on = threading.Event(), threading.Event()

    def waits(*_: object) -> None:
        inside.set()
        go_on.wait(10)
        raise jobs.UnknownJob("slow")

    monkeypatch.setattr(jobs, "read_job", waits)
    with ThreadPoolExecutor(1) as pool, client(address, token) as slow:
        held = pool.submit(slow.get, "/jobs/slow")
        assert inside.wait(10)
        assert http.get("/healthz").status_code == http.get("/jobs").status_code == 200
        go_on.set()
        problem(held.result(), 404, "unknown-job")


def test_ones_slow_requests_take_no_threads_from_others(dicast: Dicast, address: str, token: str, monkeypatch) -> None:
    """There are 40 threads; one subject asks for 60 at once, none of which ends."""
    inside, go_on = threading.Semaphore(0), threading.Event()

    def waits(*_: object) -> None:
        inside.release()
        go_on.wait(30)
        raise jobs.UnknownJob("slow")

    monkeypatch.setattr(jobs, "read_job", waits)
    other = dicast.tokens.issue("another", [Scope.JOB_READ], ttl_s=600)
    with ThreadPoolExecutor(60) as pool, client(address, other) as quick:
        asked = [pool.submit(httpx2.get, f"{address}/jobs/slow", headers={"Authorization": f"Bearer {token}"},
                             timeout=40) for _ in range(60)]  # fmt: skip
        try:
            for _ in range(parts.AT_ONCE):
                assert inside.acquire(timeout=20)
            assert quick.get("/healthz").status_code == quick.get("/jobs").status_code == 200
            assert not inside.acquire(blocking=False), "no more of one subject's at once"
        finally:
            go_on.set()
        assert [reply.result().status_code for reply in asked] == [404] * 60


def test_no_route_waits_on_the_loop() -> None:
    """Routes that are coroutines do nothing but wait for what runs in threads: whoever adds one looks at it here."""
    coroutines = {route.path for route in interface.routes() if inspect.iscoroutinefunction(route.endpoint)}
    assert coroutines == {"/jobs", "/jobs/check", "/jobs/quote", "/uploads", "/healthz"}


def test_who_opens_connections_and_says_nothing_is_cut_off(
    dicast: Dicast, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interface, "HEADERS_S", 0.3)
    with served(dicast) as address:
        at = urlsplit(address)
        for said in (b"", b"GET /jobs HTTP/1.1\r\nHost: loc", b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\nGET"):
            with socket.create_connection((at.hostname, at.port), timeout=10) as plain:
                plain.sendall(said)
                while plain.recv(4096):  # an answer, and then the end
                    continue
        with client(address, token) as http:
            assert http.get("/jobs").status_code == 200


def test_garbage_on_the_wire_is_answered_or_cut(address: str) -> None:
    parts = urlsplit(address)
    for sent in (b"\x00\x01\x02\r\n\r\n", b"GET /jobs HTTP/1.1\r\nHost: a\r\nX: " + b"a" * 200_000 + b"\r\n\r\n"):
        with socket.create_connection((parts.hostname, parts.port), timeout=10) as plain:
            plain.sendall(sent)
            reply = plain.recv(100)
            assert reply == b"" or b" 400 " in reply or b" 431 " in reply
    with client(address) as http:
        assert http.get("/healthz").status_code == 200
