"""The ledger's keys. Job ids are of a closed alphabet, lanes and pages are numbers, so members split on '|' safely."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Self

from workers.store.keys import Keys


class PageRef(NamedTuple):
    """Names one page of one lane of one job."""

    job: str
    lane: int
    page: int

    def __str__(self) -> str:
        return f"{self.job}|{self.lane}|{self.page}"

    @classmethod
    def parse(cls, text: str) -> Self:
        job, lane, page = text.split("|")
        return cls(job, int(lane), int(page))


@dataclass(frozen=True, slots=True)
class LedgerKeys:
    """Where the ledger keeps what."""

    base: Keys

    def job(self, job: str) -> str:
        """hash: spec, digest, state, limit, counters and, for each lane, cursor, next page and open units"""
        return self.base.at("job", job)

    def items(self, job: str) -> str:
        """hash: item's index -> item, for items that came with the job"""
        return self.base.at("job", job, "items")

    def pages(self, job: str) -> str:
        """set of 'lane|page' that are open"""
        return self.base.at("job", job, "pages")

    def page(self, ref: PageRef) -> str:
        """hash: left, epoch it was opened in, i:<item> -> item, u:<position> -> unit's state, r:<position> -> result,
        late -> claims that had not told their end when their unit got its result"""
        return self.base.at("job", ref.job, "page", str(ref.lane), str(ref.page))

    def assignments(self, ref: PageRef) -> str:
        """hash: message's token -> pool that was chosen for it, while nobody works on it"""
        return self.base.at("job", ref.job, "assignments", str(ref.lane), str(ref.page))

    @property
    def jobs(self) -> str:
        """zset job -> ms when it was submitted"""
        return self.base.at("jobs")

    @property
    def unfinished(self) -> str:
        """zset job -> ms when somebody must have looked after it"""
        return self.base.at("unfinished")

    @property
    def watch(self) -> str:
        """zset 'job|lane|page' -> ms when the page must have moved"""
        return self.base.at("watch")

    @property
    def due(self) -> str:
        """zset 'job|lane|page|position' -> ms when the unit's message must be published (again)"""
        return self.base.at("due")

    def taken(self, node: str) -> str:
        """string, expires: what a node took last of `due`"""
        return self.base.at("taken", node)

    @property
    def outbox(self) -> str:
        """set of jobs whose completion, or loss, has not been announced"""
        return self.base.at("outbox")
