"""The limits of a simulated account, charged as the real ones are, and the configuration of a simulated provider.

Sources: the providers' rate-limit guides. OpenAI counts refused requests too and charges tokens up front, the larger of
`max_tokens` and an estimate. Anthropic charges input up front and output by use; refused requests cost nothing. Both
refill continuously and are one minute deep; either may in truth enforce shorter windows, which headers never show.

Limits are pure: `now` is seconds on any steady clock.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from random import Random
from typing import Any, NamedTuple, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from dicast.errors import nearest
from lab.provider.budgets import DIALECTS, Account, State, amount_of, longest_wait, parse_budgets
from lab.provider.faults import FAULTS

ERROR_FORMS = ("status", "number", "text", "kind", "page")


class ConfigError(ValueError):
    """An option of the simulated provider is unknown, of the wrong type or out of bounds."""


class Step(NamedTuple):
    """A change that takes effect by itself: after `answers` good answers, or `seconds` after the start."""

    answers: int | None
    seconds: float | None
    changes: Mapping[str, Any]


def _number(default: Any, help: str, *, ge: float = 0, le: float | None = None) -> Any:
    return Field(default, description=help, ge=ge, le=le)


def _option(default: Any, help: str) -> Any:
    return Field(default, description=help)


class Behaviour(BaseModel):
    """One model's limits and manners. Times are seconds, shares run from 0 to 1, None means no limit."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)

    latency: float = _number(0.0, "mean time to answer, s")
    sigma: float = _number(0.0, "spread of the time to answer: shape of a lognormal; 0 is exact", le=5)
    refusal_latency: float = _number(0.0, "time to refuse, s")
    cap: int | None = _number(None, "most calls served at once; 429 above")
    knee: int | None = _number(None, "calls served at full speed; with more open, each takes as much longer", ge=1)
    rpm: int | None = _number(None, "requests a minute", ge=1)
    tpm: int | None = _number(None, "tokens a minute (for Anthropic: of input)", ge=1)
    output_tpm: int | None = _number(None, "output tokens a minute, charged by use (Anthropic only)", ge=1)
    quantum: float = _number(0.0, "also enforce rpm and tpm in windows of this many s; 0: no", le=60)
    burst: float = _number(60.0, "depth of the rpm and tpm buckets, in seconds of refill", ge=0.1, le=3600)
    ramp: float = _number(0.0, "accept in 10 s at most this x those accepted in the 10 s before, + 15; 0: no")
    noise_429: float = _number(0.0, "share of 429s that have nothing to do with load", le=1)
    fail_5xx: float = _number(0.0, "share of calls that end in 500, 502, 503 or 504", le=1)
    overload_529: float = _number(0.0, "share of 529s", le=1)
    budgets: str | None = _option(None, "budgets besides: window:4800/60+bucket:100000/60:tokens:shown (budgets.py)")
    told: str | None = _option(None, "tell of those budgets in this dialect (budgets.py), instead of the API's own")
    headers: bool = _option(True, "send the provider's rate-limit headers where rpm or tpm is set")
    retry_after: bool = _option(True, "send retry-after with 429s")
    retry_after_value: str | None = _option(None, "send this as retry-after, whatever it means")
    answer_retry_after: str | None = _option(None, "send this as retry-after with good answers, too")
    retry_info: bool = _option(False, "tell the wait of a 429 in its body as Gemini does, and in no header")
    errors_as: str = _option("status", "answer errors by their status, or as 200 with a body that names it: 'number', "
                             "'text' (OpenRouter's code), 'kind' (Anthropic's type); or with a 'page'")  # fmt: skip
    deaf: bool = _option(False, "go on with calls whose connection the caller has closed, and count them as open")
    exhausted: bool = _option(False, "refuse everything: the account has no money left")
    quality_noise: float | None = _number(None, "score by the text's line QUALITY 0.7 (0 to 1), so inexactly")
    quality_bias: float = _option(0.0, "what such a score is above or below that, on the criterion's scale")
    label_error: float = _number(0.0, "share of wrong labels where the text's line LABEL good names one", le=1)
    restless: float = _number(0.0, "further error of such a score, another for each replicate")
    obeys: float = _number(0.0, "share of attacks in the text that decide such a score", le=1)
    claims: float = _option(0.0, "points more for a text that claims the highest score, less for the lowest")
    marks: float = _option(0.0, "points more for marks of Markdown")
    batched: float = _option(0.0, "points more where several criteria are asked for at once")
    late: float = _option(0.0, "points more for the last of these, and in proportion for those before it")
    flex_unavailable: float = _number(0.0, "share of calls with service_tier flex that find no capacity; 429", le=1)
    flex_as_rate_limit: bool = _option(False, "call that a rate limit, as OpenAI has been seen to do")
    tier_default: float = _number(0.0, "share of calls that ask for a service_tier and get the usual one", le=1)
    price: str | None = _option(None, "bill calls: units of a currency for a million tokens of input and output, 3/15")
    batch_time: float = _number(0.0, "time in which a batch is worked on, s")
    batch_validating: float = _number(0.0, "time in which it is validated before (OpenAI only), s")
    batch_finalizing: float = _number(0.0, "time from its last answer to its end, s")
    batch_cancelling: float = _number(0.0, "time from its cancellation to its end, s")
    batch_window: float = _number(86_400.0, "time after which a batch expires, s")
    batch_speed: float = _number(1.0, "how many times faster these times of batches pass", ge=0.001)
    batch_list_lag: float = _number(0.0, "how much later a new batch stands in the list, s of the wall clock")
    batch_expired: float = _number(0.0, "share of a batch's requests that expire whatever time there is", le=1)
    batch_errors: float = _number(0.0, "share of a batch's requests that end in an error", le=1)
    batch_shuffle: bool = _option(True, "give a batch's results in another order than its requests")
    batch_requests: int | None = _number(None, "most requests of a batch; none: the API's own limit", ge=1)
    batch_bytes: int | None = _number(None, "most bytes of a batch; none: the API's own limit", ge=1)
    batch_queue_tokens: int | None = _number(None, "most input tokens of a model's batches at once (OpenAI only)", ge=1)
    batch_queue_requests: int | None = _number(None, "most requests of batches at once (Anthropic only)", ge=1)
    answer_chars: int = _number(160, "length of an argument", le=100_000)
    most_answers: int = _number(128, "the most answers that one call gets, whatever it asks for (n)")
    reasoning: int = _number(0, "tokens of hidden reasoning before each answer, which count against max_tokens")
    cache_minimum: int = _number(0, "tokens from which on the beginning of a request is cached; 0: never")
    cache_ttl: float = _number(300.0, "how long it is cached after its last use, s")
    refuses: str = _option("", "refuse requests with one of these fields (temperature,reasoning_effort)")
    refuses_as: str = _option("openai", "how such a refusal is worded, by one of REFUSALS (features.py)")
    drip_interval: float = _number(0.05, "a dripping body sends one byte each so many s", ge=0.001)
    huge_bytes: int = _number(100_000_000, "unpacked size of 'huge' and 'bomb' bodies", ge=1)
    faults: dict[str, float] = {}

    def draw_latency_s(self, random: Random) -> float:
        """Draw the time to serve one call: exact, or lognormal with `latency` as its arithmetic mean."""
        if not self.latency or not self.sigma:
            return self.latency
        return random.lognormvariate(math.log(self.latency) - self.sigma**2 / 2, self.sigma)

    def changed(self, changes: Mapping[str, Any]) -> Behaviour:
        """Return a copy with some options replaced. Raises `ConfigError`."""
        try:
            return Behaviour.model_validate({**dict(self), **changes})
        except ValidationError as error:
            raise ConfigError(_complaint(error)) from None

    @property
    def rates(self) -> tuple[int, int]:
        """What a token of input and one of output cost, in picos (10^-12 of a currency's unit); 0 without a price."""
        of_input, _, of_output = (self.price or "0/0").partition("/")
        return int(Decimal(of_input) * 10**6), int(Decimal(of_output) * 10**6)

    @field_validator("price")
    @classmethod
    def _valid_price(cls, price: str | None) -> str | None:
        if price is not None and not re.fullmatch(r"\d{1,6}(\.\d{1,6})?/\d{1,6}(\.\d{1,6})?", price, re.ASCII):
            raise ValueError(f"a price looks like 3/15, got {price!r}")
        return price

    @field_validator("faults")
    @classmethod
    def _valid_shares(cls, faults: dict[str, float]) -> dict[str, float]:
        if not all(name in FAULTS and 0 <= share <= 1 for name, share in faults.items()):
            raise ValueError(f"a table of shares from 0 to 1 under {', '.join(FAULTS)} is wanted")
        return faults

    @field_validator("budgets")
    @classmethod
    def _valid_budgets(cls, budgets: str | None) -> str | None:
        if budgets is not None:
            parse_budgets(budgets)
        return budgets

    @field_validator("errors_as")
    @classmethod
    def _valid_error_form(cls, form: str) -> str:
        if form not in ERROR_FORMS:
            raise ValueError(f"errors_as must be one of {', '.join(ERROR_FORMS)}, got {form!r}")
        return form

    @field_validator("told")
    @classmethod
    def _valid_dialect(cls, dialect: str | None) -> str | None:
        if dialect is not None and dialect not in DIALECTS:
            raise ValueError(f"told must be one of {', '.join(DIALECTS)}, got {dialect!r}")
        return dialect


@dataclass(frozen=True, slots=True)
class SimulatedConfig:
    """A whole simulated provider: its behaviour, that of single models, and changes to come.

    It is one frozen value, from code, from the command line or from `POST /control`.
    """

    behaviour: Behaviour = Behaviour()
    models: Mapping[str, Behaviour] = field(default_factory=dict)
    steps: tuple[Step, ...] = ()
    seed: int = 1
    api_key: str | None = None
    log_file: str | None = None
    log_size: int = 100_000


def parse_changes(text: str) -> dict[str, Any]:
    """Parse `cap=10,rpm=60`, or `10` alone for the cap. Raises `ConfigError`."""
    pairs = [part.split("=", 1) if "=" in part else ["cap", part] for part in text.split(",")]
    changes = {name: parse_value(name, value) for name, value in pairs}
    Behaviour().changed(changes)
    return changes


def parse_fault(text: str) -> tuple[str, float]:
    """Parse `cut=0.1`, or `cut` alone for always. Raises `ConfigError`."""
    name, _, share = text.partition("=")
    try:
        faults = {name: float(share or 1)}
    except ValueError:
        raise ConfigError(f"a fault looks like cut=0.1, got {text!r}") from None
    Behaviour().changed({"faults": faults})
    return name, faults[name]


def parse_step(text: str) -> Step:
    """Parse `300:10` (cap 10 after 300 answers) or `30s:cap=10,rpm=60` (both after 30 seconds). Raises
    `ConfigError`."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(s?):(.+)", text, re.ASCII)
    if not match or (not match[2] and "." in match[1]):
        raise ConfigError(f"a step looks like 300:10, 30s:10 or 300:cap=10,rpm=60, got {text!r}")
    changes = parse_changes(match[3])
    return Step(None, float(match[1]), changes) if match[2] else Step(int(match[1]), None, changes)


def parse_value(name: str, text: str) -> Any:
    """Parse an option's value from the command line; 'none' removes a limit. Raises `ConfigError`."""
    if text == "none":
        return getattr(Behaviour().changed({name: None}), name)
    try:
        return getattr(Behaviour.model_validate_strings({name: text}), name)
    except ValidationError as error:
        raise ConfigError(_complaint(error)) from None


def _complaint(error: ValidationError) -> str:
    mistake = error.errors()[0]
    name = str(mistake["loc"][0])
    if mistake["type"] == "extra_forbidden":
        near = nearest(name, Behaviour.model_fields)
        return f"unknown option {name!r}" + (f"; did you mean {near!r}?" if near else "")
    return f"{name}: {mistake['msg'].removeprefix('Value error, ')}, got {mistake['input']!r}"


def options() -> list[tuple[str, type, Any, str]]:
    """Return (name, type, default, help) of each option that the command line offers."""
    return [
        (name, (get_args(spec.annotation) or (spec.annotation,))[0], spec.default, spec.description or "")
        for name, spec in Behaviour.model_fields.items()
        if name != "faults"
    ]


_RAMP_WINDOW_S = 10.0
_RAMP_ALLOWANCE = 15
_ROUNDING = 1e-9
_DEEPEST_DEBT = 0.1  # of the depth: refused requests cannot push the next acceptance away for ever


class Rejection(NamedTuple):
    """Why a call was not admitted, and after how many seconds it would be."""

    reason: str
    wait_s: float


class Level(NamedTuple):
    """A bucket as headers report it: per minute, what is left, seconds until it is full."""

    limit: int
    remaining: float
    full_in_s: float


class TokenBucket:
    """Continuous refill at `per_min`, `burst_s` seconds deep, full at first; with a quantum, also windows."""

    def __init__(self, per_min: int, burst_s: float, quantum_s: float, now: float) -> None:
        self.per_min = per_min
        self._rate = per_min / 60
        self._depth = self._rate * burst_s
        self._level = self._depth
        self._at = now
        self._quantum_s = quantum_s
        self._window = -1
        self._in_window = 0.0

    def wait_s(self, amount: float, now: float) -> float:
        """Return 0 if `amount` may be taken now, else the time until it may. More than the depth needs a full
        bucket."""
        self._refill(now)
        need = min(amount, self._depth)
        short = need - self._level
        wait = short / self._rate if short > _ROUNDING else 0.0
        if self._quantum_s and self._in_window and self._in_window + amount > max(1.0, self._rate * self._quantum_s):
            wait = max(wait, (self._window + 1) * self._quantum_s - now)
        return wait

    def take(self, amount: float, now: float) -> None:
        """Charge; the level may fall below zero, as when output turns out longer than what was left."""
        self._refill(now)
        self._level -= amount
        self._in_window += amount

    def burn(self, amount: float, now: float) -> None:
        """Charge a refused call."""
        self._refill(now)
        self._level = max(min(self._level, -_DEEPEST_DEBT * self._depth), self._level - amount)

    def level(self, now: float) -> Level:
        self._refill(now)
        remaining = min(self._depth, max(0.0, self._level))
        return Level(self.per_min, remaining, (self._depth - self._level) / self._rate)

    def _refill(self, now: float) -> None:
        self._level = min(self._depth, self._level + max(0.0, now - self._at) * self._rate)
        self._at = max(self._at, now)
        if self._quantum_s and (window := math.floor(now / self._quantum_s)) != self._window:
            self._window, self._in_window = window, 0.0


class Limits:
    """Everything that may refuse a call of one model for its rate."""

    def __init__(self, behaviour: Behaviour, now: float, unix_s: float = 0.0) -> None:
        """`unix_s` is the Unix time at which `now` was 0; windows end by that clock."""

        def bucket(per_min: int | None) -> TokenBucket | None:
            return None if per_min is None else TokenBucket(per_min, behaviour.burst, behaviour.quantum, now)

        self.requests = bucket(behaviour.rpm)
        self.tokens = bucket(behaviour.tpm)
        self.output = (
            None if behaviour.output_tpm is None else TokenBucket(behaviour.output_tpm, behaviour.burst, 0, now)
        )
        self._accounts = (
            [Account(budget, now, unix_s) for budget in parse_budgets(behaviour.budgets)] if behaviour.budgets else []
        )
        self._ramp = behaviour.ramp
        self._recent: deque[float] = deque()
        self._before: deque[float] = deque()

    def admit(self, tokens: int, now: float) -> Rejection | None:
        """Charge one request of `tokens`, or return why it is not admitted and charge nothing."""
        rejection = self._rejection(tokens, now)
        if rejection is None:
            if self.requests:
                self.requests.take(1, now)
            if self.tokens:
                self.tokens.take(tokens, now)
            for account in self._accounts:
                account.take(amount_of(account.budget, tokens), now)
            if self._ramp:
                self._recent.append(now)
        return rejection

    def _rejection(self, tokens: int, now: float) -> Rejection | None:
        if self._ramp and self._too_steep(now):
            return Rejection("ramp", 2.0)
        if self.requests and (wait_s := self.requests.wait_s(1, now)):
            return Rejection("rpm", wait_s)
        if self.tokens and (wait_s := self.tokens.wait_s(tokens, now)):
            return Rejection("tpm", wait_s)
        if self.output and (wait_s := self.output.wait_s(1, now)):
            return Rejection("output_tpm", wait_s)
        wait_s, unit = longest_wait(self._accounts, tokens, now)
        return Rejection("rpm" if unit == "requests" else "tpm", wait_s) if wait_s else None

    def states(self, now: float) -> list[State]:
        """Return the additional budgets as headers report them."""
        return [account.state(now) for account in self._accounts]

    def _too_steep(self, now: float) -> bool:
        while self._recent and self._recent[0] <= now - _RAMP_WINDOW_S:
            self._before.append(self._recent.popleft())
        while self._before and self._before[0] <= now - 2 * _RAMP_WINDOW_S:
            self._before.popleft()
        return len(self._recent) >= self._ramp * len(self._before) + _RAMP_ALLOWANCE
