"""How long the pipeline waits before it takes silence for loss, and how often it looks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Intervals:
    """One installation's workers use the same ones: what one writes into the ledger, another goes by. Those in
    milliseconds run by the lease clock, those in seconds by the clock of an event loop."""

    unclaimed_ms: int = 60_000
    """A published unit that nobody claimed for so long is published again."""
    page_still_ms: int = 30_000
    """A page in which nothing happens for so long is looked after. That sends nothing again which a living worker has
    in hand, so a page whose calls take their time is only looked at more often than it need be."""
    unattended_ms: int = 15_000
    """A job that was submitted so long ago and not started has lost its message; one that runs is planned again as
    often, for whoever was asked to may have died."""
    look_soon_ms: int = 2_000
    """After a death, or a broken connection, all pages and jobs are looked at so soon: when messages that were put back
    have had the time to be claimed."""
    owner_silent_ms: int = 16_000
    """A message that came back, and whose units another worker owns, comes again so much later. By then an owner that
    has died is silent (see `NodeIntervals.beacon_s`), and its work may be claimed."""
    try_every_ms: int = 10_000
    """Failures of a job that come sooner one after the other are one try."""
    pool_seen_ms: int = 15_000
    """A pool that a living worker knows was announced no longer ago."""
    pool_gone_ms: int = 120_000
    """A pool that no worker has announced for so long has left the configuration."""
    due_again_ms: int = 1000
    """A message that was due and cannot be sent from here is due again so much later."""
    beat_silent_ms: int = 5000
    """After so long without a tick, a worker takes the beat's place."""
    look_again_ms: int = 1000
    """A job's deadlines are looked at again so soon, unless the look itself finds that later will do."""
    due_every_s: float = 0.2
    """How often each worker publishes what is due. Its other housekeeping is done once a second."""
    tell_pools_every_s: float = 5.0
    """How often a worker tells which pools it knows: a few times in `pool_seen_ms`."""
    elsewhere_s: float = 1.0
    """Planning that this worker leaves to another is asked for again after so long."""
    stopping_s: float = 2.0
    """A worker that stops waits so long for a claim that is under way."""


STANDARD = Intervals()
