"""Publishes messages whose time has come."""

from __future__ import annotations

from functools import partial

from kombu.exceptions import KombuError
from redis.exceptions import RedisError

from dicast.app.ledger.keys import PageRef
from dicast.app.ledger.ledger import Ledger
from dicast.app.ledger.records import MessageId
from dicast.app.pipeline.job_cache import JobCache
from dicast.app.pipeline.job_faults import JobFaults
from dicast.app.pipeline.messages import Messages
from dicast.app.pipeline.unserved import MissingPools

OUTAGE_ERRORS = (RedisError, KombuError, OSError)
"""The classes to which the errors of an unavailable store or broker belong; `is_away` tells these from others."""


class DueMessages:
    """Publishes due messages from one event loop. Every worker does so several times a second."""

    def __init__(
        self, ledger: Ledger, messages: Messages, jobs: JobCache, missing_pools: MissingPools, faults: JobFaults
    ) -> None:
        self._ledger, self._messages, self._jobs = ledger, messages, jobs
        self._missing_pools, self._faults = missing_pools, faults

    async def publish(self) -> None:
        """Publish every message whose time has come. If the broker fails, this message and those after it are made due
        again soon, instead of being found as lost later."""
        taken = await self._ledger.take_due()
        for number, (ref, token) in enumerate(taken):
            try:
                await self._faults.isolate(ref.job, f"publish {ref}.{token} again", partial(self._resend, ref, token))
            except OUTAGE_ERRORS:
                await self._missing_pools.due_again(taken[number:])
                raise

    async def _resend(self, ref: PageRef, token: MessageId) -> None:
        job = await self._jobs.get(ref.job, ref.incarnation)
        if job is None:
            return
        lane = job.lanes[ref.lane]
        if self._missing_pools.serves(lane):
            await self._messages.resend(job, ref, token)
        elif why := await self._missing_pools.rejection_reason(job, lane):
            await self._missing_pools.reject(ref, [token], why)
        else:
            await self._missing_pools.due_again([(ref, token)])
