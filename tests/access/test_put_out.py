"""How many connections and nodes are ended when somebody is put out, and that nothing is left to come back with."""

from __future__ import annotations

import pytest
import redis

from dicast.app.access.scopes import Scope, TokenRejected
from tests.access.test_membership import admin, let_in, membership, server, tokens, users

__all__ = ["admin", "membership", "server", "tokens", "users"]


def test_whoever_is_put_out_is_told_how_many_connections_ended(membership, tokens):
    claims = let_in(tokens, node="gpu-1")
    joined = [membership.join(claims, "gpu-1") for _ in range(2)]
    open_ones = [redis.Redis.from_url(node.store.url, retry=None) for node in (*joined, joined[0])]
    for client in open_ones:
        assert client.ping()
    assert membership.expel("gpu-1") == 3
    for client in open_ones:
        with pytest.raises(redis.RedisError):
            client.ping()
        client.close()


def test_when_all_end_no_token_of_a_node_is_left(membership, tokens):
    joined = [membership.join(let_in(tokens), f"gpu-{n}") for n in range(2)]
    operator = tokens.issue("ann", [Scope.NODE_ADMIN], ttl_s=60)
    assert membership.revoke_all() == 2
    for token in (operator, *(node.heartbeat_token for node in joined)):
        with pytest.raises(TokenRejected, match="generation"):
            tokens.verify(token, None)


@pytest.mark.parametrize("left_s, is_renewed", [(1, False), (0, True), (-1, True)])
def test_a_token_is_renewed_from_two_thirds_of_its_life_on(membership, tokens, clock, left_s, is_renewed):
    from dicast.app.access.membership import HEARTBEAT_TTL_S, RENEW_AT

    joined = membership.join(let_in(tokens), "gpu-1")
    claims = tokens.verify(joined.heartbeat_token, Scope.NODE_HEARTBEAT, node=joined.node)
    clock.s += HEARTBEAT_TTL_S * (1 - RENEW_AT) - left_s
    assert (membership.renewed(claims) is not None) is is_renewed
