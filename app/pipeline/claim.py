"""The claim of a message's units, which is the intent to pay for their call."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from dicast.app.domain.item import Item
from dicast.app.ledger.keys import PageRef
from dicast.app.ledger.ledger import Ledger
from dicast.app.ledger.records import Claim, ClaimAnswer, Deferral, Due, MessageId
from dicast.app.ledger.states import JobState
from dicast.app.pipeline.dead_nodes import DeadNodes
from dicast.app.pipeline.record import Recorder, retry_until_available

Answer = tuple[JobState | None, Item | None, list[Claim]]


class Claimer:
    """Claims on one event loop."""

    def __init__(self, ledger: Ledger, recorder: Recorder, dead_nodes: DeadNodes) -> None:
        self._ledger, self._recorder, self._dead_nodes = ledger, recorder, dead_nodes

    async def claim(
        self, ref: PageRef, token: MessageId, positions: Sequence[int], item: int, again_ms: int | None = None,
        *, early: bool = False,
    ) -> Answer:  # fmt: skip
        """As `Ledger.claim`, however long that takes. A caller that is cancelled meanwhile has claimed nothing."""
        attempt = self._ledger.attempt()
        claim = partial(self._ledger.claim, ref, token, positions, item, attempt, again_ms=again_ms, early=early)
        claiming = asyncio.ensure_future(retry_until_available(claim))
        try:
            return await asyncio.shield(claiming)
        except asyncio.CancelledError:
            await asyncio.shield(self._hand_back(ref, token, claiming))
            raise

    async def claim_of_the_dead(self, ref: PageRef, token: MessageId, positions: Sequence[int], item: int) -> Answer:
        """Claim units that somebody owns, once those who may have died of them are looked for: a broker notices a death
        sooner than the nodes do, and its message is here before the unit is free. If their owner seems to live, the
        message comes again when that one would be silent."""
        await retry_until_available(self._dead_nodes.deregister)
        return await self.claim(ref, token, positions, item, again_ms=self._ledger.intervals.owner_silent_ms)

    async def _hand_back(self, ref: PageRef, token: MessageId, claiming: asyncio.Future[Answer]) -> None:
        """The claim may be obeyed yet, and others would take it for a call that was paid."""
        done, _ = await asyncio.wait({claiming}, timeout=self._ledger.intervals.stopping_s)
        if not done or claiming.exception() is not None:
            claiming.cancel()
            return
        _, _, claims = claiming.result()
        deferrals = [
            Deferral(c.position, c.fence, c.attempts, c.requeues, unpaid=1)
            for c in claims
            if c.verdict is ClaimAnswer.RUN
        ]
        if deferrals:
            await self._recorder.defer(ref, {}, deferrals, [Due(token, 0)])
