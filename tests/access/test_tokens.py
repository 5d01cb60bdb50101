"""Tokens: the matrix scope x kind of token, what ends one, rotation, clocks, servers side by side."""

from __future__ import annotations

import base64
import hmac
import itertools
import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st
from joserfc import jwt
from joserfc.jwk import OctKey, RSAKey

from dicast.app.access.keys import SecretMissing, TokenSecret
from dicast.app.access.scopes import Scope, TokenRejected
from dicast.app.access.tokens import LEEWAY_S, OVERLAP_S, TokenError, Tokens, may_act_at
from tests.access.conftest import OTHER, SECRET, secrets_of


@pytest.fixture
def tokens(client, clock):
    return Tokens(client, "dicast", secrets_of(SECRET), clock)


def refused(tokens, token, scope=Scope.JOB_READ, node=""):
    with pytest.raises(TokenRejected) as caught:
        tokens.verify(token, scope, node=node)
    assert token is None or token not in str(caught.value) or not token
    return caught.value.reason


def part(value):
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def parts(token):
    return [json.loads(base64.urlsafe_b64decode(piece + "==")) for piece in token.split(".")[:2]]


def signed(header, claims, key, algorithm="HS256"):
    return jwt.encode({**header, "alg": algorithm}, claims, key, algorithms=[algorithm])


def replaced(token, claims):
    header, _, signature = token.split(".")
    return f"{header}.{part(claims)}.{signature}"


def by_hand(header, claims):
    body = f"{part(header)}.{part(claims)}"
    key = TokenSecret(SECRET.encode(), "dicast").key("token key 1")
    return body + "." + base64.urlsafe_b64encode(hmac.digest(key, body.encode(), "sha256")).rstrip(b"=").decode()


def own_key(number=1, secret=SECRET, namespace="dicast"):
    return OctKey.import_key(TokenSecret(secret.encode(), namespace).key(f"token key {number}"))


def forged(tokens, good, kind):
    """A token of one kind of badness, made of a good one."""
    header, claims = parts(good)
    rsa = RSAKey.generate_key(2048) if kind == "rs256" else None
    return {
        "none": lambda: None,
        "empty": lambda: "",
        "garbage": lambda: "garbage",
        "three dots": lambda: "...",
        "not ascii": lambda: good[:-1] + "é",
        "too long": lambda: good + "A" * 5000,
        "alg none": lambda: f"{part({**header, 'alg': 'none'})}.{part(claims)}.",
        "alg None": lambda: f"{part({**header, 'alg': 'None'})}.{part(claims)}.{good.split('.')[2]}",
        "no alg": lambda: f"{part({'kid': header['kid']})}.{part(claims)}.{good.split('.')[2]}",
        "hs512": lambda: signed(header, claims, own_key(), "HS512"),
        "rs256": lambda: signed(header, claims, rsa, "RS256"),
        "wrong key": lambda: signed(header, claims, OctKey.import_key(b"k" * 32)),
        "another's secret": lambda: signed(header, claims, own_key(secret=OTHER)),
        "another namespace's key": lambda: signed(header, claims, own_key(namespace="blue")),
        "another namespace": lambda: signed(header, {**claims, "iss": "blue"}, own_key()),
        "another audience": lambda: signed(header, {**claims, "aud": "blue"}, own_key()),
        "no kid": lambda: signed({}, claims, own_key()),
        "strange kid": lambda: signed({**header, "kid": "../../x"}, claims, own_key()),
        "kid is a list": lambda: f"{part({**header, 'kid': ['x']})}.{part(claims)}.{good.split('.')[2]}",
        "by hand and unknown header": lambda: by_hand({**header, "x": 1}, claims),
        "critical header": lambda: by_hand({**header, "crit": ["x"], "x": 1}, claims),
        "altered claims": lambda: replaced(good, {**claims, "scope": "node:admin"}),
        "cut signature": lambda: good[:-8],
        "no signature": lambda: good.rpartition(".")[0] + ".",
        "claims are a list": lambda: replaced(good, [1]),
        "no record": lambda: signed(header, {**claims, "jti": "0" * 24}, own_key()),
        **{f"without {name}": lambda name=name: signed(header, {k: claims[k] for k in claims if k != name}, own_key())
           for name in ("exp", "sub", "jti", "scope", "generation", "iss", "aud", "iat")},
        **{f"strange {name}": lambda name=name: signed(header, {**claims, name: {"a": 1}}, own_key())
           for name in ("exp", "sub", "jti", "scope", "generation", "iss", "aud", "iat", "node", "pools")},
        "exp is no number": lambda: signed(header, {**claims, "exp": "soon"}, own_key()),
        "exp is nan": lambda: signed(header, {**claims, "exp": float("nan")}, own_key()),
    }[kind]()  # fmt: skip


KINDS = [
    "none", "empty", "garbage", "three dots", "not ascii", "too long", "alg none", "alg None", "no alg", "hs512",
    "rs256", "wrong key", "another's secret", "another namespace's key", "another namespace", "another audience",
    "no kid", "strange kid", "kid is a list", "critical header", "by hand and unknown header",
    "altered claims", "cut signature", "no signature",
    "claims are a list", "no record", "exp is no number", "exp is nan",
    *(f"without {name}" for name in ("exp", "sub", "jti", "scope", "generation", "iss", "aud", "iat")),
    *(f"strange {name}" for name in (
        "exp", "sub", "jti", "scope", "generation", "iss", "aud", "iat", "node", "pools",
    )),
]  # fmt: skip
REASONS = {
    "none": "missing", "empty": "missing", "wrong key": "signature", "another's secret": "signature",
    "another namespace's key": "signature", "no kid": "signature", "strange kid": "signature",
    "altered claims": "signature", "cut signature": "signature", "no signature": "signature", "no record": "revoked",
    "kid is a list": None, "claims are a list": "signature", "exp is nan": None,
}  # fmt: skip
"""'malformed' where nothing is named; None: whichever it is."""


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_bad_token_is_refused_for_every_scope(tokens, kind):
    good = tokens.issue("me", list(Scope), ttl_s=60, node="n1")
    token = forged(tokens, good, kind)
    for scope in [*Scope, None]:
        assert tokens.verify(good, scope, node="n1").subject == "me"
        reason = refused(tokens, token, scope, node="n1")
        assert reason == REASONS.get(kind, "malformed") or (kind in REASONS and REASONS[kind] is None), kind


ENDS = {
    "expired": lambda tokens, clock, id: setattr(clock, "s", clock.s + 3600 + LEEWAY_S),
    "revoked": lambda tokens, clock, id: tokens.revoke(id),
    "generation": lambda tokens, clock, id: tokens.revoke_node("n1"),
    "node": lambda tokens, clock, id: None,
    "scope": lambda tokens, clock, id: None,
}


@pytest.mark.parametrize("wanted", [*Scope, None])
@pytest.mark.parametrize("held", list(Scope))
@pytest.mark.parametrize("kind", ["good", *ENDS])
def test_a_token_is_good_for_its_scopes_and_node_alone(client, clock, held, wanted, kind):
    """The matrix: what is held x what is wanted x what has happened."""
    tokens = Tokens(client, "dicast", secrets_of(SECRET), clock)
    token = tokens.issue("me", [held], ttl_s=3600, node="n1")
    if kind != "good":
        ENDS[kind](tokens, clock, tokens.list()[0].id)
    node = "n2" if kind == "node" else "n1"
    fits = wanted in (held, None)
    server = Tokens(client, "dicast", secrets_of(SECRET), clock)  # another one, which has seen none of it
    if kind in ("good", "scope") and fits:
        assert server.verify(token, wanted, node=node).scopes == {held}
    elif kind in ("good", "scope", "node") and not fits:
        assert refused(server, token, wanted, node) == "scope"
    else:
        assert refused(server, token, wanted, node) == kind


def test_what_is_made_by_hand_here_is_as_the_real_one(tokens):
    good = tokens.issue("me", [Scope.JOB_READ], ttl_s=60)
    assert tokens.verify(by_hand(*parts(good)), Scope.JOB_READ)


def test_a_token_for_heartbeats_is_good_for_its_own_node_alone(tokens):
    with pytest.raises(TokenError, match="node must be given"):
        tokens.issue("me", [Scope.NODE_HEARTBEAT], ttl_s=60)
    token = tokens.issue("me", [Scope.NODE_HEARTBEAT], ttl_s=60, node="n1")
    assert refused(tokens, token, Scope.NODE_HEARTBEAT) == "node"
    assert refused(tokens, token, Scope.NODE_HEARTBEAT, "n2") == "node"
    admin = tokens.issue("me", [Scope.NODE_ADMIN], ttl_s=60)
    assert tokens.verify(admin, Scope.NODE_ADMIN, node="n2").node == ""


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"subject": " "}, "subject must be"),
        ({"subject": "a\nb"}, "subject must be"),
        ({"subject": "x" * 201}, "subject must be"),
        ({"scopes": []}, "scopes must name"),
        ({"ttl_s": 0}, "ttl_s must be > 0"),
        ({"ttl_s": float("nan")}, "ttl_s must be > 0"),
        ({"ttl_s": 1e9}, "ttl_s must be > 0"),
        ({"node": "x" * 201}, "node must have"),
    ],
)
def test_what_cannot_be_issued(tokens, given, complaint):
    with pytest.raises(TokenError, match=complaint):
        tokens.issue(**{"subject": "me", "scopes": [Scope.JOB_READ], "ttl_s": 60, **given})
    assert tokens.list() == []


def test_a_token_may_be_good_for_a_second(tokens):
    assert tokens.issue("me", [Scope.JOB_READ], ttl_s=1)
    assert [token.subject for token in tokens.list()] == ["me"]


def test_what_a_job_may_use_is_told(tokens):
    token = tokens.issue("me", [Scope.JOB_SUBMIT], ttl_s=60, pools=["b", "a"], labels=[])
    claims = tokens.verify(token, Scope.JOB_SUBMIT)
    assert (claims.pools, claims.labels) == (frozenset("ab"), frozenset())
    assert tokens.verify(tokens.issue("me", [Scope.JOB_SUBMIT], ttl_s=60), None).pools is None


@pytest.mark.parametrize(("skew_s", "good"), [(-60, True), (60, True), (-61, False), (119.9, True), (120, False)])
def test_a_minute_of_skew_is_borne_both_ways(client, clock, skew_s, good):
    """After a fail-over it is another server's clock that counts."""
    tokens = Tokens(client, "dicast", secrets_of(SECRET), clock)
    token = tokens.issue("me", [Scope.JOB_READ], ttl_s=60)
    clock.s += skew_s
    if good:
        assert tokens.verify(token, Scope.JOB_READ)
    else:
        assert refused(tokens, token) == "expired"


def test_without_a_clock_the_stores_counts(client):
    tokens = Tokens(client, "dicast", secrets_of(SECRET))
    token = tokens.issue("me", [Scope.JOB_READ], ttl_s=60)
    assert abs(tokens.verify(token, None).expires_at - 60 - client.time()[0]) < 5


def test_rotation_overlaps_and_ends(tokens, clock):
    old = tokens.issue("me", [Scope.JOB_READ], ttl_s=10 * OVERLAP_S)
    assert tokens.rotate() == 2
    new = tokens.issue("me", [Scope.JOB_READ], ttl_s=10 * OVERLAP_S)
    assert [parts(token)[0]["kid"].partition(".")[2] for token in (old, new)] == ["1", "2"]
    assert tokens.verify(old, None)
    clock.s += OVERLAP_S + 1
    assert refused(tokens, old) == "expired"
    assert tokens.verify(new, None)
    assert {token.key: token.state for token in tokens.list()} == {1: "ended", 2: "valid"}
    assert tokens.rotate(0) == 3
    clock.s += 1
    assert refused(tokens, new) == "expired"


def test_two_rotations_at_once_make_two_keys(tokens):
    with ThreadPoolExecutor(8) as threads:
        numbers = list(threads.map(lambda _: tokens.rotate(), range(32)))
    assert sorted(numbers) == list(range(2, 34))
    assert tokens.verify(tokens.issue("me", [Scope.JOB_READ], ttl_s=60), None)


def test_an_operators_secret_is_changed_with_overlap(client, clock):
    old = Tokens(client, "dicast", secrets_of(SECRET), clock).issue("me", [Scope.JOB_READ], ttl_s=60)
    both = Tokens(client, "dicast", secrets_of(OTHER, SECRET), clock)
    new = both.issue("me", [Scope.JOB_READ], ttl_s=60)
    assert both.verify(old, None) and both.verify(new, None)
    after = Tokens(client, "dicast", secrets_of(OTHER), clock)
    assert refused(after, old) == "signature"
    assert after.verify(new, None)


def test_revoking_a_token_ends_what_was_issued_for_it(tokens):
    parent = tokens.issue("gpu", [Scope.NODE_REGISTER], ttl_s=60)
    id = tokens.verify(parent, None).id
    child = tokens.issue("gpu", [Scope.NODE_HEARTBEAT], ttl_s=60, node="n1", parent=id)
    other = tokens.issue("gpu", [Scope.NODE_HEARTBEAT], ttl_s=60, node="n2")
    assert {token.node for token in tokens.revoke(id)} == {"", "n1"}
    assert refused(tokens, child, Scope.NODE_HEARTBEAT, "n1") == "revoked"
    assert tokens.verify(other, Scope.NODE_HEARTBEAT, node="n2")
    with pytest.raises(TokenRejected, match="revoked"):
        tokens.issue("gpu", [Scope.NODE_HEARTBEAT], ttl_s=60, node="n1", parent=id)
    with pytest.raises(TokenError, match="there is no token 'x'"):
        tokens.revoke("x")


def test_a_parent_can_be_revoked_as_long_as_its_children_live(tokens, clock):
    id = tokens.verify(tokens.issue("gpu", [Scope.NODE_REGISTER], ttl_s=60), None).id
    child = tokens.issue("gpu", [Scope.NODE_HEARTBEAT], ttl_s=3600, node="n1", parent=id)
    clock.s += 1800
    tokens.issue("another", [Scope.JOB_READ], ttl_s=60)
    assert tokens.verify(child, Scope.NODE_HEARTBEAT, node="n1")
    tokens.revoke(id)
    assert refused(tokens, child, Scope.NODE_HEARTBEAT, "n1") == "revoked"


def test_all_tokens_end_at_once(tokens):
    held = [tokens.issue("me", [Scope.JOB_READ], ttl_s=60, node=node) for node in ("", "n1")]
    tokens.revoke_node("")
    assert [refused(tokens, token) for token in held] == ["generation"] * 2
    assert tokens.verify(tokens.issue("me", [Scope.JOB_READ], ttl_s=60), None).generation == 1


def test_records_of_tokens_that_are_over_go(tokens, clock, client):
    for _ in range(150):
        tokens.issue("me", [Scope.JOB_READ], ttl_s=1)
    tokens.revoke(tokens.list()[0].id)
    clock.s += 1000
    for _ in range(3):
        tokens.issue("me", [Scope.JOB_READ], ttl_s=1)
    assert len(tokens.list()) == 3
    assert {client.hlen(tokens._keys.revoked), client.zcard(tokens._keys.token_ends)} == {0, 3}


def test_a_store_that_forgot_lets_nobody_in(tokens, client):
    token = tokens.issue("me", [Scope.JOB_READ], ttl_s=60)
    client.flushdb()
    assert refused(tokens, token) == "revoked"


def test_a_token_and_its_secret_are_kept_nowhere(tokens, client):
    token = tokens.issue("me", [Scope.JOB_READ], ttl_s=60)
    tokens.rotate()
    held = " ".join(str(client.hgetall(key)) for key in client.scan_iter() if client.type(key) == "hash")
    assert token.split(".")[2] not in held and SECRET not in held
    assert SECRET not in repr(secrets_of(SECRET))


def test_no_tokens_without_a_secret(client):
    with pytest.raises(SecretMissing, match="DICAST_TOKEN_SECRET is not set"):
        Tokens(client, "dicast", ())
    with pytest.raises(ValueError, match="a secret must have >= 32 bytes, got 31"):
        secrets_of("s" * 31)


@given(st.one_of(st.text(max_size=200), st.lists(st.text(max_size=30), min_size=3, max_size=3).map(".".join)))
def test_any_text_is_refused_in_words(tokens_of_hypothesis, text):
    assert refused(tokens_of_hypothesis, text) in ("missing", "malformed", "signature")


@pytest.fixture(scope="module")
def tokens_of_hypothesis(redis_server):
    from dicast.workers.store.connection import connect

    with connect(f"{redis_server}?db=0") as client:
        yield Tokens(client, "dicast", secrets_of(SECRET), itertools.count(1).__next__)


@pytest.mark.parametrize("scope", [None, *Scope])
@pytest.mark.parametrize(
    ("bound_to", "node", "with_heartbeat", "with_another"),
    [
        ("", "", False, True),
        ("", "a", False, True),
        ("", "b", False, True),
        ("a", "", False, True),
        ("a", "a", True, True),
        ("a", "b", False, False),
        ("b", "", False, True),
        ("b", "a", False, False),
        ("b", "b", True, True),
    ],
)
def test_at_which_nodes_a_token_may_be_used(bound_to, node, with_heartbeat, with_another, scope):
    expected = with_heartbeat if scope is Scope.NODE_HEARTBEAT else with_another
    assert may_act_at(node, scope, bound_to=bound_to) is expected


def test_a_token_is_refused_at_another_node_as_the_table_says(tokens):
    for bound_to, node, scope in itertools.product(("", "a", "b"), ("", "a", "b"), Scope):
        if scope is Scope.NODE_HEARTBEAT and not bound_to:
            continue  # none is issued
        token = tokens.issue("me", [scope], ttl_s=60, node=bound_to)
        if may_act_at(node, scope, bound_to=bound_to):
            assert tokens.verify(token, scope, node=node).node == bound_to
        else:
            assert refused(tokens, token, scope, node) == "node"


def test_a_secret_is_not_shown_with_its_object():
    assert SECRET not in repr(TokenSecret(SECRET.encode(), "dicast"))
