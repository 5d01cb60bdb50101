"""The ledger for callers: submit, look up, cancel. It is synchronous, for any process that reaches the store."""

from __future__ import annotations

import hashlib
import itertools
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from dicast.app.domain.cost import PREFIX, BookLine, JobMoney, cost_of, read_books
from dicast.app.domain.item import Item
from dicast.app.domain.job import EvaluationJob
from dicast.app.domain.plan import STANDARD, Intervals, Lane, pieces
from dicast.app.domain.question import JobAnswer
from dicast.app.ledger.batches import BatchRecord, cancel_batch, list_batches, list_batches_over, list_changes
from dicast.app.ledger.keys import LedgerKeys, PageRef, new_incarnation
from dicast.app.ledger.records import JobState, UnitState, read_lanes, read_places, stored_spec
from dicast.errors import DicastError, Exit
from dicast.workers.store.connection import StoreClient
from dicast.workers.store.keys import Keys
from dicast.workers.store.scripts import script_text

if TYPE_CHECKING:
    from dicast.app.domain.deadlines import RoadChange
    from dicast.app.ledger.records import MessageId

HERE = Path(__file__).parent
STAGING_S = 7200
"""Much longer than a submission takes, because the store's clock may be put ahead meanwhile."""
STAGED_TOGETHER = 200
LISTED_TOGETHER = 100
BOOKS_TOGETHER = 10_000
WAITS_SHOWN_MS = 90_000
"""How long a trouble is shown. Whoever meets it meets it again sooner than that, and reports it again."""
CONTINUATION_S = 30 * 86_400


class UnknownJob(DicastError, LookupError):
    """The ledger holds no job of this id."""

    problem = "unknown-job"

    def __init__(self, job: str) -> None:
        super().__init__(f"no job {job!r}")
        self.job = job


class JobLost(DicastError, RuntimeError):
    """The store has forgotten a job that was not finished. It is raised for callers that wait for the result."""

    problem = "job-lost"

    exit_code = Exit.FAILED

    def __init__(self, job: str) -> None:
        super().__init__(job)
        self.job = job

    def __str__(self) -> str:
        return f"job {self.job!r} is lost: the store was emptied, or lost its last writes; submit it again"


class JobConflict(DicastError, ValueError):
    """The id is taken by a job with other content."""

    problem = "job-conflict"

    def __init__(self, job: str) -> None:
        super().__init__(f"job {job!r} was submitted before with other content; choose another id")
        self.job = job


class JobBooks(NamedTuple):
    """The books of a job, which goes to these pools."""

    job: str
    incarnation: str
    project: str
    pools: Sequence[str]
    books: Sequence[BookLine]


class JobLayout(NamedTuple):
    """A job as it was submitted, without items that came with it, and how its results are laid out in pages. `mark` is
    the fingerprint of its item file, `resumed` how often it was resumed."""

    spec: EvaluationJob
    mark: str | None
    lanes: Sequence[Lane]
    units: int
    incarnation: str
    resumed: int


@dataclass(frozen=True, slots=True)
class JobStatus:
    """A job's state and counters at one instant. Times are ms of the store's wall clock."""

    id: str
    state: JobState
    project: str
    units: int
    counters: dict[str, int]
    limit: int | None
    created_ms: int
    started_ms: int | None
    finished_ms: int | None
    report: dict[str, Any] | None
    why: str | None = None
    """Why the job was cancelled, unless a user cancelled it."""
    waits_for: str | None = None
    """The trouble that a worker met with the job lately, such as a full disk."""
    answered: str | None = None
    """The answer to the job's question in a sentence, once it is known."""
    money: str = ""
    """What it has spent and reserved, and its cap, in words; '' of models without a price."""
    spent: str = ""
    """What its calls are known to have cost, in short; '' if none had a price."""
    unpriced: Sequence[str] = ()
    """The models, as pool/model, whose calls are in no amount, as nobody has told their price."""
    cost: str = ""
    """The same with all that is reserved, unknown or unpriced, in words; '' before the first call."""

    @property
    def done(self) -> int:
        return self.counters.get("done", 0)

    @property
    def health(self) -> str | None:
        """How an ended job has gone: good, partial or bad; None before, and of reports of earlier versions."""
        return self._concluded("health")

    @property
    def badge(self) -> str | None:
        """The same in a few words, as `completed, all failed`."""
        return self._concluded("badge")

    def _concluded(self, name: str) -> str | None:
        conclusions = (self.report or {}).get("conclusions")
        return conclusions[name] if conclusions is not None and self.state.ended else None


COUNTERS = (
    "published", "done", "scored", "failed", "spared", "calls", "retries", "requeues", "timeouts", "stale", "lost",
    "calls_without_answer", "possible_double_charges", "moved_online", "tokens_in", "tokens_out",
)  # fmt: skip


def digest_of(job: EvaluationJob) -> str:
    """Return a digest that is equal for equal jobs, whatever the order of keys they were written in. The id and drawn
    defaults count."""
    items = job.items if isinstance(job.items, list) else []
    digest = hashlib.sha256()
    for part in (job.model_copy(update={"items": []}) if items else job, *items):  # never all of it written out at once
        digest.update(orjson.dumps(part.model_dump(mode="json"), option=orjson.OPT_SORT_KEYS))
    return digest.hexdigest()


class LedgerClient:
    """What a caller may do with jobs."""

    def __init__(self, client: StoreClient, keys: Keys, intervals: Intervals = STANDARD) -> None:
        self._redis, self._intervals = client, intervals
        self._keys = LedgerKeys(keys)
        self._submit = client.register_script(script_text(HERE / "submit.lua"))
        self._resume = client.register_script(script_text(HERE / "resume.lua"))
        self._cancel = client.register_script(script_text(HERE / "cancel.lua"))
        self._delete = client.register_script(script_text(HERE / "delete.lua"))
        self._revoke_unit = client.register_script(script_text(HERE / "revoke_unit.lua"))
        self._lead = client.register_script(script_text(HERE / "lead.lua"))

    def submit(
        self, job: EvaluationJob, lanes: Sequence[Lane], units: int, extra: dict[str, str], start_in_ms: int = 0
    ) -> bool:
        """Store a job whole; False if this very job is stored already. Raises `JobConflict`.

        `job.id` must be set; `extra` are further fields of its record (such as the data set's fingerprint). With
        `start_in_ms` the housekeeping starts it then; otherwise the caller sends its message.
        """
        assert job.id is not None
        k = self._keys
        items = job.items if isinstance(job.items, list) else []
        spec = job.model_copy(update={"items": []}) if isinstance(job.items, list) else job
        fields = {
            "spec": spec.model_dump_json(),
            "project": job.project,
            "spend": job.spend,
            "units": str(units),
            "incarnation": new_incarnation(),
            "lanes": orjson.dumps(lanes).decode(),
            **extra,
        }
        start_in_ms = start_in_ms or self._intervals.unattended_ms
        parts, verdict = [part for pair in fields.items() for part in pair], "unstaged"
        while verdict == "unstaged":  # they expire, and a store may be emptied
            attempt = secrets.token_hex(8)
            staged = k.base.at("staging", attempt)
            self._stage(staged, items)
            verdict = self._submit(
                keys=[
                    k.job(job.id),
                    k.items(job.id),
                    staged,
                    k.jobs,
                    k.unfinished,
                    k.base.clock,
                    k.outbox,
                    k.pages(job.id),
                    k.watch,
                    k.base.assigned,
                    k.board(job.id),
                    k.kept(job.id),
                ],
                args=["", job.id, digest_of(job), start_in_ms, len(items), attempt, *parts],
            )
        if verdict == "other":
            raise JobConflict(job.id)
        if verdict == "new":
            self._redis.delete(k.continuations(job.id))  # an earlier job's
        return bool(verdict == "new")

    def _stage(self, key: str, items: list[Item]) -> None:
        """Upload the items in pieces that expire by themselves, so that a submission that dies leaves nothing
        behind."""
        numbers = itertools.count()
        for piece in pieces(items, STAGED_TOGETHER):
            pipe = self._redis.pipeline(transaction=False)
            texts = {str(next(numbers)): item.model_dump_json(exclude_defaults=True) for item in piece}
            pipe.hset(key, mapping=texts)
            pipe.expire(key, STAGING_S)
            pipe.execute()

    def is_free(self, job: str) -> bool:
        """Return whether a job of this id would be new: there is none, or it is lost."""
        return self._redis.hget(self._keys.job(job), "state") in {None, JobState.LOST}

    def awaits_start(self, job: str) -> bool:
        return bool(self._redis.hget(self._keys.job(job), "state") == JobState.SUBMITTED)

    def status(self, job: str) -> JobStatus:
        """Return a job's status. Raises `UnknownJob`."""
        fields = self._redis.hgetall(self._keys.job(job))
        if not fields:
            raise UnknownJob(job)
        status = self._status(job, fields)
        if status.waits_for is None and not status.state.ended:
            status = replace(status, waits_for=self._redis.hget(self._keys.trouble(job), "why"))
        return status

    def _status(self, job: str, fields: dict[str, str]) -> JobStatus:
        # Only a job in trouble has the field, so nobody else's look pays for the second question.
        waits_for = fields.get("waits_for")
        if waits_for is not None:
            seconds, _ = self._redis.time()
            waits_for = waits_for if 1000 * int(seconds) - int(fields["waits_ms"]) < WAITS_SHOWN_MS else None
        return replace(_status(job, fields, waits_for), why=fields.get("why"))

    def pools(self, job: str) -> list[str]:
        """Return the pools that a job's units go to. Raises `UnknownJob`."""
        lanes = self._redis.hget(self._keys.job(job), "lanes")
        if lanes is None:
            raise UnknownJob(job)
        return _pools_of(lanes)

    def submitted_job(self, job: str) -> tuple[EvaluationJob, str | None]:
        """Return a job as it was submitted, without items that came with it, and the fingerprint of its item file.
        Raises `UnknownJob`."""
        spec, mark = self._redis.hmget(self._keys.job(job), "spec", "fingerprint")
        if spec is None:
            raise UnknownJob(job)
        return stored_spec(spec), mark

    def layout(self, job: str) -> JobLayout:
        """Return how a job and its results are laid out. Raises `UnknownJob`."""
        names = "spec", "fingerprint", "lanes", "units", "incarnation", "resumed"
        spec, mark, lanes, units, incarnation, resumed = self._redis.hmget(self._keys.job(job), *names)
        if spec is None:
            raise UnknownJob(job)
        return JobLayout(stored_spec(spec), mark, read_lanes(lanes), int(units), incarnation or "", int(resumed or 0))

    def item_metadata(self, job: str) -> Iterator[Mapping[str, Any]]:
        """Yield the metadata of each item that came with a job, in any order, while the ledger holds them."""
        numbers = set()
        for number, text in self._redis.hscan_iter(self._keys.items(job), count=LISTED_TOGETHER):
            if number not in numbers:
                numbers.add(number)
                yield orjson.loads(text).get("metadata", {})

    def jobs(self, newest: int = 100) -> Iterator[JobStatus]:
        """Yield the newest jobs first, without those past their retention."""
        for job in self._redis.zrevrange(self._keys.jobs, 0, newest - 1):
            fields = self._redis.hgetall(self._keys.job(job))
            if fields:
                yield self._status(job, fields)

    def count_unfinished(self) -> int:
        """Return how many jobs have not ended."""
        return int(self._redis.zcard(self._keys.unfinished))

    def unfinished_pools(self) -> Iterator[list[str]]:
        """Yield, for each job that has not ended, the pools that its units go to."""
        jobs = self._redis.zrange(self._keys.unfinished, 0, -1)
        for start in range(0, len(jobs), LISTED_TOGETHER):
            pipe = self._redis.pipeline(transaction=False)
            for job in jobs[start : start + LISTED_TOGETHER]:
                pipe.hget(self._keys.job(job), "lanes")
            yield from (_pools_of(lanes) for lanes in pipe.execute() if lanes is not None)

    def books(self) -> Iterator[JobBooks]:
        """Yield the books of each job that is in the ledger, newest first."""
        for job in self._redis.zrevrange(self._keys.jobs, 0, -1):
            if (books := self.job_books(job)) is not None:
                yield books

    def job_books(self, job: str) -> JobBooks | None:
        """Return the books of a job; None if the ledger holds none of this id."""
        key = self._keys.job(job)
        names = "spec", "incarnation", "project", "places", "lanes"
        spec, incarnation, project, places, lanes = self._redis.hmget(key, *names)
        if spec is None:
            return None
        record = dict(self._redis.hscan_iter(key, match=f"{PREFIX}*", count=BOOKS_TOGETHER))
        judges = [agent["name"] for agent in orjson.loads(spec)["agents"]]
        books = read_books(record, judges, read_places(places))
        return JobBooks(job, incarnation or "", project, _pools_of(lanes), books)

    def older(self, than: tuple[int, str] | None = None) -> Iterator[tuple[JobStatus, list[str]]]:
        """Yield jobs, newest first, with the pools that their units go to.

        With `than` (a submission time in ms and a job id) only jobs submitted before it are yielded; that job's record
        need not exist any more.
        """
        most, passed = "+inf" if than is None else than[0], 0
        while members := self._redis.zrevrangebyscore(
            self._keys.jobs, most, "-inf", start=passed, num=LISTED_TOGETHER, withscores=True
        ):
            passed += len(members)
            for job, at in members:
                if than is not None and (int(at), job) >= than:
                    continue
                fields = self._redis.hgetall(self._keys.job(job))
                if fields:
                    yield self._status(job, fields), _pools_of(fields["lanes"])

    def continue_with(self, job: str, task_id: str, continuation: str) -> None:
        """Store what follows a job's end, for a task id; it is kept as long as its result may be waited for."""
        pipe = self._redis.pipeline(transaction=True)
        pipe.set(self._keys.alias(task_id), job, ex=CONTINUATION_S)
        pipe.hset(self._keys.continuations(job), task_id, continuation)
        pipe.expire(self._keys.continuations(job), CONTINUATION_S)
        pipe.execute()

    def wall_ms(self) -> int:
        """Return the store's wall clock in ms."""
        seconds, microseconds = self._redis.time()
        return int(seconds) * 1000 + int(microseconds) // 1000

    def cancel(self, job: str, why: str = "", revoked: str = "") -> tuple[JobState, bool]:
        """Stop a job's new calls; return its previous state, and whether it only needs to be finished now.

        `why` is shown with the job from then on. Open calls end and count; cancelling twice, or after the end, changes
        nothing. With `revoked`, whoever waits for the result gets Celery's `TaskRevokedError` with this text instead of
        the report. A job whose finishing has failed is given up: it ends as cancelled, with what can be read of its
        results. Raises `UnknownJob`.
        """
        k = self._keys
        lanes = self._redis.hget(k.job(job), "lanes")
        if lanes is None:
            raise UnknownJob(job)
        deferred = [m for m, _ in self._redis.zscan_iter(k.due, match=f"{job}|*", count=1000)]
        state, finish = self._cancel(
            keys=[k.job(job), k.base.job_limits, k.pages(job), k.due, k.base.clock, k.unfinished],
            args=["", job, len(orjson.loads(lanes)), secrets.token_hex(8), revoked, why, *deferred],
        )
        return JobState(state), bool(finish)

    def job_of_task(self, task_id: str) -> str:
        """Return the job whose result is waited for under a task id: its own, or one that a canvas has assigned. Raises
        `UnknownJob`."""
        if self._redis.exists(self._keys.job(task_id)):
            return task_id
        job = self._redis.get(self._keys.alias(task_id))
        if job is None or not self._redis.exists(self._keys.job(job)):
            raise UnknownJob(task_id)
        return str(job)

    def is_revoked(self, job: str) -> bool:
        """Return whether a job was cancelled by being revoked."""
        return bool(self._redis.hexists(self._keys.job(job), "revoked"))

    def revoke_unit(self, ref: PageRef, token: MessageId) -> list[UnitState]:
        """Have a message's units that are not being called end without a call; return what becomes of each.

        Raises `UnknownJob` if the ledger does not hold this incarnation of the job, or it has no such lane.
        """
        k = self._keys
        incarnation, text = self._redis.hmget(k.job(ref.job), "incarnation", "lanes")
        lanes = read_lanes(text) if text and incarnation == ref.incarnation else []
        if not ref.lane < len(lanes):
            raise UnknownJob(ref.job)
        positions = token.positions(lanes[ref.lane])
        tokens = dict.fromkeys([str(token), *map(str, positions)])
        keys = [k.job(ref.job), k.page(ref), k.due, k.base.clock]
        verdicts = self._revoke_unit(keys=keys, args=["", f"{ref}|", k.base.node(""), len(tokens), *tokens, *positions])
        return [UnitState(verdict) for verdict in verdicts]

    def resume(self, job: str, caps: Mapping[str, str] = MappingProxyType({})) -> JobState:
        """Have the units of an ended job that have no score judged again, with other `caps` where it has some; return
        its previous state, which may forbid it.

        Nothing is sent yet. Raises `UnknownJob`.
        """
        k = self._keys
        lanes, incarnation = self._redis.hmget(k.job(job), "lanes", "incarnation")
        if lanes is None:
            raise UnknownJob(job)
        keys = [k.job(job), k.unfinished, k.base.clock, k.items(job), k.asking(job, incarnation or ""), k.kept(job)]
        args = ["", job, len(orjson.loads(lanes)), self._intervals.unattended_ms, secrets.token_hex(8)]
        args += [part for pair in caps.items() for part in pair]
        return JobState(self._resume(keys=keys, args=args))

    def batches(self) -> list[BatchRecord]:
        """Return the batches at providers, and those on their way there, oldest first."""
        return list_batches(self._redis, self._keys)

    def batches_over(self) -> list[dict[str, Any]]:
        """Return the summaries of the last batches that are over, newest first."""
        return list_batches_over(self._redis, self._keys)

    def went_online(self, job: str) -> list[RoadChange]:
        """Return where units of a job's road `auto` went online, and why."""
        return list_changes(self._redis, self._keys, job, self.incarnation(job) or "")

    def cancel_batch(self, name: str) -> bool:
        """Have a batch cancelled; False if there is none of this name. What was done of it counts; its other units go
        into a later batch, unless their job is cancelled."""
        return cancel_batch(self._redis, self._keys, name)

    def incarnation(self, job: str) -> str | None:
        """Return which of the jobs of this id the ledger holds; None if it holds none, or a lost one."""
        stored = self._redis.hget(self._keys.job(job), "incarnation")
        return None if stored is None else str(stored)

    def delete(self, job: str, incarnation: str = "") -> str:
        """Forget an ended job, or only that `incarnation` of it, which frees its id.

        Returns its previous state, which may forbid it; 'unannounced' if those who wait for its result have not been
        notified yet; or '' if there is no such job.
        """
        k = self._keys
        keys = [
            k.job(job), k.items(job), k.pages(job), k.board(job), k.continuations(job), k.trouble(job),
            k.asking(job, incarnation or self.incarnation(job) or ""), k.jobs, k.unfinished, k.bounded, k.outbox,
            k.kept(job),
        ]  # fmt: skip
        before = str(self._redis.hget(k.job(job), "state") or "") if incarnation in ("", self.incarnation(job)) else ""
        # An empty reply means that it is gone: by this very request, if its first answer was lost.
        return str(self._delete(keys=keys, args=[job, incarnation])) or before

    def may_spread(self, for_ms: int) -> bool:
        """Return whether the caller should look for work that waits at busy nodes; for `for_ms` nobody else should."""
        mine = secrets.token_hex(8)
        return bool(self._lead(keys=[self._keys.base.spread, self._keys.base.clock], args=["", mine, for_ms, 0]))

    def open_calls(self) -> dict[str, int]:
        """Return the number of calls open now: 'all', 'p:<pool>', 'j:<job>'."""
        return {field: int(n) for field, n in self._redis.hgetall(self._keys.base.open).items()}


def _pools_of(lanes: str) -> list[str]:
    return list(dict.fromkeys(pool for lane in orjson.loads(lanes) for pool in lane["pools"]))


def _status(job: str, fields: dict[str, str], waits_for: str | None) -> JobStatus:
    def whole(name: str) -> int | None:
        return int(fields[name]) if name in fields else None

    report = orjson.loads(fields["report"]) if "report" in fields else None
    places = read_places(fields.get("places"))
    cost = cost_of(read_books(fields, [""] * len(places), places) if places else ())
    money = JobMoney.from_record(fields, places).sentence()
    return JobStatus(
        id=job,
        state=JobState(fields["state"]),
        project=fields["project"],
        units=int(fields["units"]),
        counters={name: int(fields.get(name, 0)) for name in COUNTERS} | _units_of(report, whole("done") or 0),
        limit=whole("limit"),
        created_ms=int(fields["created_ms"]),
        started_ms=whole("started_ms"),
        finished_ms=whole("finished_ms"),
        report=report,
        waits_for=None if JobState(fields["state"]).ended else waits_for,
        answered=_question_summary(fields),
        money=money,
        spent=cost.spent(),
        unpriced=cost.unpriced,
        cost="; ".join([money, *cost.besides()]) if money else cost.sentence(),
    )


def _units_of(report: dict[str, Any] | None, done: int) -> dict[str, int]:
    """Return the counts of units by an ended job's report, where the ledger's differ: it does not count what a resumed
    job had before and did not come to again, and counts what lay in pages that were damaged."""
    if report is None or "missing" not in report or report["units"] - report["missing"] == done:
        return {}
    counts = {name: int(report.get(name, 0)) for name in ("scored", "failed", "spared")}
    return {"done": report["units"] - report["missing"], **counts}


def _question_summary(fields: dict[str, str]) -> str | None:
    recorded = orjson.loads(fields["report"]).get("answer") if "report" in fields else None
    if recorded is None and "answer" in fields:
        recorded = orjson.loads(fields["answer"])
    return JobAnswer.model_validate(recorded).sentence() if recorded is not None else None
