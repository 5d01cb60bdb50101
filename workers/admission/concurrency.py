"""A node's width: how many calls one worker process may have open. It is fixed, or moved by the rules engine.

The rules see what a pool's governor cannot: this machine's CPU, and calls that fail wherever they go. Refusals by a
provider (429, 529) are the pool's business and do not count here. Fixed is the deterministic mode, for replays and
benchmarks, and where the node has room to spare.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import psutil

from dicast.workers.policy.calls import CallOutcome
from dicast.workers.policy.rules import LimitCause, Rules, RulesConfig, RulesState, RulesStatus, record

logger = logging.getLogger(__name__)

REFUSALS = (429, 529)


def of_one_core(percent: float) -> float:
    """Convert percent of all cores to percent of one core, the unit of the rules: 75 % of four cores are 300."""
    return percent * (psutil.cpu_count() or 1)


def cpu_percent() -> float:
    """Return the CPU used on this machine since the last call, in percent of one core: four busy cores are 400."""
    return of_one_core(float(psutil.cpu_percent(interval=None)))


def load_percent() -> float:
    """Return the load average of this machine over five minutes, in percent of one core."""
    return 100.0 * psutil.getloadavg()[1]


class NodeWidth:
    """The width of one process; safe to use from any thread.

    Without `rules` the width stays at `configured`. Only `sample` calls `cpu`, `load` and `clock` (s, monotonic); call
    it about once a second.
    """

    def __init__(
        self,
        configured: int,
        rules: RulesConfig | None = None,
        *,
        cpu: Callable[[], float] = cpu_percent,
        load: Callable[[], float] = load_percent,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fixed = rules is None
        self._config = rules or RulesConfig()
        self._engine = Rules(self._config, RulesState(configured, configured))
        self._cpu, self._load, self._clock = cpu, load, clock
        self._sampled_at = float("-inf")
        self._sample_percent = self._load_percent = 0.0
        self._lock = threading.Lock()

    @property
    def width(self) -> int:
        """The most calls that may be open in this process now."""
        return self._engine.state.limit

    def resize(self, configured: int) -> None:
        """Change the configured width. A reduction that the rules have made stays in force."""
        with self._lock:
            self._engine.state.configure(configured)

    def record(self, outcome: CallOutcome | None) -> None:
        """Count how a call ended. Calls that were not made, or that the provider refused, say nothing about this
        node."""
        if outcome is None or outcome.status in REFUSALS:
            return
        with self._lock:
            record(self._engine.state, not 200 <= outcome.status < 300, self._clock())

    def sample(self) -> RulesStatus:
        """Sample the CPU and apply the rules when they are due. Each adjustment is logged."""
        with self._lock:
            now = self._clock()
            if now >= self._sampled_at + self._config.every_s:
                self._sampled_at = now
                self._sample_percent, self._load_percent = self._cpu(), self._load()
                by_load = self._config.cpu_by == "load"
                self._engine.set_cpu(self._load_percent if by_load else self._sample_percent)
            before = self._engine.state.limit
            if not self._fixed:
                self._engine.advance(now)
            seconds = self._engine.state.seconds
            while seconds and seconds[0].at < now - self._config.window_s:
                seconds.popleft()
            status = replace(
                self._engine.status(now), cpu_percent=self._sample_percent, load_percent=self._load_percent
            )
        if status.current != before:
            logger.log(
                logging.WARNING if status.cause == LimitCause.CPU_HIGH and status.current < before else logging.INFO,
                "width %d -> %d, %s", before, status.current, status.reason,
                extra={"event": "width_changed", "from": before, "to": status.current, "reason": status.reason,
                       "cpu_percent": round(status.cpu_percent, 1), "load_percent": round(status.load_percent, 1),
                       "error_rate": round(status.error_rate, 4)},
            )  # fmt: skip
        return status


FAILURES = 3
"""The number of reports that must fail in a row, each for a reason that waiting cannot mend."""


class Suspension:
    """Suspends a worker that cannot report results: it takes no more units, and logs that. Safe to use from any thread.

    Each unit that it took would be called, paid for and lost, and taken from workers that could have reported it. A
    worker that an operator has cordoned takes no units either, until it is uncordoned.

    `suspended` is called when the units that wait here should go to other workers. A fault lasts until the process
    ends, a cordon until it is taken back.
    """

    def __init__(self) -> None:
        self.reason = ""
        """Why this worker takes no more units; '' while it takes some."""
        self.cordon = ""
        """The operator's order that forbids it to take units; '' if there is none."""
        self.suspended: Callable[[], None] = lambda: None
        self._failures = 0

    def may_begin(self) -> bool:
        """Return whether a call may begin now."""
        return not self.cordon

    @property
    def takes_units(self) -> bool:
        """Whether units may be taken from the broker."""
        return not self.reason and not self.cordon

    def reported(self) -> None:
        """Note that a report has arrived."""
        self._failures = 0

    def failed(self, error: Exception) -> None:
        """Note that a report could not be made, and that retrying it will not help."""
        self._failures += 1
        if self._failures < FAILURES or self.reason:
            return
        self.reason = f"no report arrives: {error}"
        logger.critical("this worker takes no more units, %s", self.reason, extra={"event": "suspended"})
        self.suspended()
