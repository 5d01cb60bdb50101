"""The ledger's keys.

Job ids and incarnations have closed alphabets, and lanes and pages are numbers, so members can safely be split on '|'.
"""

from __future__ import annotations

import re
import secrets
import string
from dataclasses import dataclass
from typing import NamedTuple, Self

from dicast.workers.store.keys import Keys

_LETTERS = string.ascii_lowercase + string.digits
_NAME = re.compile(r"([^~]+)~([a-z0-9]+)\.([0-9]+)\.([0-9]+)(?:\.(b?[0-9]+))?")


def new_incarnation() -> str:
    """Return a name that tells a job from earlier and later ones of its id: lower-case letters and digits, because
    folders are named after it too."""
    return "".join(secrets.choice(_LETTERS) for _ in range(6))


class PageRef(NamedTuple):
    """Names one page of one lane of one incarnation of a job. What is left of an earlier job of the same id, in queues,
    on disk or in a process, never belongs to this page."""

    job: str
    incarnation: str
    lane: int
    page: int

    def __str__(self) -> str:
        return f"{self.job}|{self.incarnation}|{self.lane}|{self.page}"

    @property
    def name(self) -> str:
        """The name of its chord, with which its messages' ids begin; no job's id holds a '~'."""
        return f"{self.job}~{self.incarnation}.{self.lane}.{self.page}"

    @property
    def number(self) -> str:
        """A name that is unique among its lane's pages, of all jobs of this id."""
        return f"{self.incarnation}.{self.page}"

    @property
    def place(self) -> str:
        """The end of its key, after its job's; messages carry it (find_lost.lua)."""
        return f"{self.incarnation}:{self.lane}:{self.page}"

    @classmethod
    def of_name(cls, name: str) -> tuple[Self, str]:
        """Parse the `name` of a page, or the id of one of its messages; return the page, and the message's token or ''.
        Raises ValueError."""
        match = _NAME.fullmatch(name)
        if match is None:
            raise ValueError(f"{name!r} names no page")
        job, incarnation, lane, page, token = match.groups()
        return cls(job, incarnation, int(lane), int(page)), token or ""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the text form of a page. Raises ValueError."""
        job, incarnation, lane, page = text.split("|")
        return cls(job, incarnation, int(lane), int(page))


@dataclass(frozen=True, slots=True)
class LedgerKeys:
    """The names of the ledger's keys in the store."""

    base: Keys

    def job(self, job: str) -> str:
        """hash: spec, digest, incarnation, state, limit, counters and each lane's cursor, next page and open units"""
        return self.base.at("job", job)

    def items(self, job: str) -> str:
        """hash: item's index -> item, for items that came with the job"""
        return self.base.at("job", job, "items")

    def continuations(self, job: str) -> str:
        """hash: task id -> what follows the job's end under that id (app/pipeline/calling_options.py), JSON"""
        return self.base.at("job", job, "continuations")

    def pages(self, job: str) -> str:
        """set of 'lane|incarnation.page' that are open"""
        return self.base.at("job", job, "pages")

    def page(self, ref: PageRef) -> str:
        """hash: left, epoch it was opened in, i:<item> -> item, u:<position> -> unit's state, r:<position> -> result,
        p:<position> -> calls that tried a pool which was down, late -> claims that had not told their end when their
        unit got its result, revoked -> units that are"""
        return self.base.at("job", ref.job, "page", ref.incarnation, str(ref.lane), str(ref.page))

    def kept(self, job: str) -> str:
        """hash: 'lane|incarnation.page' -> its results by position, JSON; of pages that no disk took before the job was
        given up"""
        return self.base.at("job", job, "kept")

    def board(self, job: str) -> str:
        """string: a mark for each unit (app/domain/scoreboard.py), of jobs that decide by scores what is asked next"""
        return self.base.at("job", job, "board")

    def alias(self, task_id: str) -> str:
        """string: the job whose result is waited for under a task id that is not its own"""
        return self.base.at("alias", task_id)

    @property
    def purses(self) -> str:
        """set of the names of all purses"""
        return self.base.at("purses")

    def purse(self, name: str) -> str:
        """hash: what a project or a pool has spent in one currency (purses.lua); a purse's name is encoded already"""
        return f"{self.base.at('purse')}:{name}"

    def trouble(self, job: str) -> str:
        """hash why, tries, at: what keeps a job from going on; ends by itself when it is not met again"""
        return self.base.at("trouble", job)

    @property
    def known_pools(self) -> str:
        """zset pool -> lease-clock ms when a living worker last told that it knows it"""
        return self.base.at("known_pools")

    def asking(self, job: str, incarnation: str) -> str:
        """hash: for each place where the job asks whether it was answered, what it failed of, why it stopped there"""
        return self.base.at("job", job, "asking", incarnation)

    def exhausted(self, pool: str) -> str:
        """string, exists while the pool's account is known to have no money left"""
        return self.base.at("exhausted", pool)

    def rechecked(self, pool: str) -> str:
        """string, exists while nobody is to try that account again"""
        return self.base.at("rechecked", pool)

    def assignments(self, ref: PageRef) -> str:
        """hash: message's token -> pool that was chosen for it, while nobody works on it"""
        return self.base.at("job", ref.job, "assignments", ref.incarnation, str(ref.lane), str(ref.page))

    @property
    def batches(self) -> str:
        """zset: '@' and a batch's name -> lease-clock ms when somebody must look after it, and
        'job|incarnation|lane' -> when a batch of the lane's free units is to be formed"""
        return self.base.at("batches")

    def batch(self, name: str) -> str:
        """hash: a batch's intent, state and place at its provider (app/ledger/batches.py); it stands where the beacon
        of a node of this name would, so that units which the batch has claimed are in living hands as long as it is
        there"""
        return self.base.node(name)

    def batch_members(self, name: str) -> str:
        """hash: page's number -> its units in a batch, JSON {token: {position: fence}}"""
        return self.base.at("batch_members", name)

    def batch_taken(self, node: str) -> str:
        """string, expires: what a node took last of `batches`"""
        return self.base.at("batch_taken", node)

    @property
    def batch_limits(self) -> str:
        """hash 'pool|model' -> the most tokens that a batch is given, learned from those that found the queue full;
        '|pool|model' -> how many seconds the last ones took, JSON {name: seconds}"""
        return self.base.at("batch_limits")

    @property
    def batches_over(self) -> str:
        """list of the last batches that are over, newest first, JSON"""
        return self.base.at("batches_over")

    @property
    def jobs(self) -> str:
        """zset job -> ms when it was submitted"""
        return self.base.at("jobs")

    @property
    def unfinished(self) -> str:
        """zset job -> ms when somebody must have looked after it"""
        return self.base.at("unfinished")

    @property
    def bounded(self) -> str:
        """zset job -> ms when somebody must see whether its deadlines have passed"""
        return self.base.at("bounded")

    @property
    def watch(self) -> str:
        """zset 'job|incarnation|lane|page' -> ms when the page must have moved"""
        return self.base.at("watch")

    @property
    def due(self) -> str:
        """zset 'job|incarnation|lane|page|token' -> ms when the unit's message must be published (again)"""
        return self.base.at("due")

    def taken(self, node: str) -> str:
        """string, expires: what a node took last of `due`"""
        return self.base.at("taken", node)

    @property
    def outbox(self) -> str:
        """set of jobs whose completion, or loss, has not been announced"""
        return self.base.at("outbox")
