"""Everything an operator can set, read from the environment once and passed down as one frozen value.

`Settings.from_env(environ)` is pure: the composition root gives it the environment merged with `.env`.
Every message names the variable, the bound and the value; the values of secrets are never shown.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from dotenv import dotenv_values

from dicast.config.nearest import nearest
from dicast.errors import DicastError

MESSAGE_KEY_CHARS = 32


class SettingsError(DicastError, ValueError):
    """A setting is missing, misspelt, of the wrong type or out of bounds."""


def _setting(
    variable: str,
    default: Any,
    help: str,
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    choices: tuple[str, ...] = (),
    secret: bool = False,
) -> Any:
    return field(
        default=default,
        metadata={
            "variable": variable,
            "help": help,
            "minimum": minimum,
            "maximum": maximum,
            "choices": choices,
            "secret": secret,
        },
    )


@dataclass(frozen=True, slots=True)
class Settings:
    """The operator's configuration. Durations are seconds."""

    max_concurrent_llm_calls: int = _setting(
        "MAX_CONCURRENT_LLM_CALLS", 5, "most LLM calls open at once, over all jobs, workers and machines", minimum=1
    )
    max_concurrent_llm_calls_range: int = _setting(
        "DICAST_MAX_CONCURRENT_LLM_CALLS_RANGE",
        50,
        "largest value that MAX_CONCURRENT_LLM_CALLS may take; raise it knowingly",
        minimum=1,
        maximum=100_000,
    )
    retry_initial_delay: float = _setting(
        "RETRY_INITIAL_DELAY", 1.0, "wait before the first retry", minimum=0, maximum=3600
    )
    retry_max_delay: float = _setting("RETRY_MAX_DELAY", 60.0, "longest wait before a retry", minimum=0, maximum=86_400)
    retry_max_attempts: int = _setting(
        "RETRY_MAX_ATTEMPTS", 3, "calls a unit may spend on ordinary failures", minimum=1, maximum=100
    )
    requeue_budget: int = _setting(
        "DICAST_REQUEUE_BUDGET",
        5,
        "times a rate-limited unit is put back without spending an attempt",
        minimum=0,
        maximum=1000,
    )
    retry_after_max: float = _setting(
        "DICAST_RETRY_AFTER_MAX", 300.0, "a provider's Retry-After is cut to this", minimum=0, maximum=86_400
    )
    fail_fast: int = _setting(
        "DICAST_FAIL_FAST",
        20,
        "a job stops asking a model when its first so many calls all end in one error that asking again cannot help; "
        "0: never",
        minimum=0,
        maximum=1000,
    )
    quota_recheck: float = _setting(
        "DICAST_QUOTA_RECHECK",
        60.0,
        "an account without money is tried again after so long, by one call, for jobs that wait for it",
        minimum=0.1,
        maximum=86_400,
    )
    unit_deadline: float = _setting(
        "DICAST_UNIT_DEADLINE",
        0.0,
        "a unit that has no score so long after it was published ends without one; 0: never",
        minimum=0,
        maximum=31_622_400,
    )
    max_pool_down: float = _setting(
        "DICAST_MAX_POOL_DOWN",
        21_600.0,
        "a job gives a pool up whose calls have all failed for so long; 0: never",
        minimum=0,
        maximum=31_622_400,
    )
    batching_enabled: bool = _setting(
        "BATCHING_ENABLED",
        False,
        "ask for all dimensions of an item in one call, where the provider can; read where a job is submitted",
    )
    llm_call_timeout: float = _setting(
        "LLM_CALL_TIMEOUT", 120.0, "a call is cut after this long in total", minimum=0.01, maximum=3600
    )

    redis_url: str | None = _setting(
        "REDIS_URL",
        None,
        "Redis or Valkey of broker, results, ledger and limits; empty: the embedded Valkey",
        secret=True,
    )
    redis_password: str | None = _setting(
        "DICAST_REDIS_PASSWORD",
        None,
        "password of REDIS_URL if none stands in it; as it is, not %-encoded",
        secret=True,
    )
    broker_url: str | None = _setting(
        "DICAST_BROKER_URL", None, "RabbitMQ, if messages shall wait there instead of in REDIS_URL", secret=True
    )
    broker_password: str | None = _setting(
        "DICAST_BROKER_PASSWORD", None, "the same for DICAST_BROKER_URL", secret=True
    )
    openai_api_key: str | None = _setting("OPENAI_API_KEY", None, "key of pools with provider 'openai'", secret=True)
    anthropic_api_key: str | None = _setting(
        "ANTHROPIC_API_KEY", None, "key of pools with provider 'anthropic'", secret=True
    )

    message_key: str | None = _setting(
        "DICAST_MESSAGE_KEY",
        None,
        "signs task messages, and refuses unsigned ones: the same 32 or more characters for all processes",
        secret=True,
    )

    nonce_key: str | None = _setting(
        "DICAST_NONCE_KEY",
        None,
        "secret that the codes in prompts follow from, 32 or more characters, the same for all workers; empty: "
        "DICAST_MESSAGE_KEY, or one kept in the store",
        secret=True,
    )

    pools_file: str = _setting("DICAST_POOLS_FILE", "config/pools.toml", "the pools: providers, models, first limits")
    results_dir: str = _setting(
        "DICAST_RESULTS_DIR", "results", "finished jobs' files; shared by all machines that do control work"
    )
    state_dir: str = _setting(
        "DICAST_STATE_DIR", ".dicast", "embedded store, local model server and spool of this machine"
    )
    allow_unsafe_store: bool = _setting(
        "DICAST_ALLOW_UNSAFE_STORE",
        False,
        "start workers although the store may lose jobs, or lets other hosts in without a password",
    )
    namespace: str = _setting(
        "DICAST_NAMESPACE", "dicast", "names an installation where several share a store or broker"
    )
    worker_slots: int = _setting(
        "DICAST_WORKER_SLOTS",
        0,
        "calls one worker process may hold open; 0: as many as the limit",
        minimum=0,
        maximum=20_000,
    )
    slo_target: float = _setting(
        "DICAST_SLO_TARGET",
        0.0,
        "share of calls that are to succeed, such as 0.99; pools are capped while more fail for long; 0: never",
        minimum=0,
        maximum=0.99999,
    )
    slo_window: float = _setting(
        "DICAST_SLO_WINDOW",
        3600.0,
        "seconds over which the share of errors is taken; that of their last twelfth must be too high as well",
        minimum=60,
        maximum=2_592_000,
    )
    slo_burn_rate: float = _setting(
        "DICAST_SLO_BURN_RATE",
        14.4,
        "pools are capped when errors come so many times as often as DICAST_SLO_TARGET allows",
        minimum=0.1,
        maximum=100_000,
    )
    node_width: str = _setting(
        "DICAST_NODE_WIDTH",
        "fixed",
        "whether a worker's width stays at its slots, or rules on CPU and errors move it",
        choices=("fixed", "rules"),
    )
    node_cpu_high: float = _setting(
        "DICAST_NODE_CPU_HIGH",
        75.0,
        "percent of all cores above which these rules halve it",
        minimum=1,
        maximum=100,
    )
    node_errors_high: float = _setting(
        "DICAST_NODE_ERRORS_HIGH",
        0.2,
        "share of failed calls above which they lower it",
        minimum=0,
        maximum=1,
    )
    node_errors_low: float = _setting(
        "DICAST_NODE_ERRORS_LOW", 0.05, "share of failed calls below which they raise it", minimum=0, maximum=1
    )
    node_cpu_by: str = _setting(
        "DICAST_NODE_CPU_BY",
        "sample",
        "whether these rules go by the last sample of the CPU, or by the machine's load of five minutes",
        choices=("sample", "load"),
    )
    node_window: float = _setting(
        "DICAST_NODE_WINDOW",
        600.0,
        "seconds over which these rules take the share of failed calls",
        minimum=1,
        maximum=86_400,
    )
    node_sustain: float = _setting(
        "DICAST_NODE_SUSTAIN",
        120.0,
        "seconds that few failures must last before these rules raise a worker's width",
        minimum=1,
        maximum=86_400,
    )
    window_seconds: float = _setting(
        "DICAST_WINDOW_SECONDS", 5.0, "seconds of work that a job keeps published ahead", minimum=0.5, maximum=600
    )
    page_units: int = _setting("DICAST_PAGE_UNITS", 500, "most units gathered by one chord", minimum=1, maximum=5000)
    max_text_bytes: int = _setting(
        "DICAST_MAX_TEXT_BYTES", 1_000_000, "an item whose texts are larger is refused", minimum=1, maximum=50_000_000
    )
    max_response_bytes: int = _setting(
        "DICAST_MAX_RESPONSE_BYTES", 4_000_000, "an answer larger than this, unpacked, is malformed", minimum=1000
    )
    metrics_port: int = _setting(
        "DICAST_METRICS_PORT",
        0,
        "port on which this worker serves Prometheus metrics; 0: none",
        minimum=0,
        maximum=65_535,
    )
    metrics_host: str = _setting(
        "DICAST_METRICS_HOST", "127.0.0.1", "address of that port; the metrics are for anybody"
    )
    log_level: str = _setting(
        "DICAST_LOG_LEVEL", "INFO", "level of the JSON logs", choices=("DEBUG", "INFO", "WARNING", "ERROR")
    )
    log_json_only: bool = _setting(
        "DICAST_LOG_JSON_ONLY", False, "a worker writes JSON lines alone, and nothing of Celery's for people"
    )

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> Settings:
        """Read and check all settings; raises `SettingsError` on the first that is wrong."""
        known = {f.metadata["variable"]: f for f in fields(cls)}
        for name in environ:
            if name.startswith("DICAST_") and name not in known:
                near = nearest(name, known, prefix="DICAST_")
                hint = f"did you mean {near}?" if near else "README.md lists them all"
                raise SettingsError(f"unknown setting {name}; {hint}")
        values = {
            spec.name: _parse(spec, environ[variable])
            for variable, spec in known.items()
            if variable in environ and not (environ[variable] == "" and spec.default is None)
        }
        for url, password in (("redis_url", "redis_password"), ("broker_url", "broker_password")):
            if values.get(url) and values.get(password):
                values[url] = _with_password(values[url], values[password])
        settings = cls(**values)
        if settings.max_concurrent_llm_calls > settings.max_concurrent_llm_calls_range:
            raise SettingsError(
                f"MAX_CONCURRENT_LLM_CALLS must be <= {settings.max_concurrent_llm_calls_range} "
                f"(DICAST_MAX_CONCURRENT_LLM_CALLS_RANGE), got {settings.max_concurrent_llm_calls}"
            )
        if settings.node_errors_low > settings.node_errors_high:
            raise SettingsError(
                f"DICAST_NODE_ERRORS_LOW must be <= DICAST_NODE_ERRORS_HIGH ({settings.node_errors_high}), "
                f"got {settings.node_errors_low}"
            )
        if settings.slo_burn_rate > (fastest := 1 / (1 - settings.slo_target)) and settings.slo_target:
            raise SettingsError(
                f"DICAST_SLO_BURN_RATE must be <= {fastest:.4g}, the rate at which every call fails with "
                f"DICAST_SLO_TARGET={settings.slo_target:g}, got {settings.slo_burn_rate:g}"
            )
        if settings.broker_url is not None and not settings.broker_url.startswith(("amqp://", "amqps://")):
            raise SettingsError("DICAST_BROKER_URL must begin with amqp:// or amqps://, got a hidden value")
        for name, key in (("DICAST_MESSAGE_KEY", settings.message_key), ("DICAST_NONCE_KEY", settings.nonce_key)):
            if key is not None and len(key) < MESSAGE_KEY_CHARS:
                raise SettingsError(f"{name} must have >= {MESSAGE_KEY_CHARS} characters, got a hidden value")
        if settings.retry_max_delay < settings.retry_initial_delay:
            raise SettingsError(
                f"RETRY_MAX_DELAY must be >= RETRY_INITIAL_DELAY ({settings.retry_initial_delay}), "
                f"got {settings.retry_max_delay}"
            )
        return settings

    @classmethod
    def pools_file_default(cls) -> str:
        return next(str(spec.default) for spec in fields(cls) if spec.name == "pools_file")

    @classmethod
    def namespace_default(cls) -> str:
        return next(str(spec.default) for spec in fields(cls) if spec.name == "namespace")

    @property
    def slots(self) -> int:
        """Calls one worker process may hold open."""
        return self.worker_slots or self.max_concurrent_llm_calls

    def secrets(self) -> list[str]:
        """Values that must never be shown: keys, and the password of a URL."""
        given = [(spec.name, getattr(self, spec.name)) for spec in fields(self) if spec.metadata["secret"]]
        return [
            secret
            for name, value in given
            if value
            for secret in (_passwords(value) if name.endswith("_url") else [value])
        ]


def _with_password(urls: str, password: str) -> str:
    """The URLs, separated by ';', with the password in each that names a server and has none."""
    return ";".join(_one_with_password(url, password) for url in urls.split(";"))


def _one_with_password(url: str, password: str) -> str:
    scheme, separator, rest = url.partition("://")
    place, slash, path = rest.partition("/")
    user, _, host = place.rpartition("@")
    if not separator or not host or ":" in user or scheme == "sentinel":
        return url
    return f"{scheme}://{user}:{quote(password, safe='')}@{host}{slash}{path}"


def _passwords(urls: str) -> list[str]:
    """The passwords of URLs, separated by ';', as they stand there, and as they are meant."""
    parts = [urlsplit(url) for url in re.split(r";(?=[a-z]+://)", urls)]
    queries = [pair.partition("=") for part in parts for pair in part.query.split("&")]
    found = [part.password for part in parts] + [value for name, _, value in queries if name.endswith("password")]
    return [form for password in dict.fromkeys(found) if password for form in (password, unquote(password))]


def environment(dotenv: str | Path = ".env") -> dict[str, str]:
    """The process's environment over the lines of `.env` in the working directory."""
    return {**{k: v for k, v in dotenv_values(dotenv).items() if v is not None}, **os.environ}


def describe() -> list[tuple[str, str, str]]:
    """(variable, default, help) of every setting, for `.env.example` and the README's table."""
    rows = []
    for spec in fields(Settings):
        default = "" if spec.default in (None, MISSING) else str(spec.default)
        rows.append(
            (
                spec.metadata["variable"],
                default.lower() if isinstance(spec.default, bool) else default,
                spec.metadata["help"],
            )
        )
    return rows


def _parse(spec: Field[Any], raw: str) -> Any:
    variable, meta = spec.metadata["variable"], spec.metadata
    shown = "a hidden value" if meta["secret"] else repr(raw)
    readers: dict[str, tuple[Callable[[str], Any], str]] = {
        "int": (_whole, "a whole number"),
        "float": (_number, "a number"),
        "bool": (_truth, "true or false"),
        "str": (str, "a text"),
        "str | None": (str, "a text"),
    }
    read, kind = readers[str(spec.type)]
    try:
        value = read(raw)
    except ValueError:
        raise SettingsError(f"{variable} must be {kind}, got {shown}") from None
    if isinstance(value, str) and not value.strip():
        raise SettingsError(f"{variable} must not be empty")
    if meta["minimum"] is not None and value < meta["minimum"]:
        raise SettingsError(f"{variable} must be >= {meta['minimum']}, got {value}")
    if meta["maximum"] is not None and value > meta["maximum"]:
        raise SettingsError(f"{variable} must be <= {meta['maximum']}, got {value}")
    if meta["choices"] and value not in meta["choices"]:
        raise SettingsError(f"{variable} must be one of {', '.join(meta['choices'])}, got {shown}")
    return value


def _whole(raw: str) -> int:
    """Digits only: `5.0`, `1e1`, ` 5 ` and `5_0` are mistakes that a silent conversion would hide."""
    if not raw.removeprefix("-").isdecimal() or not raw.isascii() or len(raw) > 20:
        raise ValueError
    return int(raw)


def _number(raw: str) -> float:
    if raw != raw.strip() or "_" in raw or not raw.isascii():
        raise ValueError
    value = float(raw)
    if not math.isfinite(value):
        raise ValueError
    return value


def _truth(raw: str) -> bool:
    table = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
    try:
        return table[raw.lower()]
    except KeyError:
        raise ValueError from None
