"""The governor's records in the store: the input of decisions, and decisions committed by compare-and-set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import orjson
from pydantic import TypeAdapter

from dicast.workers.policy.calls import Cost, Done, Event, Sent
from dicast.workers.policy.headers import NO_READINGS, Readings
from dicast.workers.policy.parameters import Parameters
from dicast.workers.store.connection import AsyncStoreClient
from dicast.workers.store.keys import Keys, decode
from dicast.workers.store.scripts import script_text

_HERE = Path(__file__).parent
_PARAMETERS = TypeAdapter(Parameters)

ENTRIES_AT_ONCE = 5000
CHANGES_KEPT = 200


@dataclass(frozen=True, slots=True)
class StoredState:
    """The state that a decision leaves for the next leader: the policy's state (JSON), the operator's limit and the
    jobs' cap that it followed, and the resulting ceiling."""

    limit_wished: int | None
    cap: int
    ceiling: int
    policy: bytes

    def to_json(self) -> bytes:
        facts: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)}
        return orjson.dumps({**facts, "policy": orjson.Fragment(self.policy)})

    @classmethod
    def from_json(cls, raw: str) -> StoredState:
        document = orjson.loads(raw)
        return cls(document["limit_wished"], document["cap"], document["ceiling"], orjson.dumps(document["policy"]))


@dataclass(frozen=True, slots=True)
class Brief:
    """The input of one decision.

    `state` is None if the version that the caller has is still in force. `cap` is the largest frozen limit of all
    running jobs, 0 if none runs. `override` and `override_for_all` are the operator's. `refusals` is the number that
    the enforcer has counted, and `events` are in order.
    """

    now: float
    version: int
    state: StoredState | None
    parameters: Parameters | None
    cap: int
    override: dict[str, Any]
    override_for_all: dict[str, Any]
    cursor: str
    refusals: int
    events: list[Event]


@dataclass(frozen=True, slots=True)
class Decision:
    """A decision to be put into force.

    Without a `state` the stored one stays in place, together with the events since then. `changes` are lines for the
    history. `wake` says to notify those who wait that more may be granted now.
    """

    parameters: Parameters
    next_at: float | None
    state: StoredState | None
    cursor: str
    changes: Sequence[dict[str, Any]] = ()
    wake: bool = False


class GovernorStore:
    """The store's side of deciding, for one event loop."""

    def __init__(self, client: AsyncStoreClient, keys: Keys) -> None:
        self._redis, self._keys = client, keys
        self._read = client.register_script(script_text(_HERE / "governor_read.lua"))
        self._enforcement_script = client.register_script(script_text(_HERE / "governor_look.lua"))
        self._commit = client.register_script(script_text(_HERE / "governor_commit.lua"))
        self._override = client.register_script(script_text(_HERE / "governor_override.lua"))

    async def read(self, pool: str, known_version: int = -1, cursor: str = "", now_ms: int | None = None) -> Brief:
        """Read everything that a decision needs, in one step. A caller that has decided version
        `known_version`, and has read up to `cursor`, gets only what is new."""
        k = self._keys
        now, version, state, parameters, cap, override, override_for_all, cursor, refusals, entries = await self._read(
            keys=[k.clock, k.governor(pool), k.events(pool), k.job_limits, k.overrides],
            args=["" if now_ms is None else now_ms, pool, known_version, cursor, ENTRIES_AT_ONCE],
        )
        return Brief(
            now=now / 1000.0,
            version=int(version),
            state=StoredState.from_json(state) if state else None,
            parameters=read_parameters(parameters),
            cap=cap,
            override=orjson.loads(override or "{}"),
            override_for_all=orjson.loads(override_for_all or "{}"),
            cursor=cursor,
            refusals=refusals,
            events=[event for entry in entries for event in read_events(entry)],
        )

    async def commit(self, pool: str, expected: int, decision: Decision) -> bool:
        """Put a decision into force; False if another one was made since `expected` was read."""
        k = self._keys
        return bool(
            await self._commit(
                keys=[k.governor(pool), k.events(pool), k.changes(pool)],
                args=[
                    expected,
                    decision.parameters.version,
                    orjson.dumps(decision.parameters),
                    "" if decision.next_at is None else repr(decision.next_at),
                    decision.state.to_json() if decision.state else b"",
                    decision.cursor,
                    CHANGES_KEPT,
                    k.freed if decision.wake else "",
                    pool,
                    *map(orjson.dumps, decision.changes),
                ],
            )
        )

    async def parameters(self, pool: str) -> Parameters | None:
        """Return the parameters in force; None before the first decision."""
        return read_parameters(await self._redis.hget(self._keys.governor(pool), "parameters"))

    async def revise_override(self, pool: str, revise: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        """Replace a pool's live overrides ('' for those of all pools) by what `revise` makes of them; {} removes them.

        Concurrent changes of others are kept: `revise` is called again then. If it raises, nothing is changed.
        """
        while True:
            before = await self._redis.hget(self._keys.overrides, pool) or ""
            override = revise(orjson.loads(before or "{}"))
            if await self._override(
                keys=[self._keys.overrides], args=[pool, before, orjson.dumps(override) if override else ""]
            ):
                return

    async def enforcement(self, pool: str) -> dict[str, Any]:
        """Return what the scripts remember of a pool: fills, counters, standings of the projects; {} if nothing yet."""
        state: dict[str, Any] = orjson.loads(
            await self._enforcement_script(keys=[self._keys.governor(pool), self._keys.open], args=[pool]) or "{}"
        )
        return state

    async def cpu_percent(self, *, by_load: bool = False) -> float | None:
        """Return the CPU use of the living nodes' machines, or their load over five minutes, in percent of one core,
        averaged over the nodes; None if no node reports it."""
        field = "load_percent" if by_load else "cpu_percent"
        nodes = await self._redis.hkeys(self._keys.nodes)
        beacons = await self._redis.mget([self._keys.node(node) for node in nodes]) if nodes else []
        reported = [orjson.loads(beacon).get(field) for beacon in beacons if beacon]
        percentages = [percent for percent in reported if percent is not None]
        return sum(percentages) / len(percentages) if percentages else None

    async def pools(self) -> Sequence[str]:
        """Return the pools for which leases have been requested or decisions made."""
        prefix = self._keys.governor("")
        found = self._redis.scan_iter(match=_literal(prefix) + "*")
        return sorted([decode(key.removeprefix(prefix)) async for key in found])


def read_parameters(text: str | None) -> Parameters | None:
    """Parse the parameters that a decision left; None before the first decision."""
    return _PARAMETERS.validate_json(text) if text else None


def read_events(entry: str) -> list[Event]:
    """Parse one stream entry: a JSON array of events as `admit.lua` and `outcome.lua` write them."""
    return [_event(*fields) for fields in orjson.loads(entry)]


def _event(kind: str, call: str, at: float, *rest: Any) -> Event:
    if kind == "sent":
        open_before, limit, held_by, probe = rest
        return Sent(call, at, open_before, limit, held_by, probe)
    sent_at, open_before, status, model, spent, estimated_tokens, used, readings, reporter, probe = rest
    return Done(
        call=call,
        at=at,
        sent_at=sent_at,
        open_before=open_before,
        status=status,
        model=model,
        spent=Cost(*spent),
        estimated_tokens=estimated_tokens,
        used=Cost(*used),
        readings=Readings.from_list(orjson.loads(readings)) if readings else NO_READINGS,
        reporter=reporter,
        probe=probe,
    )


def _literal(text: str) -> str:
    """Return a glob pattern that matches only `text`."""
    return "".join(f"\\{c}" if c in "*?[]\\^-" else c for c in text)
