"""The audit log: one line for each operation and each refusal, in the store, each sealing the one before.

A line's hash is an HMAC over the line and the hash before it, with a key that follows from DICAST_TOKEN_SECRET. Who can
write to the store and has not the secret can neither alter, remove, add nor reorder lines unseen, nor cut the end off:
the head, sealed likewise, tells how many there are. Two things a chain cannot tell: that the whole log was put back to
a state that it was once in, which is why each line's number and hash go into the process's log as well; and who wrote,
among those who have the secret. Without a secret the key is kept in the store, where nodes have no access to it.

The log has four parts (`Part`), each a chain with a bound of its own, so that what one kind of caller does never
displaces the lines of another kind. What anybody may repeat without end gets lines up to a number a minute, and is
counted beyond that: the counts of a minute become one line, or a few, when it is over. Lines and counts together are
exact.

A part that is full displaces lines of whoever has most, of what it did most (`displacing`). A run of displaced lines
leaves a record, sealed, with the hash from which the check goes on, and how often who did what. Lines are checked
before they are displaced, and a record tells what was wrong with them, so a log that is broken never becomes whole.
"""

from __future__ import annotations

import getpass
import hashlib
import heapq
import hmac
import ipaddress
import logging
import os
import secrets
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from itertools import groupby, islice, repeat
from pathlib import Path
from typing import Any, NamedTuple

import orjson
from pydantic import TypeAdapter, ValidationError
from redis.exceptions import RedisError

from dicast.app.access.displacing import Displaced, lines_to_displace, merged
from dicast.app.access.keys import AccessKeys, TokenSecret
from dicast.errors import DicastError
from dicast.workers.store.connection import StoreClient
from dicast.workers.store.scripts import script_text

logger = logging.getLogger(__name__)


class Part(StrEnum):
    """The parts of the log, by whose actions they hold."""

    ORDERS = "orders"
    """What operators did: with tokens, pools and nodes. Logs of earlier versions are wholly in it."""
    WORK = "work"
    """What was done with jobs, uploads and ratings, and nodes that joined and left."""
    REFUSALS = "refusals"
    """What was refused to subjects of this installation's tokens, or changed nothing."""
    STRANGERS = "strangers"
    """What was refused to whoever showed no token of this installation: samples, and counts by network."""

    @property
    def key(self) -> str:
        """The part in the names of its keys."""
        return "" if self is Part.ORDERS else str(self)


LINES_MAX: Mapping[Part, int] = {
    Part.ORDERS: 100_000, Part.WORK: 100_000, Part.REFUSALS: 50_000, Part.STRANGERS: 50_000
}  # fmt: skip
WORK_ACTIONS = frozenset({
    "job.submit", "job.cancel", "job.resume", "job.delete", "upload", "rating.open", "rating.finish", "rating.forget",
    "rating.scores", "node.join", "node.leave",
})  # fmt: skip
"""Actions whose lines are of the part `WORK`; all others' are orders."""
NOTHING_DONE = frozenset({"refused", "nothing to do"})
"""Outcomes of what changed nothing."""
DROP = 10_000
"""By how many lines a part may exceed its bound before lines are displaced, since that reads the whole part."""
DISPLACE_S = 120
"""How long a process that displaces lines keeps others from trying, at most."""
PAGE = 1_000
WORD_CHARS = 200
DETAILS_BYTES = 2_000
TRIES = 1_000
"""The most tries to add a line. A failed try means that another line was added first, so far fewer are ever needed."""
STORE_KEY = "store"
"""The fingerprint that stands for the key in the store."""
MINUTE_S = 60
KIND_CHARS = 120
SUMMED_TOGETHER = 12
"""The most counts in one line, as many as fit into its details."""
NOBODY = "nobody"
UNCHECKED = "not to be checked"
"""The name under which displaced lines are counted that no known secret has sealed."""
_HERE = Path(__file__).parent


class _Share(NamedTuple):
    """The bounds on one minute: lines of one group, lines in all, and different counts; beyond these, groups are summed
    up together as `rest`."""

    of_group: int
    lines: int
    counts: int
    rest: str


SHARES: Mapping[Part, _Share] = {
    Part.WORK: _Share(0, 0, 2_000, "others"),
    Part.REFUSALS: _Share(10, 1_000, 2_000, "others"),
    Part.STRANGERS: _Share(1, 10, 100, "other networks"),
}


class AuditError(DicastError, RuntimeError):
    """A line could not be added."""

    problem = "audit"


@dataclass(frozen=True, slots=True)
class AuditLine:
    """One line. `at` is unix s by the store's clock, `key` the secret that sealed it, `previous` the hash of the line
    before."""

    number: int
    at: float
    actor: str
    action: str
    object: str
    outcome: str
    details: dict[str, Any]
    key: str
    previous: str
    hash: str = ""


_HASHED = tuple(field.name for field in fields(AuditLine) if field.name != "hash")
_LINE = TypeAdapter(AuditLine)
_DISPLACED = TypeAdapter(Displaced)


class _Words(NamedTuple):
    """The content of a line, before it has a number and a hash."""

    actor: str
    action: str
    object: str
    outcome: str
    details: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """The result of a check of the log."""

    lines: int
    """Lines that were checked."""
    first: int
    """Number of the first line known of, of the part `ORDERS`; an earlier version dropped those before."""
    broken: int | None = None
    """Number of the first line that is not as it was written."""
    problem: str = ""
    weak: int = 0
    """Lines at the beginning that are sealed by the key that the store keeps, from before there was a secret."""
    part: str = ""
    """The part in which a line is broken."""
    displaced: int = 0
    """Displaced lines, of which only the counts are kept."""

    @property
    def whole(self) -> bool:
        return not self.problem


class _Head(NamedTuple):
    number: int
    hash: str
    seal: str
    trimmed: int
    anchor: str
    anchor_seal: str
    displaced: int
    length: int
    """Entries in the list: lines, and records of displaced ones."""


class _Seals:
    """The keys that seal lines. `all_secrets`: the first seals, the others are known too."""

    def __init__(self, client: StoreClient, keys: AccessKeys, all_secrets: Iterable[TokenSecret]) -> None:
        self._redis, self._keys = client, keys
        self._secrets = {secret.fingerprint: secret.key("audit") for secret in all_secrets}

    @property
    def has_secret(self) -> bool:
        return bool(self._secrets)

    def current_key(self) -> tuple[str, bytes]:
        """Return the fingerprint and the key for new lines."""
        for fingerprint, key in self._secrets.items():
            return fingerprint, key
        return STORE_KEY, self._stored_key()

    def key(self, fingerprint: str) -> bytes | None:
        """Return the key of a fingerprint; None for a secret that is not known here."""
        return self._stored_key() if fingerprint == STORE_KEY else self._secrets.get(fingerprint)

    def is_good(self, seal: str, what: str, number: int, hash: str) -> bool:
        fingerprint, _, _ = seal.partition(".")
        key = self.key(fingerprint)
        return key is not None and hmac.compare_digest(_seal(key, fingerprint, what, number, hash), seal)

    def _stored_key(self) -> bytes:
        name = self._keys.audit_key
        self._redis.set(name, secrets.token_hex(32), nx=True)
        return str(self._redis.get(name)).encode()


class _Check:
    """The check of a chain, entry by entry from its beginning."""

    def __init__(self, seals: _Seals, what: str, head: _Head) -> None:
        self._seals, self._what = seals, what
        self.number, self.hash, self.strong = head.trimmed, head.anchor, False
        self.lines = self.records = self.displaced = self.weak = 0
        self.entry: AuditLine | Displaced | None = None
        """The last entry, None if it cannot be read."""
        self.is_known, self.doubt = True, ""
        """Whether the last entry's secret is known here, and why the entry proves nothing although it is in its
        place."""

    def take(self, text: str) -> str:
        """Check the next entry; returns why it is not as it was written, '' if it is. Only then it counts."""
        entry = self.entry = _read(text) or _read_displaced(text)
        self.is_known, self.doubt = True, ""
        if entry is None:
            return "it is altered: it cannot be read as it was written"
        problem = self._misplaced(entry) or self._wrong(entry)
        if problem:
            return problem
        if isinstance(entry, Displaced):
            self.number, self.records, self.displaced = entry.last, self.records + 1, self.displaced + entry.lines
            self.weak, self.strong = self.weak + entry.weak, self.strong or entry.weak < entry.lines
        else:
            self.number, self.lines = entry.number, self.lines + 1
            self.weak, self.strong = self.weak + (entry.key == STORE_KEY), self.strong or entry.key != STORE_KEY
        self.hash = entry.hash
        return ""

    def _misplaced(self, entry: AuditLine | Displaced) -> str:
        number, last = (entry.first, entry.last) if isinstance(entry, Displaced) else (entry.number, entry.number)
        if number != self.number + 1 or last < number:
            return f"it has the number {number}: lines are removed, added or reordered"
        if entry.previous != self.hash:
            return "it does not follow the line before: lines are altered, removed or reordered"
        if entry.key == STORE_KEY and self.strong:
            return "it is sealed without the secret, after lines that are sealed with it"
        return ""

    def _wrong(self, entry: AuditLine | Displaced) -> str:
        key = self._seals.key(entry.key)
        if key is None:
            self.is_known = False
            self.doubt = f"it is sealed with a secret that is not known here (fingerprint {entry.key[:16]})"
            return ""
        if isinstance(entry, Displaced):
            if not hmac.compare_digest(_displaced_seal(key, self._what, entry), entry.seal):
                return "it is altered"
            if entry.problem:
                self.doubt = f"before lines {entry.first} to {entry.last} were displaced: {entry.problem}"
        elif not hmac.compare_digest(_hash(key, entry), entry.hash):
            return "it is altered"
        return ""


@dataclass(frozen=True, slots=True)
class _Entry:
    """One entry of a list, with the result of its check."""

    text: str
    entry: AuditLine | Displaced | None
    doubt: str
    is_known: bool

    def unless_displaced(self) -> Displaced | str:
        """Return what is kept if it is not displaced: a line as it is, a record to be merged with its neighbours."""
        return self.as_displaced() if isinstance(self.entry, Displaced) else self.text

    def as_displaced(self) -> Displaced:
        """Return the record that is left when it is displaced; of an entry that cannot be checked, only that it
        existed."""
        entry = self.entry
        assert entry is not None
        if isinstance(entry, Displaced):
            counts = entry.counts if self.is_known else {UNCHECKED: entry.lines}
            return replace(entry, counts=counts, problem=entry.problem or self.doubt)
        summed = entry.details.get("counts") if entry.action == "counted" else None
        count = sum(summed.values()) if isinstance(summed, dict) else 1
        name = _field(f"{entry.actor} {entry.action}") if self.is_known else UNCHECKED
        return Displaced(
            entry.number, entry.number, entry.at, entry.at, {name: count}, int(entry.key == STORE_KEY), self.doubt, "",
            entry.previous, entry.hash,
        )  # fmt: skip


class _Chain:
    """One part of the log."""

    def __init__(
        self, client: StoreClient, keys: AccessKeys, part: Part, seals: _Seals, clock: Callable[[], float] | None,
        lines_max: int,
    ) -> None:  # fmt: skip
        self._redis, self._keys, self._part, self._seals, self._clock = client, keys, part, seals, clock
        self._lines_max, self._name = lines_max, part.key
        self._what = f"{part.key} ".lstrip()
        self._lock = threading.Lock()
        self._append = client.register_script(script_text(_HERE / "append_line.lua"))
        self._replace = client.register_script(script_text(_HERE / "displace_lines.lua"))

    def __len__(self) -> int:
        return int(self._redis.llen(self._keys.audit(self._name)))

    def append(self, words: _Words, counts: Mapping[str, str] | None = None) -> AuditLine | None:
        """Add a line; it is in the store on return. `counts` that it sums up are removed in the same step; returns None
        if another process has summed them up already."""
        with self._lock:  # the threads of a process need not race with each other
            for _ in range(TRIES):
                line, length = self._try(words, counts or {})
                if length:
                    break
            else:
                raise AuditError(f"the audit log took no line in {TRIES} tries: others wrote each time")
        if length > self._lines_max + DROP:
            self._displace()
        if length < 0:
            return None
        logger.info(
            "%s %s %s: %s", line.actor, line.action, line.object, line.outcome,
            extra={"event": "audit", "audit_part": str(self._part), "audit_number": line.number,
                   "audit_hash": line.hash},
        )  # fmt: skip
        return line

    def lines(self, newest: int | None) -> Iterator[AuditLine]:
        """Yield the readable lines, oldest first, at most the `newest` so many; a line of its own stands for displaced
        ones."""
        start = 0 if newest is None else max(0, len(self) - newest)
        for text in self._texts(start):
            entry = _read(text) or _read_displaced(text)
            if entry is not None:
                yield _as_line(entry) if isinstance(entry, Displaced) else entry

    def verify(self) -> AuditFinding:
        """Check the chain from its beginning, and name the first line that is broken. Lines that are added meanwhile
        are not looked at."""
        while True:
            head = self._head()
            finding = self._checked(head)
            if self._head().displaced == head.displaced:  # else the list was another one while it was read
                return finding

    def _checked(self, head: _Head) -> AuditFinding:
        check = _Check(self._seals, self._what, head)
        first, has_secret = head.trimmed + 1, self._seals.has_secret
        if head.trimmed and not self._seals.is_good(head.anchor_seal, f"{self._what}anchor", head.trimmed, head.anchor):
            return AuditFinding(0, first, check.number, "the seal of the lines that were dropped is not good")

        def finding(broken: int | None = None, problem: str = "") -> AuditFinding:
            weak = check.weak if has_secret else 0
            return AuditFinding(check.lines, first, broken, problem, weak, displaced=check.displaced)

        for text in self._texts(0, head.length):
            if check.number >= head.number:
                break
            expected = check.number + 1
            if problem := check.take(text) or check.doubt:
                return finding(expected, problem)
        entries = check.lines + check.records
        if check.number != head.number or check.hash != head.hash or head.length != entries:
            return finding(check.number + 1, _CUT.format(head.number, head.trimmed + check.displaced + head.length))
        if head.number and not self._seals.is_good(head.seal, f"{self._what}head", head.number, head.hash):
            return finding(check.number, "the head's seal is not good: lines may be gone after it")
        return finding()

    def _try(self, words: _Words, counts: Mapping[str, str]) -> tuple[AuditLine, int]:
        head, now = self._head_and_time()
        fingerprint, key = self._seals.current_key()
        line = AuditLine(
            head.number + 1, now, _word(words.actor), _word(words.action), _word(words.object), _word(words.outcome),
            _small(words.details), fingerprint, head.hash,
        )  # fmt: skip
        line = replace(line, hash=_hash(key, line))
        k, seal = self._keys, _seal(key, fingerprint, f"{self._what}head", line.number, line.hash)
        summed = [word for pair in counts.items() for word in pair]
        length = self._append(
            keys=[k.audit(self._name), k.audit_head(self._name), k.audit_counts],
            args=[head.number, head.hash, orjson.dumps(line), line.hash, seal, *summed],
        )
        return line, int(length)

    def _displace(self) -> None:
        """Bring the part back to its bound, unless another process or thread is doing so. The line that made it too
        long is in the log already, so a failure here is only logged: the next line tries again."""
        lock = self._keys.audit_displacing(self._name)
        try:
            if self._redis.set(lock, "1", nx=True, ex=DISPLACE_S):
                try:
                    self._displace_now()
                finally:
                    self._redis.delete(lock)
        except RedisError as error:
            logger.warning("no lines of the audit log could be displaced: %s", type(error).__name__)

    def _displace_now(self) -> None:
        head = self._head()
        check, entries, problem = _Check(self._seals, self._what, head), list[_Entry](), ""
        for text in self._texts(0, head.length):
            fault = check.take(text)
            problem = problem or fault
            entries.append(_Entry(text, check.entry, check.doubt, check.is_known))
        fingerprint, key = self._seals.current_key()
        if fingerprint == STORE_KEY and check.strong:
            return  # its seal would be as good as none
        if problem:
            shorter = self._without_oldest(head, entries, problem)
        else:
            chosen = lines_to_displace([self._kind(entry) for entry in entries], self._lines_max)
            shorter = [
                entry.as_displaced() if at in chosen else entry.unless_displaced() for at, entry in enumerate(entries)
            ]
        texts, displaced = list[bytes | str](), 0
        for is_displaced, group in groupby(shorter, lambda item: isinstance(item, Displaced)):
            if not is_displaced:
                texts.extend(item for item in group if isinstance(item, str))
                continue
            record = replace(merged([item for item in group if isinstance(item, Displaced)]), key=fingerprint)
            texts.append(orjson.dumps(replace(record, seal=_displaced_seal(key, self._what, record))))
            displaced += record.lines
        self._put(head, texts, displaced)

    def _without_oldest(self, head: _Head, entries: Sequence[_Entry], problem: str) -> list[Displaced | str]:
        """Return a broken log without its oldest lines, since it is unknown whose lines they are. A record says what is
        wrong."""
        most = len(entries) - self._lines_max
        last = max((at for at in range(most) if entries[at].entry is not None), default=-1)
        run = [entry.as_displaced() for entry in entries[: last + 1] if entry.entry is not None]
        if not run:
            return [entry.text for entry in entries]
        record = replace(merged(run), first=head.trimmed + 1, previous=head.anchor, problem=problem)
        return [record, *(entry.text for entry in entries[last + 1 :])]

    def _put(self, head: _Head, shorter: Sequence[bytes | str], displaced: int) -> None:
        name = self._keys.audit_shorter(self._name, secrets.token_hex(8))
        for start in range(0, len(shorter), PAGE):
            pipe = self._redis.pipeline()
            pipe.rpush(name, *shorter[start : start + PAGE]).expire(name, DISPLACE_S).execute()
        keys = [self._keys.audit(self._name), self._keys.audit_head(self._name), name]
        if self._replace(keys=keys, args=[head.displaced, head.length, displaced]):
            logger.info("%d lines of the audit log's part %s are displaced", displaced - head.displaced, self._part)
        else:
            self._redis.delete(name)

    def _kind(self, entry: _Entry) -> tuple[str, str] | None:
        """Return by what the part is shared: subject and action, None for a record. Strangers have no names, and count
        as one."""
        if not isinstance(entry.entry, AuditLine):
            return None
        if not entry.is_known:
            return ("", "sealed with another secret")
        return ("", "") if self._part is Part.STRANGERS else (entry.entry.actor, entry.entry.action)

    def _texts(self, start: int, most: int | None = None) -> Iterator[str]:
        end = None if most is None else start + most
        while end is None or start < end:
            page = self._redis.lrange(self._keys.audit(self._name), start, min(start + PAGE, end or start + PAGE) - 1)
            yield from page
            start += len(page)
            if not page:
                return

    def _head(self) -> _Head:
        return self._head_and_time()[0]

    def _head_and_time(self) -> tuple[_Head, float]:
        pipe = self._redis.pipeline()
        pipe.hmget(self._keys.audit_head(self._name), *_HEAD).llen(self._keys.audit(self._name)).time()
        (count, hash, seal, trimmed, anchor, anchor_seal, displaced), length, (seconds, micros) = pipe.execute()
        head = _Head(
            int(count or 0), hash or "", seal or "", int(trimmed or 0), anchor or "", anchor_seal or "",
            int(displaced or 0), length,
        )  # fmt: skip
        return head, self._clock() if self._clock is not None else seconds + micros / 1e6


class Audit:
    """The audit log of one installation. Threads and processes may share it. `all_secrets`: the first seals, the others
    are known too. `clock` gives unix s instead of the store's; `lines_max` bounds each part instead of `LINES_MAX`."""

    def __init__(
        self, client: StoreClient, namespace: str, all_secrets: Iterable[TokenSecret] = (),
        clock: Callable[[], float] | None = None, lines_max: int | None = None,
    ) -> None:  # fmt: skip
        self._redis, self._keys, self._clock = client, AccessKeys(namespace), clock
        seals = _Seals(client, self._keys, all_secrets)
        self._chains = {
            part: _Chain(client, self._keys, part, seals, clock, LINES_MAX[part] if lines_max is None else lines_max)
            for part in Part
        }
        self._count = client.register_script(script_text(_HERE / "count_event.lua"))

    def record(
        self, actor: str, action: str, object: str, outcome: str, details: Mapping[str, Any] | None = None
    ) -> AuditLine | None:
        """Add a line of something that a known subject, or an operator, has done: it is in the store on return. Long
        words are cut, long details left out. Give no secrets. What changed nothing is only counted, and None returned,
        when the subject has had its lines of this minute."""
        line_words = _Words(actor, action, object, outcome, details or {})
        if outcome in NOTHING_DONE:
            reason = line_words.details.get("reason") or line_words.details.get("problem") or outcome
            return self._bounded(Part.REFUSALS, line_words, actor, f"{action}: {reason}", "")
        part = Part.WORK if action in WORK_ACTIONS else Part.ORDERS
        return self._chains[part].append(line_words)

    def refuse_stranger(self, address: str, action: str, object: str, details: Mapping[str, Any]) -> AuditLine | None:
        """Note that somebody at this address, whom no token names, was refused. None if it was only counted."""
        kind = str(details.get("reason") or details.get("problem") or "refused")
        line_words = _Words(NOBODY, action, object, "refused", details)
        return self._bounded(Part.STRANGERS, line_words, network(address), kind, kind)

    def count(self, actor: str, action: str, object: str) -> None:
        """Count an operation that has no line of its own: how often a subject did it with an object becomes a line of
        the part `WORK` when the minute is over."""
        self._bounded(Part.WORK, _Words(actor, action, object, "done", {}), actor, f"{action} {object}", "")

    def settle(self) -> None:
        """Sum up what was counted in minutes that are over. Any process may do so at any time; each count becomes part
        of one line."""
        present = str(int(self._now() // MINUTE_S))
        sums: dict[tuple[str, str, str], dict[str, str]] = {}
        spent = []
        for field, value in self._redis.hgetall(self._keys.audit_counts).items():
            minute, part, group, _, counted_kind = (*field.split("\0"), "", "", "", "")[:5]
            if minute == present or not part:
                continue
            if counted_kind == "count":
                together = (minute, part, "" if part == Part.STRANGERS else group)
                sums.setdefault(together, {})[field] = value
            else:
                spent.append(field)
        for (minute, part, group), counts in sorted(sums.items()):
            ordered = sorted(counts.items())
            for start in range(0, len(ordered), SUMMED_TOGETHER):
                some = dict(ordered[start : start + SUMMED_TOGETHER])
                self._chains[Part(part)].append(_sum(int(minute), Part(part), group, some), some)
        if spent:
            self._redis.hdel(self._keys.audit_counts, *spent)

    def pending(self) -> int:
        """Return how many counted operations no line sums up yet."""
        counts = self._redis.hgetall(self._keys.audit_counts)
        return sum(int(value) for field, value in counts.items() if field.endswith("\0count"))

    def lines(self, newest: int | None = None) -> Iterator[AuditLine]:
        """Yield the readable lines of all parts, oldest first, at most the `newest` so many."""
        for _, line in self.entries(newest):
            yield line

    def entries(self, newest: int | None = None) -> Iterator[tuple[Part, AuditLine]]:
        """Yield the same lines, each with its part."""
        parts = (zip(repeat(part), chain.lines(newest)) for part, chain in self._chains.items())
        merged = heapq.merge(*parts, key=lambda entry: entry[1].at)
        sizes = [len(chain) for chain in self._chains.values()]
        beyond = 0 if newest is None else sum(min(size, newest) for size in sizes) - newest
        return islice(merged, max(0, beyond), None)

    def verify(self) -> AuditFinding:
        """Check every part from its beginning, and name the first line that is broken, with its part. Lines that are
        added meanwhile are not looked at."""
        findings = {part: chain.verify() for part, chain in self._chains.items()}
        names = ("lines", "weak", "displaced")
        lines, weak, displaced = (sum(getattr(finding, name) for finding in findings.values()) for name in names)
        first = findings[Part.ORDERS].first
        for part, finding in findings.items():
            if not finding.whole:
                return AuditFinding(lines, first, finding.broken, finding.problem, weak, part, displaced)
        return AuditFinding(lines, first, weak=weak, displaced=displaced)

    def _bounded(self, part: Part, words: _Words, group: str, kind: str, line_kind: str) -> AuditLine | None:
        """Add a line, or only a count if the minute has had its lines."""
        share, now = SHARES[part], "" if self._clock is None else self._clock()
        gets_line, is_new = self._count(
            keys=[self._keys.audit_counts],
            args=[
                now, part, _field(group, WORD_CHARS), _field(kind), line_kind, share.of_group, share.lines,
                share.counts, share.rest,
            ],
        )  # fmt: skip
        line = self._chains[part].append(words) if gets_line else None
        if is_new:
            self.settle()
        return line

    def _now(self) -> float:
        return self._clock() if self._clock is not None else float(self._redis.time()[0])


_HEAD = ("count", "hash", "seal", "trimmed", "anchor", "anchor_seal", "displaced")
_CUT = "the log has {} lines by its head, and {} are here: the end is cut off, or altered"


def operator() -> str:
    """Return who gives a command on this machine: user@host."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def log_only(actor: str, action: str, object: str, outcome: str, details: Mapping[str, Any] | None = None) -> None:
    """Note an operation in this process's log alone: for nodes that joined over HTTP, which may not reach the audit
    log."""
    line_words = (_word(word) for word in (actor, action, object, outcome))
    logger.info("%s %s %s: %s", *line_words, extra={"event": "audit", "details": _small(details or {})})


def network(address: str) -> str:
    """Return the network by which an address is counted: /24 of IPv4, /48 of IPv6; 'unknown' if it is no address."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return "unknown"
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is not None:
        parsed = parsed.ipv4_mapped
    return str(ipaddress.ip_network(f"{parsed}/{24 if parsed.version == 4 else 48}", strict=False))


def _sum(minute: int, part: Part, group: str, counts: Mapping[str, str]) -> _Words:
    """Return the line that sums up some counts of a minute and a group; strangers' groups are summed up together."""
    kinds: dict[str, int] = {}
    for field, value in counts.items():
        _, _, network, kind, _ = field.split("\0")
        kinds[f"{network} {kind}" if part is Part.STRANGERS else kind] = int(value)
    details = {"since": minute * MINUTE_S, "seconds": MINUTE_S, "counts": kinds}
    return _Words(group or NOBODY, "counted", "", "done" if part is Part.WORK else "refused", details)


def _field(word: str, most: int = KIND_CHARS) -> str:
    """Return a text in the form that it has in a count's name."""
    return word.encode(errors="replace").decode().replace("\0", "?")[:most] or "unknown"


def _read(text: str) -> AuditLine | None:
    """Parse a line; None for a text that was never written as one."""
    try:
        line = _LINE.validate_json(text)
    except ValidationError:
        return None
    return line if orjson.dumps(line).decode() == text else None


def _read_displaced(text: str) -> Displaced | None:
    """Parse a record of displaced lines; None for a text that was never written as one."""
    try:
        record = _DISPLACED.validate_json(text)
    except ValidationError:
        return None
    return record if orjson.dumps(record).decode() == text else None


def _as_line(record: Displaced) -> AuditLine:
    """Return the line that is shown in place of displaced ones."""
    return AuditLine(
        record.last, record.until, NOBODY, "displaced", f"{record.first}-{record.last}", "done",
        {"since": record.since, "lines": record.lines, "counts": record.counts,
         **({"problem": record.problem} if record.problem else {})},
        record.key, record.previous, record.hash,
    )  # fmt: skip


def _displaced_seal(key: bytes, what: str, record: Displaced) -> str:
    text = orjson.dumps(record.sealed, option=orjson.OPT_SORT_KEYS)
    return hmac.new(key, f"{what}displaced|".encode() + text, hashlib.sha256).hexdigest()


def _hash(key: bytes, line: AuditLine) -> str:
    fields = {name: getattr(line, name) for name in _HASHED}  # `asdict` copies, which takes most of a check's time
    return hmac.new(key, orjson.dumps(fields, option=orjson.OPT_SORT_KEYS), hashlib.sha256).hexdigest()


def _seal(key: bytes, fingerprint: str, what: str, number: int, hash: str) -> str:
    return f"{fingerprint}.{hmac.new(key, f'{what}|{number}|{hash}'.encode(), hashlib.sha256).hexdigest()}"


def _word(value: str) -> str:
    text = str(value).encode(errors="replace").decode()
    return text if len(text) <= WORD_CHARS else text[: WORD_CHARS - 1] + "…"


def _small(details: Mapping[str, Any]) -> dict[str, Any]:
    try:
        packed = orjson.dumps(dict(details), default=str, option=orjson.OPT_NON_STR_KEYS)
    except orjson.JSONEncodeError as error:  # whole numbers of more than 64 bits, text that is no Unicode
        return {"left_out": str(error)}
    if len(packed) > DETAILS_BYTES:
        return {"left_out": f"{len(packed)} bytes"}
    plain: dict[str, Any] = orjson.loads(packed)
    return plain
