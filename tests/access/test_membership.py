"""Nodes let in, kept in and put out: nobody who is put out keeps anything, however it races."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis

from dicast.app.access.membership import HEARTBEAT_TTL_S, Membership
from dicast.app.access.scopes import Scope, TokenRejected
from dicast.app.access.store_users import StoreBroker, StoreUsers
from dicast.app.access.tokens import TokenError, Tokens
from dicast.workers.store.connection import connect
from tests.access.conftest import SECRET, secrets_of
from tests.access.servers import store_server


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with store_server(tmp_path_factory.mktemp("store")) as url:
        yield url


@pytest.fixture
def admin(server):
    with connect(server) as client:
        client.flushall()
        for user in client.acl_users():
            if user != "default":
                client.acl_deluser(user)
        yield client


@pytest.fixture
def tokens(admin, clock):
    return Tokens(admin, "dicast", secrets_of(SECRET), clock)


@pytest.fixture
def users(admin, server, clock):
    return StoreUsers(admin, "dicast", server, secrets_of(SECRET), StoreBroker(), clock)


@pytest.fixture
def membership(tokens, users):
    return Membership(tokens, users)


def let_in(tokens, **more):
    return tokens.verify(tokens.issue("gpus", [Scope.NODE_REGISTER], ttl_s=86_400, **more), Scope.NODE_REGISTER)


def reaches(joined):
    try:
        with redis.Redis.from_url(joined.store.url, retry=None) as client:
            return bool(client.ping())
    except redis.RedisError:
        return False


def test_a_node_is_let_in_and_put_out(membership, tokens, users):
    joined = membership.join(let_in(tokens), "gpu-1")
    assert joined.node.startswith("gpu-1#") and reaches(joined)
    assert tokens.verify(joined.heartbeat_token, Scope.NODE_HEARTBEAT, node=joined.node)
    assert membership.join(let_in(tokens), "gpu-1").node != joined.node
    assert membership.expel(joined.node) == 0
    assert not reaches(joined)
    with pytest.raises(TokenRejected, match="generation"):
        tokens.verify(joined.heartbeat_token, Scope.NODE_HEARTBEAT, node=joined.node)


def test_it_may_come_back_as_itself_with_its_own_token_alone(membership, tokens):
    claims = let_in(tokens)
    first = membership.join(claims, "gpu-1")
    back = membership.join(claims, "gpu-1", was=first.node, old_token=first.heartbeat_token)
    assert (back.node, back.store) == (first.node, first.store)
    other = membership.join(claims, "gpu-2")
    for was, token in ((first.node, other.heartbeat_token), (first.node, None), (other.node, other.heartbeat_token)):
        assert membership.join(claims, "gpu-1", was=was, old_token=token).node not in (first.node, other.node)
    membership.expel(first.node)
    again = membership.join(claims, "gpu-1", was=first.node, old_token=first.heartbeat_token)
    assert again.node != first.node and not reaches(first)


@pytest.mark.parametrize("name", ["", "a b", "a#b", "a/b", "a%b", "a\n", "x" * 121])
def test_a_name_that_is_none(membership, tokens, name):
    with pytest.raises(TokenError, match="name must be"):
        membership.join(let_in(tokens), name)


def test_a_token_that_is_bound_to_a_name_lets_no_other_in(membership, tokens):
    claims = let_in(tokens, node="gpu-1")
    assert membership.join(claims, "gpu-1")
    with pytest.raises(TokenRejected, match="another node"):
        membership.join(claims, "gpu-2")


def test_a_member_is_renewed_without_a_pause(membership, tokens, users, clock):
    joined = membership.join(let_in(tokens), "gpu-1")
    token = joined.heartbeat_token
    for _ in range(10):  # over many times its life
        claims = tokens.verify(token, Scope.NODE_HEARTBEAT, node=joined.node)
        assert membership.renewed(claims) is None
        clock.s += HEARTBEAT_TTL_S / 2
        claims = tokens.verify(token, Scope.NODE_HEARTBEAT, node=joined.node)
        renewed = membership.renewed(claims)
        assert renewed is not None
        assert tokens.verify(token, Scope.NODE_HEARTBEAT, node=joined.node)  # the older one too
        token = renewed[0]
        users.reconcile()
        assert reaches(joined)
    clock.s += HEARTBEAT_TTL_S + 121
    assert users.reconcile() == (0, 1)
    assert not reaches(joined)


def test_a_member_that_was_put_out_is_not_renewed(membership, tokens, users, clock):
    joined = membership.join(let_in(tokens), "gpu-1")
    claims = tokens.verify(joined.heartbeat_token, Scope.NODE_HEARTBEAT, node=joined.node)
    clock.s += HEARTBEAT_TTL_S / 2
    users.delete(joined.node)
    with pytest.raises(TokenRejected, match="revoked"):
        membership.renewed(claims)
    assert users.nodes() == {}


def test_revoking_what_let_nodes_in_puts_them_all_out(membership, tokens, users, clock):
    claims, others = let_in(tokens), let_in(tokens)
    joined = [membership.join(claims, f"gpu-{n}") for n in range(3)]
    stays = membership.join(others, "cpu-1")
    clock.s += HEARTBEAT_TTL_S / 2
    renewed = membership.renewed(tokens.verify(joined[0].heartbeat_token, None))  # one of the family too
    assert len(membership.revoke(claims.id)) == 5
    assert not any(map(reaches, joined)) and reaches(stays)
    for token in (renewed[0], *(node.heartbeat_token for node in joined)):
        with pytest.raises(TokenRejected, match="revoked"):
            tokens.verify(token, None)
    assert membership.revoke_all() == 1 and not reaches(stays)


def test_a_name_is_put_out_with_all_nodes_of_it(membership, tokens, users):
    claims = let_in(tokens, node="gpu@1")
    joined = [membership.join(claims, "gpu@1") for _ in range(2)]
    stays = membership.join(let_in(tokens), "gpu@12")
    membership.expel("gpu@1")
    assert not any(map(reaches, joined)) and reaches(stays)
    with pytest.raises(TokenRejected, match="generation"):
        tokens.verify(joined[0].heartbeat_token, None)


def test_revoking_one_token_of_a_node_puts_it_out(membership, tokens, clock):
    """Though it has a newer one by then."""
    joined = membership.join(let_in(tokens), "gpu-1")
    first = tokens.verify(joined.heartbeat_token, None)
    clock.s += HEARTBEAT_TTL_S / 2
    newer, _ = membership.renewed(first)
    membership.revoke(first.id)
    assert not reaches(joined)
    with pytest.raises(TokenRejected, match="generation"):
        tokens.verify(newer, None)


def test_whoever_joins_while_what_lets_them_in_is_revoked_is_out(membership, tokens, users):
    """However the two fall together, no user is left."""
    for _ in range(20):
        claims, start = let_in(tokens), threading.Barrier(5)

        def join(n, claims=claims, start=start):
            start.wait()
            try:
                return membership.join(claims, f"gpu-{n}")
            except TokenRejected:
                return None

        with ThreadPoolExecutor(5) as threads:
            joining = [threads.submit(join, n) for n in range(4)]
            start.wait()
            membership.revoke(claims.id)
            joined = [each.result() for each in joining]
        assert users.nodes() == {}
        assert not any(reaches(node) for node in joined if node is not None)


def test_five_hundred_nodes_join_at_once(membership, tokens, users):
    """Over two servers."""
    claims = let_in(tokens)
    with ThreadPoolExecutor(16) as threads:
        joined = list(threads.map(lambda n: membership.join(claims, f"gpu-{n}"), range(500)))
    assert len({node.node for node in joined}) == len(users.nodes()) == 500
    assert users.reconcile() == (0, 0)
    assert len(membership.revoke(claims.id)) == 501
    assert users.nodes() == {}
