"""Who may do what: every route x every kind of token. The routes are the application's own: one without its row in
`EXAMPLES` fails, as does one whose scopes are others than told there."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest
from joserfc import jwt
from joserfc.jwk import OctKey

from dicast.app.access.scopes import Scope
from dicast.app.access.tokens import LEEWAY_S, Tokens
from dicast.app.application import Dicast
from dicast.app.server.guards import needs_of
from dicast.app.server.interface import routes
from tests.server.serving import JOB, client, installation, problem, served

S = Scope
LOOK = {S.JOB_READ, S.POOL_ADMIN, S.NODE_ADMIN}
NODE = "w1@here%23aa"
EXAMPLES: dict[tuple[str, str], tuple[str, set[Scope]]] = {
    ("POST", "/jobs"): ("/jobs", {S.JOB_SUBMIT}),
    ("POST", "/jobs/quote"): ("/jobs/quote", {S.JOB_SUBMIT}),
    ("GET", "/jobs"): ("/jobs", {S.JOB_READ}),
    ("GET", "/jobs/{job}"): ("/jobs/mine", {S.JOB_READ}),
    ("DELETE", "/jobs/{job}"): ("/jobs/mine", {S.JOB_SUBMIT}),
    ("POST", "/jobs/{job}/resume"): ("/jobs/mine/resume", {S.JOB_SUBMIT}),
    ("POST", "/jobs/{job}/delete"): ("/jobs/mine/delete", {S.JOB_SUBMIT}),
    ("GET", "/jobs/{job}/events"): ("/jobs/gone/events", {S.JOB_READ}),
    ("GET", "/jobs/{job}/report"): ("/jobs/mine/report", {S.JOB_READ}),
    ("GET", "/jobs/{job}/report.html"): ("/jobs/mine/report.html", {S.JOB_READ}),
    ("GET", "/jobs/{job}/opinions"): ("/jobs/mine/opinions", {S.JOB_READ}),
    ("GET", "/jobs/{job}/errors"): ("/jobs/mine/errors", {S.JOB_READ}),
    ("GET", "/jobs/{job}/errors/newest"): ("/jobs/mine/errors/newest", {S.JOB_READ}),
    ("GET", "/jobs/{job}/so-far"): ("/jobs/mine/so-far", {S.JOB_READ}),
    ("GET", "/jobs/{job}/items"): ("/jobs/mine/items", {S.JOB_READ}),
    ("GET", "/jobs/{job}/item"): ("/jobs/mine/item?id=i", {S.JOB_READ}),
    ("GET", "/jobs/{job}/text"): ("/jobs/mine/text?id=i", {S.JOB_READ}),
    ("GET", "/jobs/{job}/scores"): ("/jobs/mine/scores", {S.JOB_READ}),
    ("GET", "/jobs/{job}/facets"): ("/jobs/mine/facets", {S.JOB_READ}),
    ("GET", "/jobs/{job}/points"): ("/jobs/mine/points", {S.JOB_READ}),
    ("GET", "/jobs/{job}/compare"): ("/jobs/mine/compare?from=mine", {S.JOB_READ}),
    ("GET", "/jobs/{job}/prompt"): ("/jobs/mine/prompt?id=i&judge=a&dimension=d", {S.JOB_READ}),
    ("POST", "/jobs/{job}/rating"): ("/jobs/mine/rating", {S.JOB_SUBMIT}),
    ("GET", "/jobs/{job}/rating"): ("/jobs/mine/rating?rater=r", {S.RATING_WRITE}),
    ("GET", "/jobs/{job}/rating/item"): ("/jobs/mine/rating/item?id=i&rater=ada", {S.RATING_WRITE}),
    ("POST", "/jobs/{job}/rating/scores"): ("/jobs/mine/rating/scores", {S.RATING_WRITE}),
    ("POST", "/jobs/{job}/rating/notes"): ("/jobs/mine/rating/notes", {S.RATING_WRITE}),
    ("POST", "/jobs/{job}/rating/finish"): ("/jobs/mine/rating/finish", {S.RATING_WRITE}),
    ("POST", "/jobs/{job}/rating/forget"): ("/jobs/mine/rating/forget", {S.JOB_SUBMIT}),
    ("GET", "/jobs/{job}/rating/agreement"): ("/jobs/mine/rating/agreement?rater=r", {S.RATING_WRITE}),
    ("GET", "/jobs/{job}/rating/file"): ("/jobs/mine/rating/file", {S.JOB_READ}),
    ("GET", "/session"): ("/session", {*LOOK, S.JOB_SUBMIT, S.RATING_WRITE}),
    ("GET", "/"): ("/", set()),
    ("GET", "/page/{file}"): ("/page/page.css", set()),
    ("POST", "/jobs/check"): ("/jobs/check", {S.JOB_SUBMIT}),
    ("GET", "/rubrics"): ("/rubrics", {S.JOB_READ, S.JOB_SUBMIT}),
    ("GET", "/job.schema.json"): ("/job.schema.json", set()),
    ("POST", "/uploads"): ("/uploads?ending=.csv", {S.JOB_SUBMIT}),
    ("GET", "/pools"): ("/pools", {S.JOB_READ, S.POOL_ADMIN}),
    ("GET", "/pools/{pool}"): ("/pools/sim", {S.JOB_READ, S.POOL_ADMIN}),
    ("PATCH", "/pools"): ("/pools", {S.POOL_ADMIN}),
    ("PATCH", "/pools/{pool}"): ("/pools/sim", {S.POOL_ADMIN}),
    ("GET", "/slo"): ("/slo", {S.JOB_READ, S.POOL_ADMIN}),
    ("GET", "/status"): ("/status", LOOK),
    ("GET", "/spend"): ("/spend", {S.JOB_READ}),
    ("GET", "/metrics"): ("/metrics", LOOK),
    ("GET", "/grafana/dashboard"): ("/grafana/dashboard", LOOK),
    ("GET", "/cluster/nodes"): ("/cluster/nodes", {S.JOB_READ, S.NODE_ADMIN}),
    ("POST", "/cluster/nodes"): ("/cluster/nodes", {S.NODE_REGISTER}),
    ("GET", "/cluster/nodes/{node}"): (f"/cluster/nodes/{NODE}", {S.JOB_READ, S.NODE_ADMIN}),
    ("DELETE", "/cluster/nodes/{node}"): (f"/cluster/nodes/{NODE}", {S.NODE_ADMIN, S.NODE_HEARTBEAT}),
    ("POST", "/cluster/nodes/{node}/heartbeat"): (f"/cluster/nodes/{NODE}/heartbeat", {S.NODE_HEARTBEAT}),
    ("POST", "/cluster/nodes/{node}/cordon"): (f"/cluster/nodes/{NODE}/cordon", {S.NODE_ADMIN}),
    ("POST", "/cluster/nodes/{node}/uncordon"): (f"/cluster/nodes/{NODE}/uncordon", {S.NODE_ADMIN}),
    ("POST", "/cluster/nodes/{node}/drain"): (f"/cluster/nodes/{NODE}/drain", {S.NODE_ADMIN}),
    ("POST", "/cluster/steal"): ("/cluster/steal", {S.NODE_ADMIN}),
    ("GET", "/cluster/status"): ("/cluster/status", {S.JOB_READ, S.NODE_ADMIN}),
    ("GET", "/cluster/events"): ("/cluster/events", {S.JOB_READ, S.NODE_ADMIN}),
    ("GET", "/healthz"): ("/healthz", set()),
    ("GET", "/readyz"): ("/readyz", set()),
    ("GET", "/openapi.json"): ("/openapi.json", set()),
}
HERE = "w1@here#aa"


@dataclass(frozen=True)
class Given:
    """One installation with a server, and tokens of every kind."""

    dicast: Dicast
    http: httpx2.Client
    bad: dict[str, tuple[str | None, str]]
    """By kind: the header's value, and the reason for which it is refused."""

    def new_minute(self) -> None:
        """From now on refusals have lines of their own again, and are not only counted."""
        self.dicast.store.delete("{dicast}.access:audit_counts")


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory, module_url: str) -> Iterator[Given]:
    dicast = installation(tmp_path_factory.mktemp("tokens"), module_url)
    tokens, every = dicast.tokens, set(Scope)
    with served(dicast) as address, client(address) as http:
        yield Given(dicast, http, _bad(dicast, tokens, every))


def good(dicast: Dicast, node: str = HERE) -> dict[Scope, str]:
    """A token for each scope, which has that one alone."""
    return {scope: dicast.tokens.issue(f"has {scope}", [scope], ttl_s=600, node=node) for scope in Scope}


def _bad(dicast: Dicast, tokens: Tokens, every: set[Scope]) -> dict[str, tuple[str | None, str]]:
    """Each has every scope, and one thing that is wrong."""
    whole = tokens.issue("whole", every, ttl_s=600, node=HERE)
    head, body, seal = whole.split(".")
    claims = json.loads(base64.urlsafe_b64decode(body + "=="))
    packed = base64.urlsafe_b64encode(json.dumps({**claims, "scope": " ".join(Scope)}).encode()).rstrip(b"=").decode()

    def headed(**changes: object) -> str:
        header = {**json.loads(base64.urlsafe_b64decode(head + "==")), **changes}
        return base64.urlsafe_b64encode(json.dumps(header).encode()).rstrip(b"=").decode()

    kid = json.loads(base64.urlsafe_b64decode(head + "=="))["kid"]
    foreign = jwt.encode(
        {"alg": "HS256", "kid": kid}, claims, OctKey.import_key("another secret of many bytes, 32 of them")
    )
    late = Tokens(dicast.store, "dicast", dicast.token_secrets, clock=lambda: tokens.now() - 700 - 2 * LEEWAY_S)
    revoked = tokens.issue("revoked", every, ttl_s=600, node=HERE)
    tokens.revoke(next(token.id for token in tokens.list() if token.subject == "revoked"))
    ended = tokens.issue("ended", every, ttl_s=600, node="w2@there#bb")
    tokens.revoke_node("w2@there#bb")
    elsewhere = Tokens(dicast.store, "elsewhere", dicast.token_secrets).issue("x", every, ttl_s=600, node=HERE)
    bearer = {
        "garbage": ("garbage", "malformed"),
        "huge": ("a" * 5000, "malformed"),
        "not ASCII": ("\u00fc.\u00fc.\u00fc", "malformed"),
        "alg none": (f"{headed(alg='none')}.{body}.", "malformed"),
        "alg none, signed": (f"{headed(alg='none')}.{body}.{seal}", "malformed"),
        "alg HS512": (f"{headed(alg='HS512')}.{body}.{seal}", "malformed"),
        "wrong key": (foreign, "signature"),
        "altered": (f"{head}.{packed[:-4]}AAAA.{seal}", "signature"),
        "cut": (f"{head}.{body}", "malformed"),
        "expired": (late.issue("late", every, ttl_s=600, node=HERE), "expired"),
        "revoked": (revoked, "revoked"),
        "old generation": (ended, "generation"),
        "other installation": (elsewhere, "malformed"),
    }
    return {
        "none": (None, "missing"), "empty": ("Bearer", "missing"), "basic": (f"Basic {whole}", "missing"),
        "bare": (whole, "missing"),
        **{kind: (f"Bearer {token}", reason) for kind, (token, reason) in bearer.items()},
    }  # fmt: skip


def ask(http: httpx2.Client, method: str, path: str, authorization: str | None) -> httpx2.Response:
    headers = [] if authorization is None else [(b"Authorization", authorization.encode())]
    body = json.dumps(JOB) if method in ("POST", "PATCH") else None
    with http.stream(method, path, headers=[*headers, (b"Content-Type", b"application/json")], content=body) as reply:
        if not reply.headers.get("content-type", "").startswith("text/event-stream"):
            reply.read()
        return reply


def test_every_route_has_its_row() -> None:
    found = {
        (method, route.path): set(needs_of(route.dependant).scopes)
        for route in routes()
        for method in route.methods or ()
    }
    assert found == {key: scopes for key, (_, scopes) in EXAMPLES.items()}


@pytest.mark.parametrize(("method", "path"), EXAMPLES, ids=lambda part: part)
def test_only_the_right_token_opens(given: Given, method: str, path: str) -> None:
    url, scopes = EXAMPLES[method, path]
    lines = given.dicast.audit
    for scope in Scope:
        given.new_minute()
        token = good(given.dicast)[scope]
        reply = ask(given.http, method, url, f"Bearer {token}")
        if scope in scopes or not scopes:
            assert reply.status_code not in (401, 403), (scope, reply.status_code)
        else:
            problem(reply, 403, "token-refused")
            assert reply.headers["www-authenticate"] == 'Bearer realm="dicast", error="insufficient_scope"'
            line = next(lines.lines(1))
            assert (line.actor, line.outcome, line.details["reason"], line.details["subject"]) == (
                f"has {scope}", "refused", "scope", f"has {scope}",
            )  # fmt: skip
    if not scopes:
        assert ask(given.http, method, url, None).status_code not in (401, 403)
        return
    for kind, (authorization, reason) in given.bad.items():
        given.new_minute()
        reply = ask(given.http, method, url, authorization)
        problem(reply, 401, "token-refused")
        assert reply.headers["www-authenticate"].startswith('Bearer realm="dicast"'), kind
        line = next(lines.lines(1))
        assert (line.action, line.outcome) == (f"{method} {path}", "refused")
        assert line.details["reason"] == reason, kind


def test_a_nodes_token_is_for_its_node_alone(given: Given) -> None:
    """Whatever scope it has."""
    own = {scope: f"Bearer {token}" for scope, token in good(given.dicast).items()}
    for method, path in EXAMPLES:
        if "{node}" not in path or method == "GET":
            continue
        other = EXAMPLES[method, path][0].replace(NODE, "w3@there%23cc")
        for scope in EXAMPLES[method, path][1]:
            told = ask(given.http, method, other, own[scope])
            assert problem(told, 403, "token-refused")["detail"] == "the token is for another node"
    assert given.dicast.audit.verify().whole


def test_a_revoked_token_is_refused_by_every_server_at_once(tmp_path: Path, redis_url: str) -> None:
    one, two = installation(tmp_path, redis_url), installation(tmp_path, redis_url)
    token = one.tokens.issue("t", [S.JOB_READ], ttl_s=600)
    with served(one) as first, served(two) as second, client(first, token) as a, client(second, token) as b:
        assert a.get("/jobs").status_code == b.get("/jobs").status_code == 200
        one.tokens.revoke(one.tokens.list()[0].id)
        for http in (a, b):
            problem(http.get("/jobs"), 401, "token-refused")


def test_without_tokens_everything_is_open_and_nothing_joins(tmp_path: Path, redis_url: str) -> None:
    dicast = installation(tmp_path, redis_url, DICAST_REQUIRE_AUTH="false", DICAST_TOKEN_SECRET="")
    with served(dicast) as address, client(address) as http:
        for (method, _), (url, _) in EXAMPLES.items():
            reply = ask(http, method, url, None)
            assert reply.status_code not in (401, 403) and reply.status_code < 500, (method, url, reply.status_code)
        problem(http.post("/cluster/nodes", json={"name": "w"}), 404, "not-found")
