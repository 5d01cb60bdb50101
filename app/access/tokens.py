"""Tokens: signed, recorded, and looked up in the store at every use, so that every server notices a revocation at once.

A token is a JWT, always with HS256. Its key is derived from the installation's secret and a number in the store; `kid`
names both. A token is valid if its signature is, its record exists and is not revoked, its generation is the present
one, and it has not expired. All times are the store's, so that no server's clock matters; after a fail-over it is
another server's, hence `LEEWAY_S` both ways. If the store has lost a record, the token is refused.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson
from joserfc import jwt
from joserfc.errors import BadSignatureError, InvalidKeyIdError, JoseError
from joserfc.jwk import OctKey
from joserfc.jws import JWSRegistry
from pydantic import TypeAdapter, ValidationError

from dicast.app.access.keys import AccessKeys, SecretMissing, TokenSecret
from dicast.app.access.scopes import Claims, Scope, TokenRejected
from dicast.errors import DicastError
from dicast.workers.store.connection import StoreClient
from dicast.workers.store.scripts import script_text

ALGORITHM = "HS256"
LEEWAY_S = 60.0
TTL_MAX_S = 366 * 86_400.0
OVERLAP_S = 86_400.0
"""How long the former key is accepted after a rotation, unless the operator says otherwise."""
TOKEN_BYTES = 4096
SUBJECT_CHARS = 200
DROPPED_MAX = 100
"""The most records of expired tokens that are deleted when one is issued."""
_HERE = Path(__file__).parent


class TokenError(DicastError, ValueError):
    """A token cannot be issued, or is not known."""

    problem = "request-refused"


@dataclass(frozen=True, slots=True)
class IssuedToken:
    """The record of a token; the token itself is not stored."""

    id: str
    subject: str
    scopes: tuple[str, ...]
    generation: int
    issued_at: float
    expires_at: float
    key: int
    """Number of the key that signed it."""
    node: str = ""
    parent: str = ""
    """The token that it was issued for: the one with which its node registered."""
    pools: tuple[str, ...] | None = None
    labels: tuple[str, ...] | None = None
    state: str = "valid"
    """valid, expired, revoked, or ended (by its generation, or its key's)."""


_RECORD = TypeAdapter(IssuedToken)


@dataclass(frozen=True, slots=True)
class _Payload:
    """The claims as they are encoded in a token."""

    iss: str
    aud: str
    sub: str
    jti: str
    exp: float
    iat: float
    scope: str
    generation: int
    node: str = ""
    pools: tuple[str, ...] | None = None
    labels: tuple[str, ...] | None = None


_PAYLOAD = TypeAdapter(_Payload)


class Tokens:
    """The tokens of one installation, the same for every server. `all_secrets`: the first signs, the others are
    accepted. `clock` gives unix s instead of the store's. Raises `SecretMissing` if there is no secret."""

    def __init__(
        self, client: StoreClient, namespace: str, all_secrets: Iterable[TokenSecret],
        clock: Callable[[], float] | None = None,
    ) -> None:  # fmt: skip
        self._redis, self._keys, self._namespace, self._clock = client, AccessKeys(namespace), namespace, clock
        self._secrets = {secret.fingerprint: secret for secret in all_secrets}
        if not self._secrets:
            raise SecretMissing
        self._keep = client.register_script(script_text(_HERE / "keep_token.lua"))
        self._rotate = client.register_script(script_text(_HERE / "rotate.lua"))

    def issue(
        self, subject: str, scopes: Iterable[Scope], *, ttl_s: float, node: str = "",
        pools: Iterable[str] | None = None, labels: Iterable[str] | None = None, parent: str = "",
    ) -> str:  # fmt: skip
        """Issue a new token, which is recorded before it is returned. Raises `TokenError` for one that could never be
        used, and `TokenRejected` if the `parent` that it is issued for is revoked."""
        sorted_scopes = tuple(sorted({Scope(scope) for scope in scopes}))
        _check(subject, sorted_scopes, ttl_s, node)
        now, number, generation = self._present(node)
        record = IssuedToken(
            id=secrets.token_hex(12), subject=subject, scopes=sorted_scopes, generation=generation, issued_at=now,
            expires_at=now + ttl_s, key=number, node=node, parent=parent, pools=_sorted(pools), labels=_sorted(labels),
        )  # fmt: skip
        k, keep_until = self._keys, record.expires_at + 2 * LEEWAY_S
        is_recorded = self._keep(
            keys=[k.tokens, k.token_ends, k.revoked],
            args=[record.id, orjson.dumps(_stored(record)), now, keep_until, parent, DROPPED_MAX],
        )
        if not is_recorded:
            raise TokenRejected("revoked", subject=subject, id=parent)
        return self._signed(record)

    def verify(self, token: str | None, scope: Scope | None, *, node: str = "") -> Claims:
        """Return the claims of a token. Raises `TokenRejected`. With `scope` None, any scope will do. A token bound to
        a node is refused for another `node`; one for heartbeats is valid for its own node only."""
        payload, number = self._read(token)
        now, current, until, token_state = self._look_up(payload, number)
        about = {"subject": payload.sub, "id": payload.jti}
        if payload.iss != self._namespace or payload.aud != self._namespace:
            raise TokenRejected("malformed", **about)
        if number != current and now > until:
            raise TokenRejected("expired", **about)
        if not payload.iat - LEEWAY_S <= now < payload.exp + LEEWAY_S:
            raise TokenRejected("expired", **about)
        recorded, revoked, generation = token_state
        if not recorded or revoked:
            raise TokenRejected("revoked", **about)
        if payload.generation != generation:
            raise TokenRejected("generation", **about)
        scopes = frozenset(Scope(word) for word in payload.scope.split() if word in _SCOPES)
        if scope is not None and scope not in scopes:
            raise TokenRejected("scope", **about, needed=scope)
        if not may_act_at(node, scope, bound_to=payload.node):
            raise TokenRejected("node", **about)
        return Claims(
            payload.sub, payload.jti, scopes, payload.generation, payload.exp, payload.node,
            _frozen(payload.pools), _frozen(payload.labels),
        )  # fmt: skip

    def list(self) -> list[IssuedToken]:
        """Return all tokens that have not long expired, newest first, with their states."""
        k, pipe = self._keys, self._redis.pipeline()
        pipe.hvals(k.tokens).hgetall(k.revoked).hgetall(k.signing).hgetall(k.generations)
        records, revoked, signing, generations = pipe.execute()
        now, current = self.now(), int(signing.get("current", 1))

        def state(token: IssuedToken) -> str:
            if token.id in revoked:
                return "revoked"
            if now >= token.expires_at + LEEWAY_S:
                return "expired"
            accepted = token.key == current or now <= float(signing.get(str(token.key), 0))
            present = int(generations.get("", 0)) + (int(generations.get(token.node, 0)) if token.node else 0)
            return "valid" if accepted and token.generation == present else "ended"

        recorded = [_RECORD.validate_json(record) for record in records]
        with_states = [IssuedToken(**{**_fields(token), "state": state(token)}) for token in recorded]
        return sorted(with_states, key=lambda token: (-token.issued_at, token.id))

    def parent(self, id: str) -> str:
        """Return the token for which this one was issued; '' if there is none. Raises `TokenRejected` for an unknown
        one."""
        record = self._redis.hget(self._keys.tokens, id)
        if not record:
            raise TokenRejected("revoked", id=id)
        return _RECORD.validate_json(record).parent

    def revoke(self, id: str) -> Sequence[IssuedToken]:
        """Revoke a token, and all that were issued for it; returns them. Raises `TokenError` if it is not known."""
        family = [token for token in self.list() if id in (token.id, token.parent)]
        if not any(token.id == id for token in family):
            raise TokenError(f"there is no token {id!r}; `dicast token list` shows all")
        self._redis.hset(self._keys.revoked, id, self.now())  # from here on none is issued for it
        family = [token for token in self.list() if id in (token.id, token.parent)]
        self._redis.hset(self._keys.revoked, mapping=dict.fromkeys((token.id for token in family), self.now()))
        return family

    def revoke_node(self, node: str) -> None:
        """End all tokens that are bound to this node; '' ends every token of the installation."""
        self._redis.hincrby(self._keys.generations, node, 1)

    def generation(self, node: str = "") -> int:
        """Return the generation that tokens of this node must have. It never decreases."""
        return self._present(node)[2]

    def rotate(self, overlap_s: float = OVERLAP_S) -> int:
        """Sign with a new key from now on; returns its number. The former key is accepted for `overlap_s` more."""
        now = self.now()
        return int(self._rotate(keys=[self._keys.signing], args=[now, now + max(0.0, overlap_s)]))

    def now(self) -> float:
        """Return the time by the clock of all tokens, unix s."""
        if self._clock is not None:
            return self._clock()
        return _unix(self._redis.time())

    def _present(self, node: str) -> tuple[float, int, int]:
        """Return the time, the number of the signing key, and the generation of a node's tokens."""
        k, pipe = self._keys, self._redis.pipeline()
        pipe.time().hget(k.signing, "current").hmget(k.generations, "", *([node] if node else []))
        time, number, generations = pipe.execute()
        now = self._clock() if self._clock is not None else _unix(time)
        return now, int(number or 1), sum(int(generation or 0) for generation in generations)

    def _look_up(self, payload: _Payload, number: int) -> tuple[float, int, float, tuple[bool, bool, int]]:
        """Return, in one round trip: the time; the number of the signing key; until when this token's key is accepted;
        and whether the token is recorded, whether it is revoked, and the present generation."""
        k, pipe = self._keys, self._redis.pipeline()
        pipe.time().hmget(k.signing, "current", str(number)).hexists(k.tokens, payload.jti)
        pipe.hexists(k.revoked, payload.jti)
        pipe.hmget(k.generations, "", *([payload.node] if payload.node else []))
        time, (current, until), recorded, revoked, generations = pipe.execute()
        now = self._clock() if self._clock is not None else _unix(time)
        present = sum(int(generation or 0) for generation in generations)
        return now, int(current or 1), float(until or 0), (bool(recorded), bool(revoked), present)

    def _signed(self, record: IssuedToken) -> str:
        secret = next(iter(self._secrets.values()))
        claims: dict[str, Any] = {
            "iss": self._namespace, "aud": self._namespace, "sub": record.subject, "jti": record.id,
            "iat": record.issued_at, "exp": record.expires_at, "scope": " ".join(record.scopes),
            "generation": record.generation, "node": record.node, "pools": record.pools, "labels": record.labels,
        }  # fmt: skip
        header = {"alg": ALGORITHM, "kid": f"{secret.fingerprint}.{record.key}"}
        return jwt.encode(header, claims, _key(secret, record.key), algorithms=[ALGORITHM])

    def _read(self, token: str | None) -> tuple[_Payload, int]:
        """Return a token's claims and the number of its key, with its signature verified; the store is not queried."""
        if not token:
            raise TokenRejected("missing")
        if len(token) > TOKEN_BYTES or not token.isascii():
            raise TokenRejected("malformed")
        numbers: list[int] = []

        def key(signed: Any) -> OctKey:
            fingerprint, _, digits = str(signed.headers().get("kid", "")).partition(".")
            if fingerprint not in self._secrets or not digits.isdecimal() or len(digits) > 9:
                raise InvalidKeyIdError
            numbers.append(int(digits))
            return _key(self._secrets[fingerprint], numbers[0])

        try:
            claims = jwt.decode(token, key, algorithms=[ALGORITHM], registry=_REGISTRY).claims
            return _PAYLOAD.validate_python(claims), numbers[0]
        except (BadSignatureError, InvalidKeyIdError):
            raise TokenRejected("signature") from None
        except (JoseError, ValidationError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise TokenRejected("malformed") from None


def may_act_at(node: str, scope: Scope | None, *, bound_to: str) -> bool:
    """Return whether a token that is bound to one node, or to none (''), may be used at `node` with this scope; '' is a
    request that concerns no node.

        scope        bound to   at ''   at a   at b
        heartbeat    none       no      no     no
        heartbeat    a          no      yes    no
        any other    none       yes     yes    yes
        any other    a          yes     yes    no
    """
    if scope is Scope.NODE_HEARTBEAT:
        return bound_to != "" and node == bound_to
    if bound_to == "" or node == "":
        return True
    return node == bound_to


_REGISTRY = JWSRegistry(algorithms=[ALGORITHM], strict_check_header=True)
_SCOPES = frozenset(Scope)


def _key(secret: TokenSecret, number: int) -> OctKey:
    return OctKey.import_key(secret.key(f"token key {number}"))


def _check(subject: str, scopes: tuple[Scope, ...], ttl_s: float, node: str) -> None:
    if not subject.strip() or len(subject) > SUBJECT_CHARS or not subject.isprintable():
        raise TokenError(f"subject must be 1 to {SUBJECT_CHARS} printable characters, got {subject[:40]!r}")
    if not scopes:
        raise TokenError("scopes must name at least one of " + ", ".join(Scope))
    if not 0 < ttl_s <= TTL_MAX_S:
        raise TokenError(f"ttl_s must be > 0 and <= {TTL_MAX_S:.0f}, got {ttl_s}")
    if Scope.NODE_HEARTBEAT in scopes and not node:
        raise TokenError(f"node must be given with the scope {Scope.NODE_HEARTBEAT}, got ''")
    if len(node) > SUBJECT_CHARS:
        raise TokenError(f"node must have <= {SUBJECT_CHARS} characters, got {len(node)}")


def _stored(token: IssuedToken) -> dict[str, Any]:
    return {name: value for name, value in asdict(token).items() if name != "state"}


def _fields(token: IssuedToken) -> dict[str, Any]:
    return asdict(token)


def _sorted(words: Iterable[str] | None) -> tuple[str, ...] | None:
    return None if words is None else tuple(sorted(set(words)))


def _frozen(words: tuple[str, ...] | None) -> frozenset[str] | None:
    return None if words is None else frozenset(words)


def _unix(time: tuple[int, int]) -> float:
    return time[0] + time[1] / 1e6
