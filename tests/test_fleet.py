"""`dicast fleet status`, on real HTTP servers of this machine: some that are well, and some that are anything but."""

from __future__ import annotations

import contextlib
import gzip
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from dicast.app.operator import fleet
from dicast.app.operator.fleet import FleetAnswer, FleetMember, FleetRefused, FleetStatus, fleet_of, totals
from tests.command import Dicast, refused
from tests.patience import Stopwatch

TOKEN = "a-token-that-nobody-else-may-see"
STATUS: dict[str, Any] = {
    "installation": "eu",
    "nodes": [
        {"id": "n1", "name": "w@1", "generation": 1, "status": "online", "reason": "", "open": 3, "slots": 5},
        {
            "id": "n2",
            "name": "w@2",
            "generation": 4,
            "status": "degraded",
            "reason": "its gate stands still",
            "open": 0,
        },
    ],
    "by_status": {"online": 1, "degraded": 1, "offline": 0},
    "capacity": 10,
    "available": 7,
    "open": 3,
    "waiting": {"openai": 40, "anthropic": 2},
    "oldest_wait_s": 12.5,
    "unsatisfied": [],
    "something_new": {"of": "a later version"},
}
Reply = Callable[[BaseHTTPRequestHandler], None]


def tells(status: int = 200, body: bytes = b"", **headers: str) -> Reply:
    def reply(request: BaseHTTPRequestHandler) -> None:
        request.send_response(status)
        for name, value in {"content-length": str(len(body)), **headers}.items():
            request.send_header(name.replace("_", "-"), value)
        request.end_headers()
        request.wfile.write(body)

    return reply


def well(**changes: Any) -> Reply:
    return tells(body=json.dumps({**STATUS, **changes}).encode())


class Server:
    """Answers every request as it is told to, and remembers what it was sent."""

    def __init__(self, reply: Reply) -> None:
        self.seen: list[tuple[str, str | None]] = []
        seen, gone = self.seen, threading.Event()
        self._gone = gone

        class Handler(BaseHTTPRequestHandler):
            left = gone

            def do_GET(self) -> None:
                seen.append((self.path, self.headers["authorization"]))
                with contextlib.suppress(OSError):  # the client has had enough
                    reply(self)

            def log_message(self, *_: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def stop(self) -> None:
        self._gone.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def serve() -> Iterator[Callable[[Reply], Server]]:
    servers: list[Server] = []

    def start(reply: Reply) -> Server:
        servers.append(Server(reply))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


def never(request: Any) -> None:
    request.left.wait(30)


def drips(request: Any) -> None:
    """A byte at a time: each read is quick, the whole never ends."""
    request.send_response(200)
    request.end_headers()
    while not request.left.wait(0.02):
        request.wfile.write(b" ")
        request.wfile.flush()


def floods(request: Any) -> None:
    """A body without an end."""
    request.send_response(200)
    request.end_headers()
    while not request.left.is_set():
        request.wfile.write(b" " * 1_000_000)


Serve = Callable[[Reply], Server]


def test_installations_are_summed_up(at_once: Dicast, serve: Serve) -> None:
    eu, us = serve(well()), serve(well(installation="us", capacity=90, open=20, available=70, oldest_wait_s=None))
    run = at_once("fleet", "status", eu.url, us.url + "/", "--json", DICAST_FLEET_TOKEN=TOKEN)
    assert run.returncode == 0, run.stderr
    shown = json.loads(run.stdout)
    assert shown["well"] is True
    assert shown["totals"] == {
        "installations": 2, "unreachable": 0, "by_status": {"degraded": 2, "offline": 0, "online": 2}, "capacity": 100,
        "available": 77, "open": 23, "waiting": 84, "oldest_wait_s": 12.5, "unsatisfied": 0,
    }  # fmt: skip
    assert [one["status"]["installation"] for one in shown["installations"]] == ["eu", "us"]
    assert eu.seen == us.seen == [("/cluster/status", f"Bearer {TOKEN}")]
    assert TOKEN not in run.stdout + run.stderr


def test_people_see_a_line_each_and_what_needs_attention(at_once: Dicast, serve: Serve) -> None:
    eu, us = serve(well()), serve(well(unsatisfied=["job j wants region=eu, and no living node has it\x1b[2J"]))
    run = at_once("fleet", "status", eu.url, us.url, COLUMNS="160")
    assert run.returncode == 1, "work that no node may take"
    lines = [" ".join(line.split()) for line in run.stdout.splitlines()]
    assert f"{eu.url} 1 degraded, 1 online 3 10 7 42 12 s" in lines
    assert "2 of 2 reached 2 degraded, 2 online 6 20 14 84 12 s" in lines
    assert f"! {eu.url}: node w@2 is degraded: its gate stands still" in lines
    assert f"! {us.url}: job j wants region=eu, and no living node has it\\x1b[2J" in lines
    assert eu.seen == [("/cluster/status", None)], "no token, none sent"


def test_names_have_tokens_of_their_own(at_once: Dicast, serve: Serve, tmp_path: Path) -> None:
    eu, us = serve(well()), serve(well())
    (tmp_path / "fleet.toml").write_text(
        f'[installations.eu]\nurl = "{eu.url}"\ntoken_env = "EU_TOKEN"\n[installations.us]\nurl = "{us.url}"\n'
    )
    given = {"DICAST_FLEET_FILE": str(tmp_path / "fleet.toml"), "EU_TOKEN": "eu's own", "DICAST_FLEET_TOKEN": TOKEN}
    assert at_once("fleet", "status", **given).returncode == 0
    assert [server.seen[0][1] for server in (eu, us)] == ["Bearer eu's own", f"Bearer {TOKEN}"]
    assert at_once("fleet", "status", "us", "--file", str(tmp_path / "fleet.toml"), EU_TOKEN="x").returncode == 0
    assert (len(eu.seen), len(us.seen)) == (1, 2)


MANY = json.dumps({**STATUS, "nodes": [STATUS["nodes"][0]] * (fleet.NODES_MAX + 1)}).encode()


@pytest.mark.parametrize(
    "reply, said",
    [
        (never, "no answer within 0.5 s"),
        (drips, "no answer within 0.5 s"),
        (floods, "its answer is larger than 8,388,608 bytes"),
        (tells(401), "it refuses the token (401)"),
        (tells(403), "it refuses the token (403)"),
        (tells(404), "it answers with status 404"),
        (tells(503, b"x" * 100), "it answers with status 503"),
        (tells(body=b'{"installation": "eu"'), "its answer is no JSON"),
        (tells(body=b"<html>"), "its answer is no JSON"),
        (tells(body=b"[" * 100_000), "its answer is no JSON"),
        (tells(body=b"[]"), "its answer is no cluster status: it: "),
        (well(capacity="many"), "its answer is no cluster status: capacity: "),
        (well(open=-1), "its answer is no cluster status: open: "),
        (well(waiting={"p": 10**30}), "its answer is no"),
        (tells(body=MANY), "its answer is no cluster status: nodes: "),
        (tells(body=gzip.compress(json.dumps(STATUS).encode()), content_encoding="gzip"), "its answer is no JSON"),
        (lambda request: request.wfile.write(b"\x00\x01 nonsense\r\n\r\n"), "cannot be reached: "),
        (lambda request: request.wfile.write(b"HTTP/1.1 200 OK\r\nx: " + b"y" * 2_000_000), "cannot be reached: "),
    ],
)  # fmt: skip
def test_one_that_is_not_well_is_named_and_hurts_no_other(
    at_once: Dicast, serve: Serve, reply: Reply, said: str
) -> None:
    good, bad = serve(well()), serve(reply)
    watch = Stopwatch()
    run = at_once("fleet", "status", bad.url, good.url, "--json", "--timeout", "0.5", DICAST_FLEET_TOKEN=TOKEN)
    assert watch.s < 30
    assert run.returncode == 1
    ill, fine = json.loads(run.stdout)["installations"]
    assert (ill["reached"], ill["status"], fine["reached"]) == (False, None, True)
    assert ill["trouble"].startswith(said)
    assert TOKEN not in run.stdout + run.stderr


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_token_is_not_carried_elsewhere(at_once: Dicast, serve: Serve, status: int) -> None:
    elsewhere = serve(well())
    lures = serve(tells(status, location=f"{elsewhere.url}/cluster/status"))
    run = at_once("fleet", "status", lures.url, DICAST_FLEET_TOKEN=TOKEN, HTTP_PROXY=elsewhere.url, COLUMNS="160")
    assert run.returncode == 1
    assert f"it answers with a redirect ({status}), which is not followed" in run.stdout
    assert "UNREACHABLE" in run.stdout
    assert elsewhere.seen == []


def test_slow_ones_are_waited_for_at_the_same_time(at_once: Dicast, serve: Serve) -> None:
    watch = Stopwatch()
    run = at_once("fleet", "status", *(serve(never).url for _ in range(12)), "--timeout", "2", "--json")
    assert watch.s < 20, "one after the other they would take 24 s"
    assert json.loads(run.stdout)["totals"]["unreachable"] == 12


def test_nobody_listens(at_once: Dicast) -> None:
    run = at_once("fleet", "status", "http://127.0.0.1:9", "--json")
    assert run.returncode == 1
    assert json.loads(run.stdout)["installations"][0]["trouble"].startswith("cannot be reached: ConnectError")


@pytest.mark.parametrize(
    "given, said",
    [
        ([], "no installation is given, and config/fleet.toml names none"),
        (["eu"], "installation 'eu' is neither an address (https://...) nor in config/fleet.toml"),
        (["ftp://host"], "the address must be http:// or https://"),
        (["https://"], "the address must be http:// or https://"),
        (["https://me:hidden@host"], "no user, password or query"),
        (["https://host/?token=hidden"], "no user, password or query"),
        (["https://[broken"], "the address must be http:// or https://"),
        (["https://host:99999"], "the address must be http:// or https://"),
    ],
)
def test_what_cannot_be_asked_is_refused(at_once: Dicast, given: list[str], said: str) -> None:
    run = at_once("fleet", "status", *given)
    assert said in " ".join(refused(run).split())
    assert "hidden" not in run.stderr


@pytest.mark.parametrize(
    "text, said",
    [
        ("installations = 3", "has no tables [installations.NAME]"),
        ("[installations]\neu = 3", "has no tables [installations.NAME]"),
        ("# none yet", "'eu' is neither an address (https://...) nor in"),
        ("[installations.eu", "cannot be read"),
        ("[installations.eu]", "'eu' needs a url"),
        ('[installations.eu]\nurl = "https://h"\ntoken = "x"', "unknown key 'token'; there are url and token_env"),
        ('[installations.eu]\nurl = "https://h"\ntoken_env = "NOT_SET"', "the variable NOT_SET is empty"),
        ('[installations.eu]\nurl = "h"', "the address must be http:// or https://"),
    ],
)
def test_a_file_that_is_wrong_is_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "fleet.toml").write_text(text)
    with pytest.raises(FleetRefused) as told:
        fleet_of(["eu"], tmp_path / "fleet.toml", {}, None)
    assert said in str(told.value)


def test_an_installation_that_is_given_twice_is_asked_once(tmp_path: Path) -> None:
    found = fleet_of(["https://h:1", "https://h:1/"], tmp_path / "none", {}, TOKEN)
    assert found == [FleetMember("https://h:1", "https://h:1", TOKEN)]
    assert TOKEN not in repr(found)


def test_totals_of_nobody() -> None:
    away = FleetAnswer("eu", "https://h", 0.1, None, "away")
    assert totals([away]).unreachable == 1 and not totals([away]).well
    assert totals([FleetAnswer("eu", "https://h", 0.1, FleetStatus.model_validate(STATUS))]).well


@pytest.mark.parametrize("missing", ["nodes", "unsatisfied", "oldest_wait_s"])
def test_a_status_of_an_earlier_version_is_read(at_once: Dicast, serve: Serve, missing: str) -> None:
    earlier = {name: value for name, value in STATUS.items() if name != missing}
    run = at_once("fleet", "status", serve(tells(body=json.dumps(earlier).encode())).url, "--json")
    (one,) = json.loads(run.stdout)["installations"]
    assert one["reached"] and one["status"]["capacity"] == 10
