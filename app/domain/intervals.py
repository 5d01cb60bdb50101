"""How long the pipeline waits before it takes silence for loss, and how often it checks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Intervals:
    """The pipeline's intervals. All workers of an installation must use the same ones, because they act on each other's
    records.

    Intervals in milliseconds run by the lease clock, those in seconds by the clock of an event loop.
    """

    unclaimed_ms: int = 60_000
    """A published unit that nobody has claimed for this long is published again."""
    page_still_ms: int = 30_000
    """A page without activity for this long is checked. The check does not resend what a living worker has in hand, so
    pages with slow calls are only checked more often than needed."""
    unattended_ms: int = 15_000
    """A job that was submitted this long ago and has not started has lost its message; a running job is planned again
    this often, since whoever was asked to plan may have died."""
    look_soon_ms: int = 2_000
    """After a death or a broken connection, all pages and jobs are checked after this long, when messages that were put
    back have had time to be claimed."""
    owner_silent_ms: int = 16_000
    """A message that came back, and whose units another worker owns, is due again after this long. By then an owner
    that has died is silent (see `NodeIntervals.beacon_s`), and its work may be claimed."""
    try_every_ms: int = 10_000
    """Failures of a job that follow each other faster than this count as one try."""
    disk_ms: int = 3_600_000
    """A job whose pages no disk takes for this long is given up."""
    pool_seen_ms: int = 15_000
    """A pool is known to a living worker if it was announced at most this long ago."""
    pool_gone_ms: int = 120_000
    """A pool that no worker has announced for this long has left the configuration."""
    due_again_ms: int = 1000
    """A message that was due and could not be sent by this worker is due again after this long."""
    beat_silent_ms: int = 5000
    """After this long without a tick, a worker takes over from the beat."""
    look_again_ms: int = 1000
    """A job's deadlines are checked again after this long, unless the check itself finds that later will do."""
    due_every_s: float = 0.2
    """How often each worker publishes what is due. Its other housekeeping runs once a second."""
    tell_pools_every_s: float = 5.0
    """How often a worker announces the pools it knows: a few times per `pool_seen_ms`."""
    elsewhere_s: float = 1.0
    """Planning that this worker leaves to another is requested again after this long."""
    stopping_s: float = 2.0
    """How long a stopping worker waits for a claim that is under way."""


STANDARD = Intervals()
