"""The verdict on a world at rest: outcomes, and the report's books against the provider's own.

Where no process died, was silent or was cut off, books are equal to the call and to the token. Else they may lack what
those processes had not recorded: no more calls are told than were made, and at most as many are missing as were in
their hands.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import orjson

from dicast.app.domain.cost import read_books
from dicast.app.domain.escalation import is_settled, stages_of, standard_error
from dicast.app.ledger.batches import list_batches_over
from dicast.app.ledger.keys import LedgerKeys
from dicast.app.ledger.records import JobState
from lab.chaos.virtual.account import AccountBatch
from lab.chaos.virtual.jobs import SimJob, charge_of
from lab.chaos.virtual.provider import score_of
from lab.chaos.virtual.server import OWN
from lab.chaos.virtual.world import VirtualCall, VirtualPlace, World

ANSWERED = frozenset({"good", "spoilt", "part"})
SPENDING = frozenset({"spoilt", "part", "hung"})
UNHEARD = frozenset({"hung", "cut"})
UNSURE = ("unknown", "unheard_cost", "reserved_cost")
MONEY = frozenset({"spent", "reserved_tokens", "reserved_calls", "unheard_tokens", "unheard_calls", *UNSURE})
FORGOTTEN = "forgotten"
"""How a call ends that was made in a batch whose creation nobody had confirmed, and that was sent again."""
STATUS = {"good": 200, "spoilt": 200, "part": 200, "refused": 429, "hung": 0}
_BY_CALL = re.compile(r"call (\d+)")
_DIGITS = re.compile(r"\d+")


@dataclass(frozen=True)
class Allowed:
    """What a world allows besides: jobs that end `cancelled`; units that fail for one of `errors`; work that is done
    `again`, its completion too, though no process died, because the store has lost that it was; `late` results of
    another job."""

    cancelled: bool = False
    errors: frozenset[str] = frozenset()
    again: bool = False
    late: bool = False


def check(world: World, job: SimJob, allowed: Allowed) -> Iterator[str]:
    """All that is wrong with one ended job."""
    record = world.client.hgetall(LedgerKeys(world.keys).job(job.id))
    if allowed.again and record["state"] == JobState.LOST and job.id in world.lost_jobs:
        return
    if world.completions[job.id] > (2 if allowed.again else 1):
        yield f"one completion: completed {world.completions[job.id]} times"
    report = world.announced.get(job.id)
    if report is None:
        yield "one completion: the completion was not announced"
        return
    opinions, errors = (_lines(report["files"][name]) for name in ("opinions_jsonl", "errors_jsonl"))
    yield from _outcomes(job, record, report, opinions, errors, allowed)
    yield from _answer(job, record, report, opinions)
    yield from _answers(world, job, opinions, allowed)
    yield from _panel(world, job, opinions)
    yield from _chief(world, job, opinions, allowed)
    yield from _told(world, job, record, report, opinions, allowed)
    if not allowed.again:
        yield from _money(world, job, record)


def _lines(path: str) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in Path(path).read_bytes().splitlines()]


# ---------------------------------------------------------------------------------------------------- outcomes
def _outcomes(
    job: SimJob, record: dict[str, str], report: dict[str, Any], opinions: list[dict[str, Any]],
    errors: list[dict[str, Any]], allowed: Allowed,
) -> Iterator[str]:  # fmt: skip
    cancelled = record["state"] == JobState.CANCELLED
    places = Counter((o["item_id"], o["judge"], o["criterion_id"], o["replicate"]) for o in opinions)
    if twice := [p for p, n in places.items() if n > 1]:
        yield f"one outcome: two opinions of {twice[:3]}"
    if cancelled and not allowed.cancelled:
        yield "one outcome: cancelled by nobody"
    if not cancelled and len(places) != (asked := job.units - report["unpublished"]):
        yield f"one outcome: {len(places)} opinions for {asked} units"
    spared = sum(o.get("not_needed", False) for o in opinions)
    failed = sum(o["score"] is None for o in opinions) - spared
    if len(errors) != failed:
        yield f"one outcome: {len(errors)} errors for {failed} opinions without a score"
    kinds = allowed.errors | {"cancelled"} if cancelled else allowed.errors
    kinds = kinds | {"capped"} if "capped" in record else kinds
    if wrong := [e for e in errors if e["kind"] not in kinds and not _unheard(job, e, opinions)]:
        yield f"one outcome: {len(wrong)} units failed: {wrong[0]['kind']}: {wrong[0]['message']}"
    scored = len(opinions) - failed - spared
    expected = {"done": len(opinions), "scored": scored, "failed": failed, "spared": spared}
    if (found := {name: int(record.get(name, 0)) for name in expected}) != expected:
        yield f"counts: the ledger counts {found}, the files hold {expected}"
    if (report["scored"], report["failed"], report["spared"]) != (scored, failed, spared):
        yield f"counts: the report has {report['scored']} scored, {report['failed']} failed; the files hold {expected}"


def _unheard(job: SimJob, error: Mapping[str, Any], opinions: Sequence[Mapping[str, Any]]) -> bool:
    """Whether it is of a chief who was not asked, as nobody else had an opinion."""
    if error["judge"] != job.job.chief or error["kind"] != "not_asked":
        return False
    place = error["item_id"], error["criterion_id"]
    return not any(
        (o["item_id"], o["criterion_id"]) == place and o["judge"] != job.job.chief and o["score"] is not None
        for o in opinions
    )


def _answer(
    job: SimJob, record: dict[str, str], report: dict[str, Any], opinions: list[dict[str, Any]]
) -> Iterator[str]:
    """A job with a question ends early because of its one answer, and that rests on the first items in their order."""
    answer = report["answer"]
    if job.job.is_capped or "capped" in record:
        if report["unpublished"] and "capped" not in record:
            yield f"caps: {report['unpublished']} units unpublished, and no cap is met"
        return
    if job.job.question is None or answer is None:
        if report["unpublished"] or answer is not None or job.job.question is not None:
            yield f"one answer: {report['unpublished']} units unpublished, the answer is {answer}"
        return
    told = orjson.loads(record["answer"])["state"] if "answer" in record else None
    if report["unpublished"] and told is None:
        yield f"one answer: {report['unpublished']} units unpublished without an answer"
    first = [f"i{n}" for n in job.order[: answer["items"] + answer["missing"]]]
    found = {opinion["item_id"] for opinion in opinions}
    if lacking := [name for name in first if name not in found]:
        yield f"one answer: it rests on {len(first)} items, of which {lacking[:3]} were not judged"
    is_open = answer["state"] == "open" and answer["items"] > 0  # of no scored item nothing can be said
    if record["state"] == JobState.COMPLETED and is_open and len(opinions) == job.units:
        yield "one answer: all is judged, and the question is open"


def _panel(world: World, job: SimJob, opinions: list[dict[str, Any]]) -> Iterator[str]:
    """Who was not needed was not called, and what the panel says without him is what all would have said or, by an
    uncertainty, was certain enough."""
    names = {agent.name: n for n, agent in enumerate(job.job.agents)}
    called = {place for call in world.calls for place in call.places}
    given: dict[tuple[int, int], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    short, failed = set(), set()
    for opinion in opinions:
        item, dimension = (int(_DIGITS.findall(opinion[name])[0]) for name in ("item_id", "criterion_id"))
        if opinion.get("not_needed"):
            short.add((item, dimension))
            place = VirtualPlace(job.text, item, names[opinion["judge"]], dimension, opinion["replicate"])
            if place in called:
                yield f"panel: {place} was not needed, and was called"
        elif opinion["score"] is None:
            failed.add((item, dimension))
        else:
            given[item, dimension][opinion["judge"]].append(opinion["score"])
    for item, dimension in short - failed:
        if not _as_all_say(job, item, dimension, given[item, dimension]):
            yield f"panel: item {item}, dimension {dimension}: {dict(given[item, dimension])} says another than all"
    *first, last = names
    for item, dimension in given.keys() - short - failed:
        escalates = job.job.panel_of(job.job.dimensions[dimension]).escalate is not None and stages_of(job.job)[-1]
        if not escalates or len(given[item, dimension]) < len(names):
            continue
        before = {name: given[item, dimension][name] for name in first}
        if _settled(job, dimension, before):
            yield f"panel: item {item}, dimension {dimension}: {last} was called, and {before} had settled it"


def _as_all_say(job: SimJob, item: int, dimension: int, given: Mapping[str, Sequence[float]]) -> bool:
    rule = job.job.panel_of(job.job.dimensions[dimension])
    if rule.escalate is not None and not rule.escalate.lossless:
        return _settled(job, dimension, given)
    full = {
        agent.name: float(score_of(VirtualPlace(job.text, item, number, dimension)))
        for number, agent in enumerate(job.job.agents)
    }
    return rule.combined({name: fmean(own) for name, own in given.items()}) == rule.combined(full)


def _settled(job: SimJob, dimension: int, given: Mapping[str, Sequence[float]]) -> bool:
    """Whether those who are not `given` need not be asked."""
    of, left = job.job.dimensions[dimension], [agent.name for agent in job.job.agents if agent.name not in given]
    scores, errors = ({name: tell(own) for name, own in given.items()} for tell in (fmean, standard_error))
    return is_settled(job.job.panel_of(of), scores, left, of.scale, errors)


def _chief(world: World, job: SimJob, opinions: list[dict[str, Any]], allowed: Allowed) -> Iterator[str]:
    """A chief has answered with all opinions of the others before it, as they stand in the files, and no others."""
    said: dict[tuple[str, str], set[int]] = defaultdict(set)
    for opinion in opinions:
        if opinion["judge"] != job.job.chief and opinion["score"] is not None:
            said[opinion["item_id"], opinion["criterion_id"]].add(int(_DIGITS.findall(opinion["argument"])[0]))
    for opinion in opinions:
        if opinion["judge"] != job.job.chief or opinion["score"] is None or allowed.again:
            continue
        call = world.calls[int(_DIGITS.findall(opinion["argument"])[0])]
        before = set().union(*(said[opinion["item_id"], f"d{place.dimension}"] for place in call.places))
        if not before or call.heard != before:
            yield f"chief: call {call.number} was told of {sorted(call.heard)}, and the others said {sorted(before)}"
        if opinion.get("dissent") is None:
            yield f"chief: call {call.number} has no dissent"


def _answers(world: World, job: SimJob, opinions: list[dict[str, Any]], allowed: Allowed) -> Iterator[str]:
    """Each opinion is the answer of one call that asked for it, at that call's price."""
    told: Counter[int] = Counter()
    numbers = {agent.name: n for n, agent in enumerate(job.job.agents)}
    for opinion in opinions:
        if opinion["score"] is None:
            continue
        found = _BY_CALL.fullmatch(opinion["argument"])
        item, dimension = (int(_DIGITS.findall(opinion[name])[0]) for name in ("item_id", "criterion_id"))
        place = VirtualPlace(job.text, item, numbers[opinion["judge"]], dimension, opinion["replicate"])
        if found is None or place not in world.calls[int(found[1])].places:
            yield f"one outcome: {place} was given {opinion['argument']!r}"
            continue
        call = world.calls[int(found[1])]
        told[call.number] += opinion["usage"]["input_tokens"]
        spent = sum(
            c.ending in SPENDING and place in c.places and not (c.ending == "part" and place in c.told)
            for c in world.calls[: call.number]
        )  # fmt: skip
        if opinion["attempts"] != spent + 1 and not world.excused[place] and not allowed.again:
            yield f"counts: {place} tells of {opinion['attempts']} attempts, {spent} were spent before"
    for number, tokens in told.items():
        took = world.calls[number].usage.input_tokens
        if tokens > took or (tokens < took and not allowed.again):  # a page that was lost held a part of its opinions
            yield f"counts: call {number} took {took} tokens, its opinions tell {tokens}"


# ---------------------------------------------------------------------------------------------------- the books
def _told(
    world: World, job: SimJob, record: dict[str, str], report: dict[str, Any], opinions: list[dict[str, Any]],
    allowed: Allowed,
) -> Iterator[str]:  # fmt: skip
    calls = calls_of(world, job)
    once = job.job.spend == "at_most_once"
    made = totals(calls, once=once)
    found = {name: int(record.get(name, 0)) for name in made}
    excused = totals([call for call in calls if call.excused], once=once)
    unmade = unmade_requests(world, job)
    for name, count in made.items():
        if allowed.again:  # nobody knows what the store has lost
            continue
        # A caller that woke late may have taken for a timeout what the provider had answered.
        late = excused["calls"] if name in ("retries", "timeouts", "calls_without_answer") else 0
        late += unmade if name in ("retries", "requeues") else 0
        late += world.written_off[job.id] if name in ("calls", "retries", "calls_without_answer") else 0
        if not count - excused[name] <= found[name] <= count + late:
            unsure = f", {excused[name]} of them excused" if excused[name] else ""
            yield f"counts: {name} is {found[name]}, the provider has {count}{unsure}"
    known = sum(call.ending != FORGOTTEN for call in calls)
    if known > found["calls"] + report["calls_unreported"] and not allowed.again:
        yield (
            f"counts: the provider has {known} calls, {found['calls']} are told and "
            f"{report['calls_unreported']} are said to be possible"
        )
    if differ := {n: (report[n], found[n]) for n in made if n in report and report[n] != found[n]}:
        # The silent may bring their answers when the report is written.
        if not excused["calls"] or any(said > kept for said, kept in differ.values()):
            yield f"counts: the report and the ledger differ: {differ}"
    tokens = sum(o["usage"]["input_tokens"] for o in opinions)
    if report["input_tokens"] != tokens:
        yield f"counts: the report tells of {report['input_tokens']} tokens, its opinions of {tokens}"
    silent = world.excused_messages[job.id]
    for counter in ("stale", "lost"):
        unsure = silent or allowed.again or (allowed.late and counter == "stale")
        if int(record.get(counter, 0)) > (len(world.calls) + silent if unsure else 0):
            yield f"counts: {counter} is {record[counter]}, and no process died"
    if not allowed.again:
        again = world.sent_again[job.id] + world.written_off[job.id]
        yield from _doubles(calls, int(record.get("possible_double_charges", 0)), silent, again, once=once)
    for place in {place for call in calls for place in call.places}:
        paid = sum(call.ending == "good" and place in call.places for call in calls)
        if paid > 1 + world.excused[place] and not allowed.again:
            yield f"spending: {place} was paid {paid} times, {world.excused[place]} excused"


def _money(world: World, job: SimJob, record: Mapping[str, str]) -> Iterator[str]:
    """What the provider charges is never beyond a cap, and what the books say it is, but for calls of which nobody
    could tell; what these may cost bounds the difference."""
    calls = calls_of(world, job)
    invoice = sum(charge_of(call) for call in calls)
    charged = {
        "max_cost": invoice,
        "max_tokens": sum(call.usage.input_tokens + call.usage.output_tokens for call in calls),
        "max_calls": len(calls),
    }
    found = {name: int(value) for name, value in record.items() if name in MONEY}
    for cap, amount in charged.items():
        if amount > int(record.get(cap, amount)):
            yield f"caps: {amount} charged of {cap} {record[cap]}"
    spent, books = found.get("spent", 0), read_books(record, [a.name for a in job.job.agents], ())
    if spent != (in_books := sum(line.spending.spent for line in books)):
        yield f"money: {spent} spent, and {in_books} by the judges' books"
    told = sum(charge_of(call) for call in calls if not call.excused)
    if not told - sum(charge_of(call) for call in calls if call.ending in UNHEARD) <= spent <= invoice:
        yield f"money: {spent} spent, the invoice is {invoice}, of which {told} could be told"
    if job.job.is_capped and invoice > spent + sum(found.get(name, 0) for name in UNSURE):
        yield f"money: {invoice} charged, {spent} spent and {[found.get(name, 0) for name in UNSURE]} unsure"
    if any(value < 0 for value in found.values()):
        yield f"money: {found}"


def _doubles(calls: list[VirtualCall], told: int, silent: int, again: int, *, once: bool) -> Iterator[str]:
    """A call that was made again is told, if nobody heard how it had ended; others are not. `again` were sent again in
    a batch."""
    unheard = sum(call.ending == "hung" for call in calls if not call.excused and not once)
    killed = sum(
        call.ending == "killed" and any(set(call.places) & set(c.places) for c in calls if c.number > call.number)
        for call in calls
    )
    forgotten = sum(call.ending == FORGOTTEN for call in calls if not once)
    excused = sum(call.excused for call in calls)
    cut = sum(call.ending == "cut" for call in calls)  # taken to be made again where the store could not be asked
    if not unheard + killed + forgotten <= told <= unheard + excused + silent + cut + again:
        yield (
            f"counts: possible_double_charges is {told}; {unheard} calls were cut, {killed} of the dead made again, "
            f"{silent} messages were in the hands of the silent, {forgotten} calls of batches were forgotten, {again} "
            "sent again"
        )


def calls_of(world: World, job: SimJob) -> list[VirtualCall]:
    return [call for call in world.calls if call.places[0].text == job.text]


def totals(calls: list[VirtualCall], *, once: bool) -> dict[str, int]:
    """What a job's books should say of these calls."""
    return {
        "calls": len(calls),
        "retries": 0 if once else sum(call.ending in SPENDING for call in calls),
        "requeues": sum(call.ending == "refused" for call in calls),
        "timeouts": sum(call.ending == "hung" for call in calls),
        "calls_without_answer": sum(call.ending in UNHEARD for call in calls),
        "tokens_in": sum(call.usage.input_tokens for call in calls),
        "tokens_out": sum(call.usage.output_tokens for call in calls),
    }


def check_pools(world: World, pools: tuple[str, ...]) -> Iterator[str]:
    """The governor was told of each call's end once. Only where no process died.

    A request for a lease that comes again late is granted again, to nobody, until its time is over. If what has ended
    that lease comes again later still, its end is told twice: of that the pool's counters know nothing.
    """
    twice = _ended_twice(world)
    for pool in pools:
        counters = world.client.hgetall(world.keys.counters(pool))
        made = [call for call in world.calls if call.pool == pool and call.batch is None]
        for status in set(STATUS.values()):
            count = sum(STATUS.get(call.ending) == status for call in made)
            again = sum(of == status for of, _ in twice[pool])
            if not count <= (told := float(counters.get(f"status:{status}", 0))) <= count + again:
                yield f"counts: pool {pool} was told of {told:g} ends with {status}, not {count}"
        tokens = sum(call.usage.input_tokens for call in made if call.ending in ANSWERED)
        again = sum(input_tokens for _, input_tokens in twice[pool])
        if not tokens <= float(counters.get("input_tokens", 0)) <= tokens + again:
            yield f"counts: pool {pool} was told of {counters.get('input_tokens')} tokens, not {tokens}"


def _ended_twice(world: World) -> dict[str, list[tuple[int, int]]]:
    """Return, by pool, status and input tokens of the leases that may have been granted and ended once more by what
    came again."""
    wanted: set[str] = set()
    ended: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for command in world.echoed:
        if world.server.named(command) != "admit":
            continue
        arguments = command[3 + int(command[2]) :]
        for lease, _, *outcome in orjson.loads(arguments[5]):
            if outcome and lease in wanted:
                ended[arguments[1].decode()].append((outcome[0], outcome[1]))
        wanted.update(want[0] for want in orjson.loads(arguments[6]))
    return ended


# ---------------------------------------------------------------------------------------------------- batches
def own_batches(world: World) -> list[AccountBatch]:
    """All batches that were created at the world's accounts, but for those of others."""
    return [batch for account in world.accounts.values() for batch in account.batches.values() if not batch.foreign]


def check_batches(world: World) -> Iterator[str]:
    """Each batch at the provider is known and settled, or cancelled, or refused; one that was not listed in time is
    sent again, and its requests are told as possibly charged twice. What was called in such a one is nobody's."""
    over = {summary["provider_id"] for summary in list_batches_over(world.client, LedgerKeys(world.keys))}
    for batch in own_batches(world):
        if batch.id in over or batch.status == "failed":
            continue
        jobs = {world.texts[call.places[0].text].id for call in batch.calls}
        again = world.sent_again + world.written_off
        if batch.cancelled_at is None and not again:
            yield f"orphans: {batch.id} ({batch.identity}) is known to nobody, {len(batch.calls)} calls are charged"
        if without := [job for job in jobs if not again[job]]:
            yield f"orphans: {batch.id} ({batch.identity}) was not settled, and nothing of job {without[0]} sent again"
        for call in batch.calls:
            call.ending, call.excused = FORGOTTEN, True
            world.excused.update(call.places)


def unmade_requests(world: World, job: SimJob) -> int:
    """How many requests of a job's batches were not called, because these were cancelled or not done in time."""
    text = f"JOB {job.text};"
    return sum(
        custom_id not in batch.made and text in f"{body['system']} {body['user']}"
        for batch in own_batches(world)
        for custom_id, body in batch.requests.items()
    )


# ---------------------------------------------------------------------------------------------------- what is left
WHEN_AND_WHO = frozenset({"created_ms", "began_ms", "started_ms", "finished_ms", "report", "finisher", "submitter",
                          "starter", "completer", "incarnation"})  # fmt: skip
PASSING = frozenset({"governor", "events", "clock", "epoch", "rates", "waiting", "short", "beat", "node", "nodes",
                     "counters", "due", "taken", "known_pools", "trouble"})  # fmt: skip
"""Keys whose contents tell of time and of who did what: two runs of one world may differ there."""


def state_of(world: World) -> dict[str, Any]:
    """What the store holds, without what time and chance have part in."""
    found: dict[str, Any] = {}
    for key in world.client.keys("*"):
        name = key.partition(":")[2].partition(":")[0]
        if key in OWN or name in PASSING:
            continue
        match world.client.type(key):
            case "hash":
                fields = world.client.hgetall(key).items()
                kept = {k: v for k, v in fields if k not in WHEN_AND_WHO and not k.startswith("planning:")}
                found[key] = _without_deployments(kept)
            case "zset":
                found[key] = sorted(world.client.zrange(key, 0, -1))
            case "set":
                found[key] = sorted(world.client.smembers(key))
            case "string":
                found[key] = world.client.get(key)
            case "list":
                found[key] = world.client.lrange(key, 0, -1)
    return found


def _without_deployments(fields: Mapping[str, str]) -> dict[str, Any]:
    """Return a record's fields, with what calls cost added up over the deployments of each judge, since chance chooses
    among these."""
    merged: dict[str, Any] = {}
    for name, value in fields.items():
        if name.startswith("b:"):
            place, _, part = name.removeprefix("b:").partition(":")
            agent, _, day = place.split(".")
            key = f"b:{agent}.{day}:{part}"
            merged[key] = merged.get(key, 0) + int(value)
        else:
            merged[name] = value
    return merged
