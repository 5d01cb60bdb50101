"""`dicast token` and `dicast audit` on a real store."""

from __future__ import annotations

import json

import pytest

from dicast.app.access.scopes import Scope
from dicast.app.application import create_app
from tests.access.conftest import SECRET
from tests.access.servers import store_server
from tests.command import at_once, dicast, environ, refused

__all__ = ["at_once", "dicast", "environ"]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with store_server(tmp_path_factory.mktemp("store")) as url:
        yield url


@pytest.fixture
def redis_url(server):
    """Of a server with users of its own."""
    with create_app({"REDIS_URL": server}).store as client:
        client.flushall()
    return server


@pytest.fixture
def run(at_once):
    return lambda *words, **more: at_once(*words, **{"DICAST_TOKEN_SECRET": SECRET, **more})


@pytest.fixture
def app(environ):
    return create_app({**environ, "DICAST_TOKEN_SECRET": SECRET})


def test_a_token_is_issued_listed_and_revoked(run, app):
    issued = run("token", "issue", "gpus", "--scope", "node:register", "--ttl", "2h")
    assert issued.returncode == 0, issued.stderr
    token = issued.stdout.strip()
    claims = app.tokens.verify(token, "node:register")
    assert (claims.subject, token in issued.stderr) == ("gpus", False)
    assert 7000 < claims.expires_at - app.tokens.now() <= 7200
    joined = app.membership.join(claims, "gpu-1")
    listed = json.loads(run("token", "list", "--json").stdout)
    assert [(x["subject"], x["state"], x["parent"]) for x in listed] == [
        ("gpus", "valid", claims.id), ("gpus", "valid", ""),
    ]  # fmt: skip
    table = run("token", "list").stdout
    assert claims.id in table and "node:heartbeat" in table
    revoked = run("token", "revoke", claims.id)
    assert "so are 1 nodes" in revoked.stderr
    assert {x["state"] for x in json.loads(run("token", "list", "--json").stdout)} == {"revoked"}
    assert app.store_users.nodes() == {} and joined.store.user not in app.store.acl_users()


def test_a_node_and_all_are_revoked(run, app):
    claims = app.tokens.verify(app.tokens.issue("gpus", ["node:register"], ttl_s=60), None)
    first, second = (app.membership.join(claims, name).node for name in ("gpu-1", "gpu-2"))
    assert f"Node {first} is revoked" in run("token", "revoke", "--node", first).stderr
    assert set(app.store_users.nodes()) == {second}
    assert "1 nodes that joined" in run("token", "revoke", "--all").stderr
    assert app.store_users.nodes() == {}
    assert "no token is bound to a node 'nobody'" in refused(run("token", "revoke", "--node", "nobody"))


def test_a_key_is_rotated(run, app):
    old = app.tokens.issue("me", ["job:read"], ttl_s=60)
    assert "Key 2 signs from now on; the one before is accepted for 5,400 s" in run(
        "token", "rotate", "--overlap", "90m"
    ).stderr  # fmt: skip
    assert app.tokens.verify(old, None)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("issue", "me", "--scope", "root"), "--scope must be one of node:register, "),
        (("issue", "me", "--scope", "node:heartbeat"), "--scope must be one of"),
        (("issue", "me", "--scope", "job:read", "--ttl", "soon"), "--ttl must be a number of seconds"),
        (("issue", "me", "--scope", "job:read", "--ttl", "0"), "ttl_s must be > 0"),
        (("issue", "me", "--scope", "job:read", "--pool", "x"), "--pool must be one of sim, got 'x'"),
        (("issue", "\x1b[1m", "--scope", "job:read"), "subject must be"),
        (("revoke", "x"), "there is no token 'x'"),
        (("revoke", "x", "--all"), "give the id of a token, or --node NODE, or --all"),
        (("revoke", "--node", ""), "give the id"),
        (("rotate", "--overlap", "-1"), "--overlap must be"),
    ],
)
def test_mistakes_are_named(run, words, complaint):
    assert complaint in refused(run("token", *words))


def test_without_a_secret_there_are_no_tokens(at_once):
    assert "DICAST_TOKEN_SECRET is not set" in refused(at_once("token", "list"))
    assert "must have >= 32 bytes" in refused(at_once("token", "list", DICAST_TOKEN_SECRET="s" * 31))


def test_the_help_names_every_scope_that_can_be_issued(run):
    lines = run("token", "issue", "--help").stdout.splitlines()
    named = {line.split()[0] for line in lines if line.startswith("    ") and ":" in line.split(" to ")[0]}
    assert named & set(Scope) == set(Scope) - {Scope.NODE_HEARTBEAT}
    refusal = run("token", "issue", "x", "--scope", "node:heartbeat").stderr
    assert all(scope in refusal for scope in set(Scope) - {Scope.NODE_HEARTBEAT})


def test_the_audit_log_tells_of_it_and_is_checked(run, app):
    token = run("token", "issue", "me", "--scope", "job:read").stdout.strip()
    run("token", "rotate")
    shown = [json.loads(line) for line in run("audit", "show", "--json").stdout.splitlines()]
    assert [(line["action"], line["outcome"]) for line in shown] == [("token issue", "done"), ("token rotate", "done")]
    assert token not in str(shown) and SECRET not in str(shown)
    assert "token rotate" in run("audit", "show", "-n", "1").stdout
    whole = run("audit", "verify")
    assert (whole.returncode, "The audit log is whole: 2 lines." in whole.stderr) == (0, True)
    app.store.lset("{dicast}.access:audit", 0, app.store.lindex("{dicast}.access:audit", 1))
    broken = run("audit", "verify")
    assert (broken.returncode, "broken at line 1" in broken.stderr) == (1, True)
    told = json.loads(run("audit", "verify", "--json").stdout)
    assert (told["whole"], told["broken"]) == (False, 1)


def test_an_empty_log(run):
    assert "There are no lines." in run("audit", "show").stderr
    assert "whole: 0 lines" in run("audit", "verify").stderr
    assert "There are no tokens." in run("token", "list").stderr
