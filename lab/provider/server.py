"""The simulated provider with an account behind it: it keeps real limits, misbehaves on demand, and counts its calls.

    POST .../chat/completions, POST .../messages     the APIs, under any prefix
    POST /control   {"cap": 3, "faults": {"cut": 0.1}, "model": "m", "reset": true}: change behaviour, forget counts
                    {"answer": true}: let the calls that are open, and well so far, wait no longer for their answers
    GET  /control   the behaviour in force
    GET  /stats     counts so far      GET /log?after=N   every request, oldest first
    Files, batches and the invoice: lab/provider/batches.py

A call is open from the moment its body is read until its answer is out or the caller has hung up; of a provider that is
`deaf`, until its answer would be out. Refused calls are open too, but not served: the cap counts those being served.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import orjson
from aiohttp import web

from dicast.app.providers.simulated import (
    JSON,
    BadRequest,
    ParsedCall,
    SimulatedAnswer,
    SimulatedJudge,
    SimulatedProvider,
    WireFormat,
    answer,
    nonce_of,
    tokens_of,
)
from lab.provider import faults, features
from lab.provider.account import Behaviour, ConfigError, Limits, Rejection, SimulatedConfig, Step
from lab.provider.batches import BatchServer, Invoice, Made
from lab.provider.budgets import DIALECTS
from lab.provider.faults import ANSWER_FAULTS, BATCH_FAULTS, BODY_FAULTS, END_FAULTS
from lab.provider.perception import Biases, PerceivingJudge, Perception
from lab.provider.wire import AccountFormat, AnthropicAccount, OpenAIAccount, ResponsesAccount


class CallMeter:
    """Calls open and being served over time, beside the capacity offered. Times are seconds on one steady clock."""

    def __init__(self) -> None:
        self.open = 0
        self.serving = 0
        self.reset()

    def reset(self) -> None:
        """Forget the past; what is open stays open."""
        self.most_open = self.open
        self.most_serving = self.serving
        self.used_s = 0.0
        self.offered_s = 0.0
        self._cap = 0
        self._at: float | None = None

    def arrive(self, now: float, cap: int | None) -> None:
        self.advance(now, cap)
        self.open += 1
        self.most_open = max(self.most_open, self.open)

    def serve(self) -> None:
        """Count the call that has just arrived as accepted."""
        self.serving += 1
        self.most_serving = max(self.most_serving, self.serving)

    def leave(self, now: float, cap: int | None, *, served: bool) -> None:
        self.advance(now, cap)
        self.open -= 1
        self.serving -= served

    def advance(self, now: float, cap: int | None) -> None:
        """Add up what was used and offered since the last change; without a cap nothing is offered."""
        if self._at is not None and self._cap:
            self.used_s += self.serving * (now - self._at)
            self.offered_s += self._cap * (now - self._at)
        self._at, self._cap = now, cap or 0


class CallRecord:
    """Counters, and a bounded log of every request, also written to a file as one JSON object a line.

    Tests and benchmarks rely on this record of what the provider has seen, not on what the callers report.
    """

    def __init__(self, size: int, path: str | None) -> None:
        self._size = size
        self._file = None if path is None else Path(path).open("ab", buffering=0)  # noqa: SIM115  closed by close()
        self.reset()

    def reset(self) -> None:
        self.entries: deque[dict[str, Any]] = deque(maxlen=self._size)
        self.statuses: Counter[int] = Counter()
        self.refusals: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.tokens: Counter[str] = Counter()
        self.calls = 0
        self.accepted = 0

    def begin(self, entry: dict[str, Any]) -> None:
        self.calls += 1
        entry["number"] = self.calls
        self.entries.append(entry)

    def end(self, entry: dict[str, Any]) -> None:
        """Record that a request has ended. Status 0: the caller hung up before an answer."""
        self.statuses[entry["status"]] += 1
        if self._file:
            self._file.write(orjson.dumps(entry) + b"\n")

    def counts(self) -> dict[str, Any]:
        return {
            "calls": self.calls,
            "accepted": self.accepted,
            "by_status": {str(status): count for status, count in sorted(self.statuses.items())},
            "refusals": dict(self.refusals),
            "faults": dict(self.faults),
            "tokens": {kind: self.tokens[kind] for kind in ("input", "output", "charged", "cached", "written")},
        }

    def close(self) -> None:
        if self._file:
            self._file.close()
            self._file = None


_FAILURES = (500, 502, 503, 504)
_LONGEST_FAILURE_S = 2.0
_ANSWERS_KEPT = 100
_OPENAI, _RESPONSES, _ANTHROPIC = OpenAIAccount(), ResponsesAccount(), AnthropicAccount()
_FORMATS: Mapping[str, AccountFormat] = {api.name: api for api in (_OPENAI, _RESPONSES, _ANTHROPIC)}


class _Lane:
    """The limits of one model, or of all models without limits of their own."""

    def __init__(self, behaviour: Behaviour, now: float) -> None:
        self.meter = CallMeter()
        self.behaviour = behaviour
        self._unix_s = time.time() - now
        self.limits = Limits(behaviour, now, self._unix_s)

    def change(self, changes: Mapping[str, Any], now: float) -> None:
        """Change the behaviour from now on. Buckets are filled anew only if their sizes have changed."""
        before, self.behaviour = self.behaviour, self.behaviour.changed(changes)
        self.meter.advance(now, self.behaviour.cap)
        sizes = ("rpm", "tpm", "output_tpm", "quantum", "burst", "ramp", "budgets")
        if any(getattr(before, name) != getattr(self.behaviour, name) for name in sizes):
            self.limits = Limits(self.behaviour, now, self._unix_s)


class SimulatedAccount(SimulatedProvider):
    """The server, in this process: `async with SimulatedAccount(config) as sim: ... sim.base_url`."""

    openai = _OPENAI
    responses = _RESPONSES
    anthropic = _ANTHROPIC

    def __init__(self, config: SimulatedConfig | None = None, *, host: str = "127.0.0.1", port: int = 0) -> None:
        self.config = config or SimulatedConfig()
        super().__init__(seed=self.config.seed, api_key=self.config.api_key, host=host, port=port)
        self._random = random.Random(self.config.seed)
        self._record = CallRecord(self.config.log_size, self.config.log_file)
        self._total = CallMeter()
        self._prefixes = features.PrefixCache()
        self._good_answers = 0
        self._answers: deque[tuple[str | None, str]] = deque(maxlen=_ANSWERS_KEPT)
        self._waiting: set[asyncio.Future[None]] = set()
        self._deaf_calls: set[asyncio.Task[web.StreamResponse]] = set()
        self.invoice = Invoice()
        self._batches = BatchServer(
            formats={"openai": _OPENAI, "anthropic": _ANTHROPIC}, behaviour=lambda: self._default.behaviour,
            make=self._make, invoice=self.invoice, random=random.Random(self.config.seed),
        )  # fmt: skip

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._started, self._started_unix_s = self._loop.time(), time.time()
        self._default = _Lane(self.config.behaviour, self._started)
        self._lanes = {model: _Lane(behaviour, self._started) for model, behaviour in self.config.models.items()}
        self._steps = sorted((step for step in self.config.steps if step.answers is not None), key=_at_answers)
        self._timers = [
            self._loop.call_later(step.seconds, self._default.change, step.changes, self._started + step.seconds)
            for step in self.config.steps
            if step.seconds is not None
        ]
        return await super().__aenter__()

    async def __aexit__(self, *_: object) -> None:
        for timer in self._timers:
            timer.cancel()
        await super().__aexit__()
        for call in self._deaf_calls:
            call.cancel()
        await asyncio.gather(*self._deaf_calls, return_exceptions=True)
        await self._batches.close()
        self._record.close()

    def stats(self) -> dict[str, Any]:
        """Return counts since the start or the last reset. `capacity_used` is the share of the capped capacity in
        use."""
        now = self._loop.time()
        lanes = {"": self._default, **self._lanes}
        for lane in lanes.values():
            if lane.meter.open:
                lane.meter.advance(now, lane.behaviour.cap)
        meters = {model: lane.meter for model, lane in lanes.items()}
        offered_s = sum(meter.offered_s for meter in meters.values())
        used_s = sum(meter.used_s for meter in meters.values())
        return {
            **self._record.counts(),
            "batches": self._batches.counts(),
            "open": self._total.open,
            "max_open": self._total.most_open,
            "serving": self._total.serving,
            "max_serving": self._total.most_serving,
            "capacity_used": used_s / offered_s if offered_s else None,
            "uptime_s": now - self._started,
            "started_unix_s": self._started_unix_s,
            "models": {
                model: {"open": meter.open, "max_open": meter.most_open, "max_serving": meter.most_serving}
                for model, meter in meters.items()
                if model
            },
        }

    def log(self, after: int = 0) -> list[dict[str, Any]]:
        """Return requests with a number above `after`. Times are seconds since the start; `end` is None while open."""
        return [entry for entry in self._record.entries if entry["number"] > after]

    def control(self, changes: Mapping[str, Any], *, model: str = "", reset: bool = False) -> None:
        """Change the behaviour of `model`; "" means all models without their own. Raises `ConfigError`."""
        now = self._loop.time()
        if model and model not in self._lanes:
            self._lanes[model] = _Lane(self._default.behaviour.changed(changes), now)
        else:
            (self._lanes[model] if model else self._default).change(changes, now)
        if reset:
            self._record.reset()
            for meter in (self._total, *(lane.meter for lane in (self._default, *self._lanes.values()))):
                meter.reset()

    async def operate(self, request: web.BaseRequest, path: str) -> web.StreamResponse:
        body: Any
        match request.method, path:
            case "GET", "/stats":
                body = self.stats()
            case "GET", "/log":
                after = request.query.get("after", "0")
                body = self.log(int(after) if after.isdecimal() else 0)
            case "GET", "/control":
                lanes = {"": self._default, **self._lanes}
                body = {model: lane.behaviour.model_dump() for model, lane in lanes.items()}
            case "POST", "/control":
                try:
                    wish = orjson.loads(await request.content.read())
                    model, reset, answers = wish.pop("model", ""), wish.pop("reset", False), wish.pop("answer", False)
                    self.control(wish, model=model, reset=reset)
                    if answers:
                        self._answer_now()
                except (ConfigError, ValueError, AttributeError, TypeError) as error:
                    return web.Response(status=400, text=str(error))
                body = {"ok": True}
            case "GET", "/invoice":
                body = self.invoice.sums()
            case "GET", "/invoice/lines":
                lines = b"".join(orjson.dumps(line) + b"\n" for line in self.invoice.lines)
                return web.Response(body=lines, content_type=JSON)
            case _:
                return await self._of_batches(request, path) or await super().operate(request, path)
        return web.Response(body=orjson.dumps(body), content_type=JSON)

    async def _of_batches(self, request: web.BaseRequest, path: str) -> web.StreamResponse | None:
        if not self.has_key(request):
            dialect = _ANTHROPIC if "/messages/" in path else _OPENAI
            return web.Response(status=401, body=dialect.error(401, "key"), content_type=JSON)
        return await self._batches.handle(request, path)

    def _make(self, dialect: AccountFormat, body: Any, chance: random.Random) -> Made:
        """Answer one request of a batch. It gets the answer that a call would get, and none of a call's limits."""
        try:
            call = dialect.read(body)
        except (BadRequest, AttributeError, ValueError) as error:
            return Made(400, dialect.error(400, str(error)))
        behaviour = self._lanes.get(call.model, self._default).behaviour
        if chance.random() < behaviour.batch_errors:
            return Made(500, dialect.error(500, "failure"))
        spoiler = next((name for name in behaviour.faults if name in ANSWER_FAULTS and name != "swapped"), None)
        fault = spoiler if spoiler and chance.random() < behaviour.faults[spoiler] else None
        answers = self._answers_to(call, behaviour, fault)
        answer_body = dialect.reply_body(call, answers, chance.randrange(10**9))
        return Made(200, answer_body, call, sum(tokens_of(answer.text) for answer in answers))

    async def serve(self, request: web.BaseRequest, wire: WireFormat, call: ParsedCall) -> web.StreamResponse:
        """Serve a call; one of a `deaf` provider even after the caller has hung up."""
        dialect = _FORMATS[wire.name]
        lane = self._lanes.get(call.model, self._default)
        if not lane.behaviour.deaf:
            return await self._serve(request, dialect, call, lane)
        serving = self._loop.create_task(self._serve(request, dialect, call, lane))
        self._deaf_calls.add(serving)
        serving.add_done_callback(self._deaf_calls.discard)
        return await asyncio.shield(serving)

    async def _serve(
        self, request: web.BaseRequest, dialect: AccountFormat, call: ParsedCall, lane: _Lane
    ) -> web.StreamResponse:
        """Serve a call, and record its arrival and its end."""
        arrival = self._loop.time()
        self._total.arrive(arrival, None)
        lane.meter.arrive(arrival, lane.behaviour.cap)
        entry: dict[str, Any] = {
            "arrival": arrival - self._started,
            "end": None,
            "status": 0,
            "dialect": dialect.name,
            "model": call.model,
            "nonce": nonce_of(call.prompt),
            "request_id": request.headers.get("x-client-request-id"),
            "open": lane.meter.open,
            "accepted": False,
            "reason": None,
            "input_tokens": call.input_tokens,
            "output_tokens": 0,
        }
        if call.images:
            entry["images"] = call.images
        self._record.begin(entry)
        try:
            response = await self._respond(request, dialect, call, lane, entry)
            entry["status"] = response.status
            return response
        finally:
            end = self._loop.time()
            entry["end"] = end - self._started
            self._total.leave(end, None, served=entry["accepted"])
            lane.meter.leave(end, lane.behaviour.cap, served=entry["accepted"])
            self._record.end(entry)
            if entry["status"] == 200 and entry["reason"] is None:
                self._good_answer(end)

    async def _respond(
        self, request: web.BaseRequest, dialect: AccountFormat, call: ParsedCall, lane: _Lane, entry: dict[str, Any]
    ) -> web.StreamResponse:
        behaviour = lane.behaviour
        refusal = features.refusal(call.body, behaviour.refuses.split(","), behaviour.refuses_as)
        if refusal is not None:
            entry["reason"] = "parameter"
            self._record.refusals["parameter"] += 1
            return web.Response(status=refusal[0], body=refusal[1], content_type=JSON)
        rejection = self._rejection(request, dialect, call, lane)
        if rejection is not None:
            status, why = rejection
            entry["reason"] = why.reason
            self._record.refusals[why.reason] += 1
            return await self._reject(dialect, lane, status, why)
        entry["accepted"] = True
        self._record.accepted += 1
        self._record.tokens["input"] += call.input_tokens
        self._record.tokens["charged"] += dialect.charge(call)
        self._total.serve()
        lane.meter.serve()
        latency_s = behaviour.draw_latency_s(self._random) * max(1.0, lane.meter.open / (behaviour.knee or math.inf))
        cached = self._prefixes.look(dialect.name, call, self._loop.time(), behaviour.cache_minimum)
        if self._chance(behaviour.fail_5xx):
            await asyncio.sleep(min(latency_s, _LONGEST_FAILURE_S))
            entry["reason"] = "failure"
            status = self._random.choice(_FAILURES)
            return self._error(dialect, lane, status, "failure", {})
        fault = self._draw_fault(behaviour)
        if latency_s:
            await self._wait(latency_s)
        answers = self._answers_to(call, behaviour, fault)
        other_text = self._other_answer(entry["nonce"]) if fault == "swapped" else None
        self._answers.append((entry["nonce"], answers[0].text))
        if other_text is not None:
            answers[0] = answers[0]._replace(text=other_text)
        elif fault == "swapped":  # there is no other answer yet
            fault = None
        used = _output_tokens(answers, behaviour.reasoning, call.max_tokens)
        entry["output_tokens"] = used
        call = self._bill(behaviour, call, used)
        self._record.tokens["output"] += used
        if lane.limits.output:
            lane.limits.output.take(used, self._loop.time())
        if call.tool is not None and fault == "chatter":
            call = replace(call, tool=None)
        answer_body = dialect.reply_body(call, answers, entry["number"])
        body = self._body(dialect, call, answer_body, behaviour, fault, cached)
        if fault is not None:
            entry["reason"] = fault
            self._record.faults[fault] += 1
            if fault in BODY_FAULTS:
                return await faults.respond(
                    fault, request, body, interval_s=behaviour.drip_interval, size=behaviour.huge_bytes
                )
        headers = self._headers(dialect, lane)
        if behaviour.answer_retry_after is not None:
            headers["retry-after"] = behaviour.answer_retry_after
        return web.Response(body=body, headers=headers, content_type=JSON)

    def _body(
        self, dialect: AccountFormat, call: ParsedCall, body: bytes, behaviour: Behaviour, fault: str | None,
        cached: features.CachedTokens,
    ) -> bytes:  # fmt: skip
        """Return an answer with what its model does beside answering."""
        if behaviour.cache_minimum:
            self._prefixes.keep(cached, self._loop.time() + behaviour.cache_ttl)
            self._record.tokens["cached"] += cached.read
            self._record.tokens["written"] += cached.written
            body = features.cached_usage(dialect.name, orjson.loads(body), cached)
        if behaviour.reasoning or fault in END_FAULTS:
            body = features.ended(dialect.name, orjson.loads(body), call, behaviour.reasoning, fault)
        return body

    async def _wait(self, latency_s: float) -> None:
        """Wait as long as the model needs for an answer, or until all are to be answered."""
        answered = self._loop.create_future()
        timer = self._loop.call_later(latency_s, _wake, answered)
        self._waiting.add(answered)
        try:
            await answered
        finally:
            timer.cancel()
            self._waiting.discard(answered)

    def _answer_now(self) -> None:
        for answered in self._waiting:
            _wake(answered)

    def _rejection(
        self, request: web.BaseRequest, dialect: AccountFormat, call: ParsedCall, lane: _Lane
    ) -> tuple[int, Rejection] | None:
        """Return why a call is rejected. Rules, first match wins: key, money, overload, noise, flex's capacity, cap,
        ramp and rates."""
        behaviour, now = lane.behaviour, self._loop.time()
        rules = (
            (not self.has_key(request), 401, "key"),
            (behaviour.exhausted, 429, "exhausted"),
            (self._chance(behaviour.overload_529), 529, "overload"),
            (self._chance(behaviour.noise_429), 429, "noise"),
            (call.service_tier == "flex" and self._chance(behaviour.flex_unavailable), 429, _flex(behaviour)),
            (behaviour.cap is not None and lane.meter.serving >= behaviour.cap, 429, "cap"),
        )
        for applies, status, reason in rules:
            if applies:
                return status, Rejection(reason, 1.0)
        limited = lane.limits.admit(dialect.charge(call), now)
        if limited is None:
            return None
        if dialect is not _ANTHROPIC and lane.limits.requests:
            lane.limits.requests.burn(1, now)
        return 429, limited

    async def _reject(self, dialect: AccountFormat, lane: _Lane, status: int, why: Rejection) -> web.Response:
        behaviour = lane.behaviour
        if behaviour.refusal_latency:
            await asyncio.sleep(behaviour.refusal_latency)
        headers = self._headers(dialect, lane, rejected=True)
        if status == 429 and why.reason != "exhausted" and not behaviour.retry_info:
            if behaviour.retry_after_value is not None:
                headers["retry-after"] = behaviour.retry_after_value
            elif behaviour.retry_after:
                headers["retry-after"] = str(max(1, math.ceil(why.wait_s)))
                if dialect is not _ANTHROPIC:
                    headers["retry-after-ms"] = str(math.ceil(why.wait_s * 1000))
        return self._error(dialect, lane, status, why.reason, headers, wait_s=why.wait_s)

    def _error(
        self,
        dialect: AccountFormat,
        lane: _Lane,
        status: int,
        reason: str,
        headers: dict[str, str],
        wait_s: float = 0.0,
    ) -> web.Response:
        behaviour = lane.behaviour
        body = orjson.loads(dialect.error(status, reason))
        if behaviour.retry_info and status == 429:
            kind = "type.googleapis.com/google.rpc.RetryInfo"
            body["error"]["details"] = [{"@type": kind, "retryDelay": f"{wait_s:.2f}s"}]
        if behaviour.errors_as in ("number", "text"):
            body = {"error": {**body["error"], "code": str(status) if behaviour.errors_as == "text" else status}}
        elif behaviour.errors_as == "kind":
            body = orjson.loads(_ANTHROPIC.error(status, reason))
        sent_status = status if behaviour.errors_as == "status" else 200
        if behaviour.errors_as == "page":
            return web.Response(status=200, text=f"<html><body>{reason}</body></html>", content_type="text/html")
        return web.Response(status=sent_status, body=orjson.dumps(body), headers=headers, content_type=JSON)

    def _headers(self, dialect: AccountFormat, lane: _Lane, *, rejected: bool = False) -> dict[str, str]:
        if not lane.behaviour.headers:
            return {}
        now, unix_s = self._loop.time(), time.time()
        if lane.behaviour.told is not None:
            return DIALECTS[lane.behaviour.told](lane.limits.states(now), unix_s, rejected)
        return dialect.headers(lane.limits, now, unix_s)

    def _answers_to(self, call: ParsedCall, behaviour: Behaviour, fault: str | None) -> list[SimulatedAnswer]:
        """Return the answers that a call asks for; the fault spoils the first of them."""
        answers = []
        for number in range(min(call.answers, behaviour.most_answers)):
            judge = self._judge(call, behaviour, number)
            reply = answer(judge, call)
            spoilt = number == 0 and fault in ANSWER_FAULTS and fault != "swapped"
            text = faults.spoil(fault, reply) if fault and spoilt else orjson.dumps(reply).decode()
            answers.append(SimulatedAnswer(text, judge.chances))
        return answers

    def _judge(self, call: ParsedCall, behaviour: Behaviour, number: int) -> SimulatedJudge:
        noise = behaviour.quality_noise
        if noise is None:
            return SimulatedJudge(self.seed, call.model, call.prompt, behaviour.answer_chars, number)
        leanings = Biases(behaviour.obeys, behaviour.claims, behaviour.marks, behaviour.batched, behaviour.late)
        perception = Perception(noise, behaviour.quality_bias, behaviour.label_error, behaviour.restless, leanings)
        return PerceivingJudge(self.seed, call.model, call.prompt, behaviour.answer_chars, perception, number)

    def _other_answer(self, nonce: str | None) -> str | None:
        """Return the latest answer to another question, or None."""
        return next((text for other, text in reversed(self._answers) if other != nonce), None)

    def _bill(self, behaviour: Behaviour, call: ParsedCall, output_tokens: int) -> ParsedCall:
        """Bill a call, and return it with the kind of service that has answered it."""
        if call.service_tier and self._chance(behaviour.tier_default):
            call = replace(call, service_tier="default")
        road = call.service_tier if call.service_tier in ("flex", "priority") else "online"
        self.invoice.bill(behaviour, road, call, output_tokens)
        return call

    def _chance(self, share: float) -> bool:
        return share > 0 and self._random.random() < share

    def _draw_fault(self, behaviour: Behaviour) -> str | None:
        if not behaviour.faults:
            return None
        draw = self._random.random()
        for fault, share in behaviour.faults.items():
            if fault in BATCH_FAULTS:
                continue
            if draw < share:
                return fault
            draw -= share
        return None

    def _good_answer(self, now: float) -> None:
        self._good_answers += 1
        while self._steps and self._good_answers >= _at_answers(self._steps[0]):
            self._default.change(self._steps.pop(0).changes, now)


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _output_tokens(answers: Sequence[SimulatedAnswer], reasoning: int, most: int) -> int:
    """Return what answers take, each with its reasoning; whoever reasons for all of `most` says nothing."""
    return sum(most if reasoning >= most else reasoning + tokens_of(answer.text) for answer in answers)


def _flex(behaviour: Behaviour) -> str:
    return "noise" if behaviour.flex_as_rate_limit else "flex"


def _at_answers(step: Step) -> int:
    return step.answers or 0
