"""All settings of an operator, read from the environment once and passed down as one frozen value.

`Settings.from_env(environ)` is pure: the composition root gives it the environment merged with `.env`. Every message
names the variable, the bound and the value; the values of secrets are never shown. The text of a setting is parsed
strictly: a silent conversion would hide a mistake. For an unknown name, the setting or file that was probably meant is
suggested (`slip`, `nearest_file`).
"""

from __future__ import annotations

import difflib
import math
import os
import re
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args
from urllib.parse import quote, unquote, urlsplit

from dotenv import dotenv_values
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from dicast.errors import DicastError, nearest

FILES_LOOKED_AT = 1000


def slip(name: str, choices: Iterable[str], *, most: int) -> str | None:
    """Return the known name that differs from `name` by letter case or by at most `most` letters, or None. It is far
    stricter than `nearest`, for names that may belong to another program."""
    for choice in choices:
        if abs(len(choice) - len(name)) <= most:
            changes = difflib.SequenceMatcher(None, name.upper(), choice.upper(), autojunk=False).get_opcodes()
            edits = sum(max(to_a - a, to_b - b) for kind, a, to_a, b, to_b in changes if kind != "equal")
            if name != choice and edits <= most:
                return choice
    return None


def nearest_file(path: Path) -> str | None:
    """Return the most similar name of a file in the same folder; None if there is none, or no such folder."""
    try:
        with os.scandir(path.parent) as entries:
            names = [entry.name for entry in islice(entries, FILES_LOOKED_AT)]
    except (OSError, ValueError):
        return None
    return nearest(path.name, names)


_TRUTHS = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
SECRET = "secret"  # noqa: S105  (a mark on the fields that hold one)


def _whole(raw: str) -> int:
    """Parse digits only: `5.0`, `1e1`, ` 5 ` and `5_0` are mistakes that a silent conversion would hide."""
    if not raw.removeprefix("-").isdecimal() or not raw.isascii() or len(raw) > 20:
        raise ValueError(f"must be a whole number, got {raw!r}")
    return int(raw)


def _number(raw: str) -> float:
    try:
        value = math.nan if raw != raw.strip() or "_" in raw or not raw.isascii() else float(raw)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"must be a number, got {raw!r}")
    return value


def _truth(raw: str) -> bool:
    if raw.lower() not in _TRUTHS:
        raise ValueError(f"must be true or false, got {raw!r}")
    return _TRUTHS[raw.lower()]


def _text(raw: str) -> str:
    if not raw.strip():
        raise ValueError("must not be empty")
    return raw


_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?", re.ASCII)


def label(text: str) -> tuple[str, str]:
    """Return a label's name and value. Raises ValueError for what is no `k=v`."""
    name, separator, value = text.partition("=")
    if not (separator and _LABEL.fullmatch(name) and _LABEL.fullmatch(value)):
        raise ValueError(f"must be labels like region=eu, of letters, digits, '.', '_', '/' and '-', got {text!r}")
    return name, value


def _labels(raw: str) -> str:
    """Return the text after checking that it holds labels."""
    for pair in filter(None, map(str.strip, raw.split(","))):
        label(pair)
    return raw


Labels = Annotated[str, BeforeValidator(_labels)]
Count = Annotated[int, BeforeValidator(_whole)]
Number = Annotated[float, BeforeValidator(_number)]
Flag = Annotated[bool, BeforeValidator(_truth)]
Text = Annotated[str, BeforeValidator(_text)]
Secret = Annotated[str | None, BeforeValidator(lambda raw: _text(raw) if raw else None), SECRET]
OptionalText = Annotated[str | None, BeforeValidator(lambda raw: _text(raw) if raw else None)]


MESSAGE_KEY_CHARS = 32
TOKEN_SECRET_BYTES = 32

_UNPREFIXED = frozenset({
    "MAX_CONCURRENT_LLM_CALLS", "RETRY_INITIAL_DELAY", "RETRY_MAX_DELAY", "RETRY_MAX_ATTEMPTS", "BATCHING_ENABLED",
    "LLM_CALL_TIMEOUT", "REDIS_URL", "OPENAI_API_KEY", "ANTHROPIC_API_KEY",
})  # fmt: skip
_SHARED = frozenset({"REDIS_URL", "OPENAI_API_KEY", "ANTHROPIC_API_KEY"})
"""Names that other programs use too, with similar ones: REDIS_URI is no typo."""
SLIP_EDITS = 2


class SettingsError(DicastError, ValueError):
    """A setting is missing, misspelt, of the wrong type or out of bounds."""

    problem = "wrong-setting"


def _variable(field: str) -> str:
    return field.upper() if field.upper() in _UNPREFIXED else f"DICAST_{field.upper()}"


def _setting(default: Any, help: str, *, ge: float | None = None, le: float | None = None) -> Any:
    return Field(default, description=help, ge=ge, le=le)


class Settings(BaseModel):
    """The operator's configuration. Durations are seconds."""

    model_config = ConfigDict(frozen=True, extra="ignore", alias_generator=_variable)

    max_concurrent_llm_calls: Count = _setting(
        5, "most LLM calls open at once, over all jobs, workers and machines", ge=1
    )
    max_concurrent_llm_calls_range: Count = _setting(
        50, "largest value that MAX_CONCURRENT_LLM_CALLS may take; raise it knowingly", ge=1, le=100_000
    )
    retry_initial_delay: Number = _setting(1.0, "wait before the first retry", ge=0, le=3600)
    retry_max_delay: Number = _setting(60.0, "longest wait before a retry", ge=0, le=86_400)
    retry_max_attempts: Count = _setting(3, "calls a unit may spend on ordinary failures", ge=1, le=100)
    requeue_budget: Count = _setting(
        5, "times a rate-limited unit is put back without spending an attempt", ge=0, le=1000
    )
    retry_after_max: Number = _setting(300.0, "a provider's Retry-After is cut to this", ge=0, le=86_400)
    fail_fast: Count = _setting(
        20,
        "a job stops asking a model when its first N calls all end in the same permanent error; 0: never",
        ge=0,
        le=1000,
    )
    quota_recheck: Number = _setting(
        60.0,
        "how often an account without money is tried again, by one call, for jobs that wait for it; seconds",
        ge=0.1,
        le=86_400,
    )
    batch_listed: Number = _setting(
        120.0,
        "a batch whose creation was not confirmed is looked for this long before it is created again; seconds",
        ge=0,
        le=86_400,
    )
    batch_turnaround: Number = _setting(
        86_400.0,
        "a batch is taken to need this long while none of its pool and model was seen to end; seconds (road: auto)",
        ge=1,
        le=31_622_400,
    )
    batch_cancelling: Number = _setting(
        600.0, "a cancelled batch may go on for this long at its provider; seconds (road: auto)", ge=0, le=86_400
    )
    unit_deadline: Number = _setting(
        0.0, "a unit without a score this long after it was published ends without one; 0: never", ge=0, le=31_622_400
    )
    max_pool_down: Number = _setting(
        21_600.0, "a job gives up a pool whose calls have all failed for this long; 0: never", ge=0, le=31_622_400
    )
    batching_enabled: Flag = _setting(
        False, "ask for all dimensions of an item in one call, where the provider can; read where a job is submitted"
    )
    llm_call_timeout: Number = _setting(120.0, "a call is cut after this long in total", ge=0.01, le=3600)

    redis_url: Secret = _setting(
        None, "Redis or Valkey for broker, results, ledger and limits; empty: the embedded Valkey"
    )
    redis_password: Secret = _setting(None, "password for REDIS_URL, if the URL holds none; not %-encoded")
    broker_url: Secret = _setting(None, "RabbitMQ, to keep messages there instead of in REDIS_URL")
    broker_password: Secret = _setting(None, "the same for DICAST_BROKER_URL")
    openai_api_key: Secret = _setting(None, "key of pools with provider 'openai'")
    anthropic_api_key: Secret = _setting(None, "key of pools with provider 'anthropic'")
    message_key: Secret = _setting(
        None, "signs task messages, and refuses unsigned ones: the same 32 or more characters for all processes"
    )
    nonce_key: Secret = _setting(
        None,
        "secret from which the codes in prompts are derived, 32 or more characters, the same for all workers; empty: "
        "DICAST_MESSAGE_KEY, or one kept in the store",
    )
    token_secret: Secret = _setting(
        None,
        "signs the tokens of the HTTP interface and seals the audit log: 32 or more bytes, the same for all servers "
        "and commands; empty: no tokens",
    )
    token_secret_old: Secret = _setting(
        None, "the secret before, while it is changed: what it has signed is accepted until this is empty again"
    )
    server_url: OptionalText = _setting(
        None, "a worker without REDIS_URL joins the installation of this server, such as https://dicast.example:8700"
    )
    node_token: Secret = _setting(None, "token with the scope node:register, with which such a worker joins")
    server_ca_file: OptionalText = _setting(
        None, "certificates by which that server is known, a PEM file; empty: the system's"
    )
    require_auth: Flag = _setting(
        True, "every HTTP request needs a token; false only where the server listens on a loopback address"
    )

    server_host: Text = _setting("127.0.0.1", "address on which `dicast serve` listens")
    server_port: Count = _setting(8700, "port of that address; 0: a free one", ge=0, le=65_535)
    server_names: OptionalText = _setting(
        None, "further names under which a server on a loopback address is reached, separated by commas"
    )
    server_rate: Count = _setting(
        600, "HTTP requests that a token may make a minute, over all servers; an address may make four times as many",
        ge=6, le=10_000_000,
    )  # fmt: skip
    server_store_url: Secret = _setting(
        None, "the store's address as nodes that join over HTTP reach it, without user and password; empty: REDIS_URL's"
    )
    upload_dir: Text = _setting(
        "uploads", "the one folder whose files a job that comes over HTTP may name; shared by all machines"
    )
    upload_max_bytes: Count = _setting(256 * 2**20, "bytes of one uploaded file", ge=1, le=2**40)
    upload_folder_bytes: Count = _setting(10 * 2**30, "bytes of all uploaded files together", ge=1, le=2**50)

    pools_file: Text = _setting("config/pools.toml", "the pools: providers, models, first limits")
    results_dir: Text = _setting("results", "finished jobs' files; shared by all machines that do control work")
    html_report: Flag = _setting(True, "write report.html beside a finished job's other files; read by workers")
    state_dir: Text = _setting(".dicast", "embedded store, local model server and spool of this machine")
    cache_bytes: Count = _setting(
        2 * 2**30, "size of this machine's cache of opinions; beyond it the oldest go", ge=2**16, le=2**50
    )
    confirm_above: Number = _setting(
        10.0,
        "`dicast run` shows the quote of a job that is to cost more, in its prices' currency, and asks a person at a "
        "terminal; 0: never",
        ge=0,
        le=1_000_000,
    )
    store_idle: Number = _setting(
        300.0, "the embedded store ends when nobody has used it for so long, and loses nothing; 0: never", ge=0,
        le=31_622_400,
    )  # fmt: skip
    allow_unsafe_store: Flag = _setting(
        False, "start workers although the store may lose jobs, or lets other hosts in without a password"
    )
    namespace: Text = _setting("dicast", "names an installation where several share a store or broker")
    worker_slots: Count = _setting(
        0, "calls one worker process may hold open; 0: as many as the limit", ge=0, le=20_000
    )
    slo_target: Number = _setting(
        0.0,
        "share of calls that are to succeed, such as 0.99; pools are capped while more fail for long; 0: never",
        ge=0,
        le=0.99999,
    )
    slo_window: Number = _setting(
        3600.0,
        "seconds over which the share of errors is taken; that of their last twelfth must be too high as well",
        ge=60,
        le=2_592_000,
    )
    slo_burn_rate: Number = _setting(
        14.4,
        "pools are capped when errors come this many times faster than DICAST_SLO_TARGET allows",
        ge=0.1,
        le=100_000,
    )
    node_width: Literal["fixed", "rules"] = _setting(
        "fixed", "whether a worker's width stays at its slots, or rules on CPU and errors move it"
    )
    node_cpu_high: Number = _setting(
        75.0, "percent of all cores above which the rules halve a worker's width", ge=1, le=100
    )
    node_errors_high: Number = _setting(0.2, "share of failed calls above which they lower it", ge=0, le=1)
    node_errors_low: Number = _setting(0.05, "share of failed calls below which they raise it", ge=0, le=1)
    node_cpu_by: Literal["sample", "load"] = _setting(
        "sample", "whether these rules go by the last sample of the CPU, or by the machine's load of five minutes"
    )
    node_window: Number = _setting(
        600.0, "seconds over which these rules take the share of failed calls", ge=1, le=86_400
    )
    node_sustain: Number = _setting(
        120.0, "seconds that few failures must last before these rules raise a worker's width", ge=1, le=86_400
    )
    node_labels: Labels = _setting("", "labels of this worker, such as region=eu,disk=ssd, for pools that demand some")
    node_roles: str = _setting(
        "", "what this worker reads, where -Q does not say it: pools, and 'control' for control work; empty: all"
    )
    heartbeat_interval: Number = _setting(1.0, "seconds between two signs of life of a worker", ge=0.05, le=60)
    heartbeat_timeout: Number = _setting(
        15.0,
        "a worker that is not heard for so long is offline, and others take its work over; the same for all processes",
        ge=0.5,
        le=3600,
    )
    steal: Flag = _setting(True, "have messages that busy workers hold go back to the queue for idle ones")
    overload_threshold: Count = _setting(
        5, "a worker that holds more messages than this without a lease may be stolen from", ge=1, le=10_000
    )
    idle_threshold: Count = _setting(
        2, "a worker that holds fewer than this, and has slots free, is idle", ge=1, le=1000
    )
    max_steal_per_tick: Count = _setting(3, "most messages stolen from one worker at a time", ge=1, le=10_000)
    window_seconds: Number = _setting(5.0, "seconds of work that a job keeps published ahead", ge=0.5, le=600)
    page_units: Count = _setting(500, "most units gathered by one chord", ge=1, le=5000)
    max_text_bytes: Count = _setting(1_000_000, "an item whose texts are larger is refused", ge=1, le=50_000_000)
    max_units: Count = _setting(
        100_000_000, "a job of more items x agents x dimensions x replicates is refused", ge=1, le=10_000_000_000
    )
    max_response_bytes: Count = _setting(4_000_000, "an answer larger than this, unpacked, is malformed", ge=1000)
    fleet_file: Text = _setting("config/fleet.toml", "the installations that `dicast fleet` knows by name")
    fleet_token: Secret = _setting(None, "token for those of them, and for addresses, that have none of their own")
    metrics_port: Count = _setting(0, "port on which this worker serves Prometheus metrics; 0: none", ge=0, le=65_535)
    metrics_host: Text = _setting("127.0.0.1", "address of that port; there is no password")
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = _setting("INFO", "level of the JSON logs")
    log_json_only: Flag = _setting(False, "a worker writes only JSON lines, and none of Celery's messages for people")

    @property
    def nonce_secret(self) -> str | None:
        """The secret from which nonces are derived, if the operator has set one."""
        return self.nonce_key or self.message_key

    @property
    def broker_namespace(self) -> str:
        """The namespace of names at the broker, '' for the default one."""
        return "" if self.namespace == type(self).model_fields["namespace"].default else self.namespace

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> Self:
        """Read and check all settings. Raises `SettingsError` on the first that is wrong."""
        variables = {_variable(name) for name in cls.model_fields}
        for name in environ:
            if name.startswith("DICAST_") and name not in variables:
                near = nearest(name, variables, prefix="DICAST_")
                hint = f"did you mean {near}?" if near else "README.md lists them all"
                raise SettingsError(f"unknown setting {name}; {hint}")
            if name not in variables and (meant := slip(name, _UNPREFIXED - _SHARED, most=SLIP_EDITS)):
                raise SettingsError(f"unknown setting {name}; did you mean {meant}?")
        values = dict(environ)
        for url, password in (("REDIS_URL", "DICAST_REDIS_PASSWORD"), ("DICAST_BROKER_URL", "DICAST_BROKER_PASSWORD")):
            if values.get(url) and values.get(password):
                values[url] = _with_password(values[url], values[password])
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise SettingsError(_complaint(error.errors()[0])) from None

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        """Check settings against each other. The messages are complete: they name the settings."""
        if self.max_concurrent_llm_calls > (most := self.max_concurrent_llm_calls_range):
            raise ValueError(
                f"MAX_CONCURRENT_LLM_CALLS must be <= {most} (DICAST_MAX_CONCURRENT_LLM_CALLS_RANGE), "
                f"got {self.max_concurrent_llm_calls}"
            )
        if self.node_errors_low > (high := self.node_errors_high):
            raise ValueError(
                f"DICAST_NODE_ERRORS_LOW must be <= DICAST_NODE_ERRORS_HIGH ({high}), got {self.node_errors_low}"
            )
        if self.slo_target and self.slo_burn_rate > (fastest := 1 / (1 - self.slo_target)):
            raise ValueError(
                f"DICAST_SLO_BURN_RATE must be <= {fastest:.4g}, the rate at which every call fails with "
                f"DICAST_SLO_TARGET={self.slo_target:g}, got {self.slo_burn_rate:g}"
            )
        if self.broker_url is not None and not self.broker_url.startswith(("amqp://", "amqps://")):
            raise ValueError("DICAST_BROKER_URL must begin with amqp:// or amqps://, got a hidden value")
        for name, key in (("DICAST_MESSAGE_KEY", self.message_key), ("DICAST_NONCE_KEY", self.nonce_key)):
            if key is not None and len(key) < MESSAGE_KEY_CHARS:
                raise ValueError(f"{name} must have >= {MESSAGE_KEY_CHARS} characters, got a hidden value")
        for name, key in (
            ("DICAST_TOKEN_SECRET", self.token_secret), ("DICAST_TOKEN_SECRET_OLD", self.token_secret_old),
        ):  # fmt: skip
            if key is not None and len(key.encode()) < TOKEN_SECRET_BYTES:
                raise ValueError(f"{name} must have >= {TOKEN_SECRET_BYTES} bytes, got a hidden value")
        if not self.redis_url and bool(self.server_url) != bool(self.node_token):
            raise ValueError(
                "DICAST_SERVER_URL and DICAST_NODE_TOKEN must be set together where there is no REDIS_URL, "
                f"got only {'DICAST_SERVER_URL' if self.server_url else 'DICAST_NODE_TOKEN'}"
            )
        if self.server_url and not self.server_url.startswith(("http://", "https://")):
            raise ValueError("DICAST_SERVER_URL must begin with http:// or https://, got a hidden value")
        if self.server_url and "@" in self.server_url:
            raise ValueError("DICAST_SERVER_URL must hold no user and password, got a hidden value")
        if self.heartbeat_timeout < (least := 3 * self.heartbeat_interval):
            raise ValueError(
                f"DICAST_HEARTBEAT_TIMEOUT must be >= {least:g}, three times DICAST_HEARTBEAT_INTERVAL, "
                f"got {self.heartbeat_timeout:g}"
            )
        if self.idle_threshold > (most := self.overload_threshold):
            raise ValueError(
                f"DICAST_IDLE_THRESHOLD must be <= DICAST_OVERLOAD_THRESHOLD ({most}), got {self.idle_threshold}"
            )
        if self.retry_max_delay < (first := self.retry_initial_delay):
            raise ValueError(f"RETRY_MAX_DELAY must be >= RETRY_INITIAL_DELAY ({first}), got {self.retry_max_delay}")
        return self

    @property
    def slots(self) -> int:
        """The number of calls one worker process may hold open."""
        return self.worker_slots or self.max_concurrent_llm_calls

    @property
    def joins(self) -> bool:
        """True if a worker with these settings joins over HTTP."""
        return bool(self.server_url and self.node_token and not self.redis_url)

    @property
    def labels(self) -> dict[str, str]:
        """This worker's labels."""
        return dict(label(pair) for pair in filter(None, map(str.strip, self.node_labels.split(","))))

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles this worker takes; () for all."""
        return tuple(filter(None, map(str.strip, self.node_roles.split(","))))

    def environ(self) -> dict[str, str]:
        """Return the environment from which `from_env` reads these very settings, whatever `.env` says."""
        values = self.model_dump(by_alias=True)
        return {name: "" if value is None else str(value) for name, value in values.items()}

    def secrets(self) -> list[str]:
        """Return the values that must never be shown: keys, and the passwords of URLs."""
        fields = [
            (name, getattr(self, name)) for name, spec in type(self).model_fields.items() if SECRET in spec.metadata
        ]
        return [
            secret
            for name, value in fields
            if value
            for secret in (_passwords(value) if name.endswith("_url") else [value])
        ]


DEFAULTS = Settings()


def describe() -> list[tuple[str, str, str]]:
    """Return (variable, default, help) of every setting, for `.env.example` and the README's table."""
    defaults = {
        name: value.lower() if value in ("True", "False") else value for name, value in DEFAULTS.environ().items()
    }
    helps = {_variable(name): spec.description or "" for name, spec in Settings.model_fields.items()}
    return [(name, defaults[name], helps[name]) for name in helps]


def _complaint(mistake: Any) -> str:
    """Return what is wrong with one setting: the variable, the bound and the value."""
    kind, context = mistake["type"], mistake.get("ctx", {})
    if not mistake["loc"]:
        return str(context["error"])
    variable, value = mistake["loc"][0], mistake["input"]
    if kind in ("greater_than_equal", "less_than_equal"):
        sign, bound = (">=", context["ge"]) if kind == "greater_than_equal" else ("<=", context["le"])
        return f"{variable} must be {sign} {int(bound) if bound == int(bound) else bound}, got {value}"
    if kind == "literal_error":
        field = next(spec for name, spec in Settings.model_fields.items() if _variable(name) == variable)
        return f"{variable} must be one of {', '.join(get_args(field.annotation))}, got {value!r}"
    return f"{variable} {context['error']}"


def _with_password(urls: str, password: str) -> str:
    """Return the URLs, separated by ';', with the password in each that names a server and has none."""
    return ";".join(_one_with_password(url, password) for url in urls.split(";"))


def _one_with_password(url: str, password: str) -> str:
    scheme, separator, rest = url.partition("://")
    place, slash, path = rest.partition("/")
    user, _, host = place.rpartition("@")
    if not separator or not host or ":" in user or scheme == "sentinel":
        return url
    return f"{scheme}://{user}:{quote(password, safe='')}@{host}{slash}{path}"


def _passwords(urls: str) -> list[str]:
    """Return the passwords of URLs, separated by ';', as they are written, and decoded."""
    parts = [urlsplit(url) for url in re.split(r";(?=[a-z]+://)", urls)]
    queries = [pair.partition("=") for part in parts for pair in part.query.split("&")]
    passwords = [part.password for part in parts] + [value for name, _, value in queries if name.endswith("password")]
    return [form for password in dict.fromkeys(passwords) if password for form in (password, unquote(password))]


def environment(dotenv: str | Path = ".env") -> dict[str, str]:
    """Return the process's environment over the lines of `.env` in the working directory."""
    return {**{k: v for k, v in dotenv_values(dotenv, encoding="utf-8-sig").items() if v is not None}, **os.environ}
