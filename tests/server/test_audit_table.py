"""What the audit log says of every operation: all routes that change something, all commands of `dicast`, and asyncio
programs. Each is done for real. A route or a command without its row fails."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx2
import pytest
import typer

from dicast.app.access import audit as module
from dicast.app.access.audit import Audit, Part
from dicast.app.access.scopes import Scope
from dicast.app.aio import AsyncClient
from dicast.app.application import Dicast, create_app
from dicast.app.cli.main import cli
from dicast.app.cluster.cluster import Cluster
from dicast.app.cluster.joining import remember
from dicast.app.server.interface import routes
from dicast.workers.nodes.registry import Node
from tests.access.servers import store_server
from tests.command import at_once, environ
from tests.page.world import finished
from tests.server.serving import JOB, SECRET, client

__all__ = ["at_once", "environ"]

Line = tuple[str, str, str, str, dict[str, Any]]
"""Actor, action, object, outcome, details."""


def lines(audit: Audit, without: frozenset[tuple[Part, int]] = frozenset()) -> list[Line]:
    return [
        (line.actor, line.action, line.object, line.outcome, line.details)
        for part, line in audit.entries()
        if (part, line.number) not in without
    ]


@dataclass
class Asker:
    """Somebody with every scope, and what was said of what they did."""

    dicast: Dicast
    http: httpx2.Client
    token: str

    def __post_init__(self) -> None:
        self.node = Node.for_this_process("w1@here", limit=5, slots=5)
        self.dicast.registry.announce(self.node)
        self.at = f"/cluster/nodes/{self.node.id.replace('#', '%23')}"
        self.dicast.cluster._wait_s = 0.0  # nobody is there to acknowledge

    def said(self, act: Callable[[], object]) -> list[Line]:
        """Lines that came while it was done, and of what was counted."""
        before = frozenset((part, line.number) for part, line in self.dicast.audit.entries())
        act()
        later = Audit(self.dicast.store, "dicast", self.dicast.token_secrets, clock=lambda: time.time() + 120)
        later.settle()
        return lines(self.dicast.audit, before)

    def good(self, method: str, path: str, **more: Any) -> Any:
        reply = self.http.request(method, path, **more)
        assert reply.status_code < 300, reply.text
        return reply.json() if reply.content else None


@pytest.fixture
def asker(dicast: Dicast, address: str) -> Iterator[Asker]:
    issued = dicast.tokens.issue("ada", set(Scope) - {Scope.NODE_HEARTBEAT}, ttl_s=600)
    with client(address, issued) as http:
        yield Asker(dicast, http, dicast.tokens.verify(issued, None).id)


def submit(a: Asker) -> list[Line]:
    """The same again changes nothing; a refusal is told with its reason."""
    wrong = {**JOB, "id": "new", "project": "other"}

    def act() -> None:
        a.good("POST", "/jobs", json={**JOB, "id": "new"})
        a.good("POST", "/jobs", json={**JOB, "id": "new"})
        assert a.http.post("/jobs", json=wrong).status_code == 409

    refusal = {"token": a.token, "problem": "job-conflict", "address": "127.0.0.1"}
    assert a.said(act) == [
        ("ada", "job.submit", "new", "done", {"token": a.token, "units": 1}),
        ("ada", "job.submit", "new", "nothing to do", {"token": a.token, "units": 1}),
        ("ada", "POST /jobs", "/jobs", "refused", refusal),
    ]
    return []


def cancel(a: Asker) -> list[Line]:
    a.dicast.submit({**JOB, "id": "j"})
    assert a.said(lambda: a.good("DELETE", "/jobs/j")) == [
        ("ada", "job.cancel", "j", "done", {"token": a.token, "before": "submitted"})
    ]
    return a.said(lambda: a.good("DELETE", "/jobs/j")) or []


def resume(a: Asker) -> list[Line]:
    finished(a.dicast, "r", 8)
    a.dicast.store.hset(a.dicast.keys.at("job", "r"), "state", "cancelled")
    return a.said(lambda: a.good("POST", "/jobs/r/resume"))


def open_rating(a: Asker) -> list[Line]:
    finished(a.dicast, "r", 8)
    return a.said(lambda: a.good("POST", "/jobs/r/rating", json={"size": 5}))


def rate(a: Asker) -> list[Line]:
    open_rating(a)
    item = a.good("GET", "/jobs/r/rating?rater=eve")["items"][0]
    given = {"rater": "eve", "item_id": item, "dimension": "clear", "score": 2}
    found = a.said(lambda: [a.good("POST", "/jobs/r/rating/scores", json={**given, "score": n}) for n in (1, 2)])
    assert found[0][4].pop("since") % 60 == 0
    return found


def note(a: Asker) -> list[Line]:
    open_rating(a)
    item = a.good("GET", "/jobs/r/rating?rater=eve")["items"][0]
    given = {"rater": "eve", "item_id": item, "dimension": "clear", "cannot_say": True}
    found = a.said(lambda: [a.good("POST", "/jobs/r/rating/notes", json={**given, "note": text}) for text in "ab"])
    assert found[0][4].pop("since") % 60 == 0
    return found


def finish(a: Asker) -> list[Line]:
    rate(a)
    return a.said(lambda: a.good("POST", "/jobs/r/rating/finish", json={"rater": "eve"}))


def forget(a: Asker) -> list[Line]:
    finish(a)
    return a.said(lambda: a.good("POST", "/jobs/r/rating/forget"))


def delete(a: Asker) -> list[Line]:
    finished(a.dicast, "r", 8)
    a.dicast.store.hset(a.dicast.keys.at("job", "r"), "state", "cancelled")
    return a.said(lambda: a.good("POST", "/jobs/r/delete"))


def finish_again(a: Asker) -> list[Line]:
    finish(a)
    return a.said(lambda: a.good("POST", "/jobs/r/rating/finish", json={"rater": "eve"}))


def join(a: Asker) -> list[Line]:
    made: list[dict[str, Any]] = []
    found = a.said(lambda: made.append(a.good("POST", "/cluster/nodes", json={"name": "w2@here"})))
    a.dicast.membership.expel(made[0]["node"])
    assert found[0][2] == made[0]["node"]
    return [(*found[0][:2], "", *found[0][3:])]


def remove(a: Asker) -> list[Line]:
    """By an operator: one that works, and one that has only joined; and by the node itself."""
    joined = [a.good("POST", "/cluster/nodes", json={"name": "w2@here"}) for _ in range(2)]
    ids = [each["node"].replace("#", "%23") for each in joined]
    bearer = {"Authorization": f"Bearer {joined[1]['heartbeat_token']}"}
    operators = a.said(lambda: a.good("DELETE", f"/cluster/nodes/{ids[0]}"))
    assert operators == [("ada", "node.remove", joined[0]["node"], "done", {"token": a.token})]
    (left,) = a.said(lambda: a.good("DELETE", f"/cluster/nodes/{ids[1]}", headers=bearer))
    assert left[:4] == ("ada", "node.leave", joined[1]["node"], "done"), "the subject with whose token it joined"
    return a.said(lambda: a.good("DELETE", a.at))


def heartbeat(a: Asker) -> list[Line]:
    joined = a.good("POST", "/cluster/nodes", json={"name": "w2@here"})
    bearer = {"Authorization": f"Bearer {joined['heartbeat_token']}"}
    path = f"/cluster/nodes/{joined['node'].replace('#', '%23')}/heartbeat"
    return a.said(lambda: a.good("POST", path, headers=bearer))


def order(verb: str) -> Callable[[Asker], list[Line]]:
    return lambda a: a.said(lambda: a.good("POST", f"{a.at}/{verb}"))


ITEMS = b'{"id": "a", "text": "one"}\n'
NAME = hashlib.sha256(ITEMS).hexdigest() + ".jsonl"


def upload(a: Asker) -> list[Line]:
    """The same file again changes nothing."""
    return a.said(lambda: [a.good("POST", "/uploads?ending=.jsonl", content=ITEMS) for _ in range(2)])


RATED = ("ada", "counted", "", "done", {"seconds": 60, "counts": {"rating.scores r": 2}})
ROUTES: dict[tuple[str, str], tuple[Callable[[Asker], list[Line]], list[Line]]] = {
    ("POST", "/jobs"): (submit, []),
    ("POST", "/jobs/quote"): (lambda a: a.said(lambda: a.good("POST", "/jobs/quote", json=JOB)), []),
    ("POST", "/jobs/check"): (lambda a: a.said(lambda: a.good("POST", "/jobs/check", json=JOB)), []),
    ("DELETE", "/jobs/{job}"): (cancel, [("ada", "job.cancel", "j", "nothing to do", {"before": "finishing"})]),
    ("POST", "/jobs/{job}/resume"): (resume, [("ada", "job.resume", "r", "done", {})]),
    ("POST", "/jobs/{job}/delete"): (delete, [("ada", "job.delete", "r", "done", {})]),
    ("POST", "/jobs/{job}/rating"): (open_rating, [("ada", "rating.open", "r", "done", {"items": 5})]),
    ("POST", "/jobs/{job}/rating/scores"): (rate, [RATED]),
    ("POST", "/jobs/{job}/rating/notes"): (
        note, [(*RATED[:4], {"seconds": 60, "counts": {"rating.notes r": 2}})]
    ),
    ("POST", "/jobs/{job}/rating/finish"): (
        finish, [("ada", "rating.finish", "r", "done", {"rater": "eve", "ratings": 1})]
    ),
    ("POST", "/jobs/{job}/rating/forget"): (forget, [("ada", "rating.forget", "r", "done", {"ratings": 1})]),
    ("POST", "/uploads"): (
        upload,
        [("ada", "upload", NAME, "done", {"bytes": 27}), ("ada", "upload", NAME, "nothing to do", {"bytes": 27})],
    ),
    ("PATCH", "/pools"): (
        lambda a: a.said(lambda: a.good("PATCH", "/pools", json={"slo": 7})),
        [("ada", "pool.cap", "*", "done", {"slo": 7})],
    ),
    ("PATCH", "/pools/{pool}"): (
        lambda a: a.said(lambda: a.good("PATCH", "/pools/sim", json={"limit": 40, "floor": None})),
        [("ada", "pool.change", "sim", "done", {"limit": 40, "floor": None})],
    ),
    ("POST", "/cluster/nodes"): (join, [("ada", "node.join", "", "done", {"name": "w2@here", "again": False})]),
    ("DELETE", "/cluster/nodes/{node}"): (
        remove, [("ada", "node.remove", "w1", "done", {"open": 0, "forced": False})]
    ),
    ("POST", "/cluster/nodes/{node}/heartbeat"): (heartbeat, []),
    ("POST", "/cluster/nodes/{node}/cordon"): (order("cordon"), [("ada", "node.cordon", "w1", "not acknowledged", {})]),
    ("POST", "/cluster/nodes/{node}/uncordon"): (order("uncordon"), [("ada", "node.uncordon", "w1", "done", {})]),
    ("POST", "/cluster/nodes/{node}/drain"): (order("drain"), [("ada", "node.drain", "w1", "not acknowledged", {})]),
    ("POST", "/cluster/steal"): (
        lambda a: a.said(lambda: a.good("POST", "/cluster/steal")),
        [("ada", "cluster.steal", "", "done", {"moves": [], "total": 0})],
    ),
}  # fmt: skip
"""What is done, and the lines that it leaves; details beside the token's id, 'w1' for the node's id."""
BY_THE_CLUSTER = ("node.cordon", "node.uncordon", "node.drain", "node.remove", "cluster.steal")
"""Lines that name no token: the same operations come from commands, too."""


def test_every_route_that_changes_something_has_its_row() -> None:
    found = {(method, route.path) for route in routes() for method in route.methods or ()}
    assert {key for key in found if key[0] not in ("GET", "HEAD")} == set(ROUTES)


@pytest.mark.parametrize(("method", "path"), ROUTES, ids=lambda part: part)
def test_a_route_leaves_exactly_its_line(asker: Asker, method: str, path: str) -> None:
    act, wanted = ROUTES[method, path]
    named = [
        (
            actor, action, asker.node.id if object == "w1" else object, outcome,
            details if action in (*BY_THE_CLUSTER, "counted") else {"token": asker.token, **details},
        )
        for actor, action, object, outcome, details in wanted
    ]  # fmt: skip
    assert act(asker) == named
    assert asker.dicast.audit.verify().whole


def test_a_rater_who_is_done_twice_changes_nothing(asker: Asker) -> None:
    (line,) = finish_again(asker)
    assert line[:4] == ("ada", "rating.finish", "r", "nothing to do")


# ------------------------------------------------------------------ commands
OPERATOR = "me@desk"
COMMANDS: dict[str, tuple[tuple[str, ...], Line]] = {
    "jobs cancel": (("jobs", "cancel", "j"), (OPERATOR, "job.cancel", "j", "done", {"before": "submitted"})),
    "jobs resume": (("jobs", "resume", "r"), (OPERATOR, "job.resume", "r", "done", {})),
    "batches cancel": (("batches", "cancel", "@b"), (OPERATOR, "batch.cancel", "@b", "done", {})),
    "jobs delete": (("jobs", "delete", "r", "--yes"), (OPERATOR, "job.delete", "r", "done", {})),
    "governor set": (
        ("governor", "set", "--pool", "sim", "--limit", "9"),
        (OPERATOR, "pool.change", "sim", "done", {"limit": 9}),
    ),
    "governor unset": (
        ("governor", "unset", "--pool", "sim", "limit"), (OPERATOR, "pool.change", "sim", "done", {"limit": None}),
    ),
    "governor slo": (("governor", "slo", "7"), (OPERATOR, "pool.cap", "*", "done", {"slo": 7})),
    "cluster cordon": (
        ("cluster", "cordon", "w1"), (OPERATOR, "node.cordon", "NODE", "not acknowledged", {})
    ),
    "cluster uncordon": (("cluster", "uncordon", "w1"), (OPERATOR, "node.uncordon", "NODE", "done", {})),
    "cluster drain": (("cluster", "drain", "w1"), (OPERATOR, "node.drain", "NODE", "not acknowledged", {})),
    "cluster remove": (
        ("cluster", "remove", "w1"), (OPERATOR, "node.remove", "NODE", "done", {"open": 0, "forced": False})
    ),
    "cluster steal": (("cluster", "steal"), (OPERATOR, "cluster.steal", "", "done", {"moves": [], "total": 0})),
    "token issue": (
        ("token", "issue", "ci", "--scope", "job:submit", "--pool", "sim"),
        (OPERATOR, "token issue", "TOKEN", "done",
         {"subject": "ci", "scopes": ["job:submit"], "node": "", "pools": ["sim"], "labels": None}),
    ),
    "token revoke": (("token", "revoke", "--all"), (OPERATOR, "token revoke", "all", "done", {"ended": 0})),
    "token rotate": (
        ("token", "rotate", "--overlap", "1h"), (OPERATOR, "token rotate", "2", "done", {"overlap_s": 3600.0})
    ),
}  # fmt: skip
"""Commands that change what others use, with the line that each leaves."""
OTHERS = {
    "run", "validate", "quote", "init", "report", "compare", "sample", "panel", "calibrate", "certify", "watch",
    "verify", "rubrics", "schema", "gate", "doctor", "pools", "spend", "metrics",
    "serve", "health", "stop", "demo", "cache stats", "cache prune", "cache export", "cache import",
    "batches list", "batches show", "jobs list", "jobs show", "jobs watch", "jobs export",
    "governor show", "fleet status", "token list", "audit show", "audit verify", "cluster nodes", "cluster status",
}  # fmt: skip
"""They look, submit a job as every program with the store's address may, or are about files and processes of their
own; docs/access.md says so."""


def commands() -> set[str]:
    def below(command: Any, path: tuple[str, ...]) -> Iterator[str]:
        if not hasattr(command, "commands"):
            yield " ".join(path)
            return
        for name, each in command.commands.items():
            yield from below(each, (*path, name))

    return set(below(typer.main.get_command(cli), ()))


def test_every_command_has_its_row() -> None:
    assert commands() == OTHERS | set(COMMANDS)


@pytest.fixture(scope="module")
def with_users(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with store_server(tmp_path_factory.mktemp("store")) as url:
        yield url


@pytest.fixture
def redis_url(with_users: str) -> str:
    with create_app({"REDIS_URL": with_users}).store as store:
        store.flushall()
    return with_users


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_leaves_exactly_its_line(
    at_once: Callable[..., Any], environ: dict[str, str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("getpass.getuser", lambda: "me")
    monkeypatch.setattr("socket.gethostname", lambda: "desk")
    monkeypatch.setattr(Cluster.__init__, "__defaults__", (lambda *_: None, 0.0))  # nobody is there to acknowledge
    dicast = create_app({**environ, "DICAST_TOKEN_SECRET": SECRET})
    node = Node.for_this_process("w1@here", limit=5, slots=5)
    dicast.registry.announce(node)
    dicast.submit({**JOB, "id": "j"})
    dicast.store.hset(dicast.keys.node("@b"), "stage", "sealed")
    finished(dicast, "r", 8)
    dicast.store.hset(dicast.keys.at("job", "r"), "state", "cancelled")
    words, (actor, action, object, outcome, details) = COMMANDS[name]
    ended = at_once(*words, DICAST_TOKEN_SECRET=SECRET)
    assert ended.returncode in (0, 1), ended.stderr
    if object == "TOKEN":
        object = dicast.tokens.list()[0].id
    assert lines(dicast.audit) == [
        (actor, action, node.id if object == "NODE" else object, outcome, json.loads(json.dumps(details)))
    ]


def test_a_node_that_joined_notes_what_it_does_in_its_own_log(
    environ: dict[str, str], redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It has no rights to the audit log, and what was done is not told as a failure."""
    server = create_app({**environ, "DICAST_TOKEN_SECRET": SECRET})
    claims = server.tokens.verify(server.tokens.issue("fleet", [Scope.NODE_REGISTER], ttl_s=600), None)
    remember(environ["DICAST_STATE_DIR"], server.membership.join(claims, "w1@here").store.url)
    joined = {name: value for name, value in environ.items() if name != "REDIS_URL"}
    here = create_app({**joined, "DICAST_SERVER_URL": "http://127.0.0.1:9", "DICAST_NODE_TOKEN": "x" * 40})
    node = Node.for_this_process("w1@here", limit=5, slots=5)
    here.registry.announce(node)
    here.cluster._wait_s = 0.0
    with caplog.at_level("INFO", "dicast.app.access.audit"):
        assert here.cluster.cordon(node.id, by="celery control cordon").status == "cordoned"
    assert f"celery control cordon node.cordon {node.id}: not acknowledged" in caplog.text
    assert lines(server.audit) == []


def test_asyncio_programs_leave_a_line(dicast: Dicast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "operator", lambda: OPERATOR)
    monkeypatch.setattr("dicast.app.aio.operator", lambda: OPERATOR)

    async def cancel_twice() -> None:
        asking = AsyncClient(app=dicast)
        await asking.submit({**JOB, "id": "j"})
        await asking.cancel("j")
        await asking.cancel("j")

    asyncio.run(cancel_twice())
    assert lines(dicast.audit) == [
        (OPERATOR, "job.cancel", "j", "done", {"before": "submitted"}),
        (OPERATOR, "job.cancel", "j", "nothing to do", {"before": "finishing"}),
    ]
