"""Claims a message's units. A claim records the intent to pay for their call."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from dicast.app.domain.item import Item
from dicast.app.ledger.keys import PageRef
from dicast.app.ledger.ledger import Ledger
from dicast.app.ledger.records import Claim, ClaimVerdict, Deferral, Due, MessageId
from dicast.app.ledger.states import JobState
from dicast.app.pipeline.dead_nodes import DeadNodes
from dicast.app.pipeline.record import Recorder, retry_until_available

ClaimReply = tuple[JobState | None, Item | None, list[Claim]]


class Claimer:
    """Claims units on one event loop."""

    def __init__(self, ledger: Ledger, recorder: Recorder, dead_nodes: DeadNodes) -> None:
        self._ledger, self._recorder, self._dead_nodes = ledger, recorder, dead_nodes

    async def claim(
        self, ref: PageRef, token: MessageId, positions: Sequence[int], item: int, again_ms: int | None = None,
        *, early: bool = False,
    ) -> ClaimReply:  # fmt: skip
        """Claim units as `Ledger.claim` does, waiting for the store as long as necessary. If the caller is cancelled
        meanwhile, the claim is given back."""
        attempt = self._ledger.attempt()
        claim = partial(self._ledger.claim, ref, token, positions, item, attempt, again_ms=again_ms, early=early)
        claiming = asyncio.ensure_future(retry_until_available(claim))
        try:
            return await asyncio.shield(claiming)
        except asyncio.CancelledError:
            await asyncio.shield(self._hand_back(ref, token, claiming))
            raise

    async def claim_from_dead_owner(
        self, ref: PageRef, token: MessageId, positions: Sequence[int], item: int
    ) -> ClaimReply:
        """Look for dead nodes, then claim units that another node owns. A broker notices a death sooner than the nodes
        do and redelivers the message before the unit is free. If the owner seems to be alive, the message comes again
        when that node would count as silent."""
        await retry_until_available(self._dead_nodes.deregister)
        return await self.claim(ref, token, positions, item, again_ms=self._ledger.intervals.owner_silent_ms)

    async def _hand_back(self, ref: PageRef, token: MessageId, claiming: asyncio.Future[ClaimReply]) -> None:
        """Give a claim back that the store may still execute: other workers would count it as a paid call."""
        done, _ = await asyncio.wait({claiming}, timeout=self._ledger.intervals.stopping_s)
        if not done or claiming.exception() is not None:
            claiming.cancel()
            return
        _, _, claims = claiming.result()
        deferrals = [
            Deferral(c.position, c.fence, c.attempts, c.requeues, unpaid=1)
            for c in claims
            if c.verdict is ClaimVerdict.RUN
        ]
        if deferrals:
            await self._recorder.defer(ref, {}, deferrals, [Due(token, 0)])
