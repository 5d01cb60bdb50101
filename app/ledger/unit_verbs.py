"""The ledger's verbs for units: claim, record, defer, and due messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dicast.app.domain.item import Item
from dicast.app.ledger.keys import PageRef
from dicast.app.ledger.records import (
    Claim,
    ClaimVerdict,
    Deferral,
    Due,
    MessageId,
    Recorded,
    UnitResult,
    WriteVerdict,
)
from dicast.app.ledger.states import JobState
from dicast.app.ledger.verbs import Verbs, dumps
from dicast.workers.store.errors import NotReady

POISON_DEATHS = 3
"""A unit that this many dead workers have held is recorded as lost instead of killing another."""
DUE_TOGETHER = 500


class Unheard(NotReady):
    """The store does not hear this node, as after a network cut: others would take from it at once what it claims
    now."""

    def __str__(self) -> str:
        return f"the store does not hear {self.args[0]} yet"


class UnitVerbs(Verbs):
    """The verbs for a unit from its claim to its result, as often as it takes."""

    async def claim(
        self, ref: PageRef, token: MessageId, positions: Sequence[int], item: int, attempt: str = "",
        *, again_ms: int | None = None, early: bool = False,
    ) -> tuple[JobState | None, Item | None, list[Claim]]:  # fmt: skip
        """Claim units of one item for the message `token`; (None, None, []) if the page no longer exists.

        The call is to be repeated with the same `attempt` until there is an answer. If others own one of the units, the
        message comes again after `again_ms`, if given. With `early`, units that wait for their time are claimed too.
        Raises `Unheard`.
        """
        k = self.keys
        state, text, *claims = await self._scripts["claim"](
            keys=[k.job(ref.job), k.page(ref), self._due, self._clock, k.assignments(ref), self._assigned, self._epoch],
            args=[
                "",
                self._node,
                self._beacons,
                (name := str(token)),
                f"{ref}|{name}",
                POISON_DEATHS,
                self._claim_ms,
                f"i:{item}",
                self._calls_max,
                attempt or self.attempt(),
                "" if again_ms is None else again_ms,
                int(early),
                *positions,
            ],
        )
        if not state:
            return None, None, []
        if state == "unheard":
            raise Unheard(self._node)
        claimed_item = Item.model_validate_json(text) if text else None
        return (
            JobState(state),
            claimed_item,
            [Claim(p, ClaimVerdict(c[0]), *map(int, c[1:])) for p, c in zip(positions, claims, strict=True)],
        )

    async def may_call(self, ref: PageRef, positions: Sequence[int]) -> bool:
        """Return whether any of these units may still be called: neither they nor their job are revoked or
        cancelled."""
        state = await self._redis.hget(self.keys.job(ref.job), "state")
        revoked = await self._redis.hget(self.keys.page(ref), "revoked") or ""
        return bool(state == JobState.RUNNING and any(f",{position}," not in revoked for position in positions))

    async def assign(self, ref: PageRef, pools: Mapping[MessageId, str]) -> None:
        """Count messages for the pools chosen for them, until they are claimed."""
        k = self.keys
        await self._scripts["assign"](
            keys=[k.page(ref), k.assignments(ref), self._assigned],
            args=[part for token, pool in pools.items() for part in (str(token), pool)],
        )

    async def record(self, ref: PageRef, counters: Mapping[str, int], results: Sequence[UnitResult]) -> Recorded:
        """Write results, each at most once; `counters` are added if any of these claims had not reported its end
        before."""
        k = self.keys
        remaining, plan, gather, news, *written = await self._scripts["record"](
            keys=[k.job(ref.job), k.page(ref), self._epoch, self._due, self._clock, k.board(ref.job)],
            args=[
                "",
                ref.lane,
                ref.number,
                dumps(counters),
                dumps([[p, f, r.decode(), int(s), *scoreboard] for p, f, r, s, *scoreboard in results]),
                f"{ref}|",
                self._node,
                self._beacons,
            ],
        )
        return Recorded(int(remaining), bool(plan), bool(gather), [WriteVerdict(w) for w in written], bool(news))

    async def defer(
        self, ref: PageRef, counters: Mapping[str, int], deferrals: Sequence[Deferral], due: Sequence[Due]
    ) -> list[WriteVerdict]:
        """Give units up until their messages come (again); `counters` are as in `record`."""
        k = self.keys
        _, *written = await self._scripts["defer"](
            keys=[k.job(ref.job), k.page(ref), self._due, self._clock, self._epoch],
            args=[
                "",
                ref.lane,
                ref.number,
                f"{ref}|",
                dumps(counters),
                dumps(deferrals),
                dumps([[str(d.token), d.delay_ms, int(d.wait)] for d in due]),
            ],
        )
        return [WriteVerdict(w) for w in written]

    async def take_due(self) -> list[tuple[PageRef, MessageId]]:
        """Return the messages to publish now. Each stays due, a minute later, until somebody claims it. After an error,
        the next call returns what was taken by the one whose reply was lost."""
        k = self.keys
        if self._taking is None:
            self._taking = next(self._numbers)
        members = await self._scripts["take_due"](
            keys=[self._due, self._clock, k.taken(self._node)],
            args=["", DUE_TOGETHER, self.intervals.unclaimed_ms, k.base.at("job") + ":", self._taking],
        )
        self._taking = None
        taken = []
        for member in members:
            ref, token = member.rsplit("|", 1)
            taken.append((PageRef.parse(ref), MessageId.parse(token)))
        return taken

    async def list_claims(self, ref: PageRef) -> dict[int, int]:
        """Return the units of a page that this node has claimed and that have no result: position -> fence of the
        claim."""
        flat = iter(await self._scripts["list_claims"](keys=[self.keys.page(ref)], args=[self._node]))
        return {int(position): int(fence) for position, fence in zip(flat, flat, strict=True)}

    async def release_claims(self, ref: PageRef, claims: Mapping[int, int]) -> int:
        """Make units due that this node no longer works on, whatever the store says, and whose outcome is lost. Return
        how many; units with a result or a newer claim stay as they are."""
        k, pairs = self.keys, [number for claim in claims.items() for number in claim]
        keys = [k.page(ref), self._due, self._clock]
        return int(await self._scripts["release_claims"](keys=keys, args=["", f"{ref}|", self._node, *pairs]))
