"""The pools file: which providers exist, how to reach them, and each pool's first limits.

It is the operator's file. A job names pools and never an address or a key; a key is named here by its environment
variable and read when the pool is first used. Every message names the pool, the field and the value, never a secret.
"""

from __future__ import annotations

import ipaddress
import json
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

from dicast.config.nearest import nearest
from dicast.errors import DicastError

PROVIDERS = ("openai", "anthropic", "local", "simulated")
DIALECTS = ("openai", "anthropic")
STRUCTURED_CHANNELS = ("json_schema", "tool")
MAX_TOKENS_FIELDS = ("max_completion_tokens", "max_tokens")

NAMES_SHOWN = 12

_DEFAULT_MODELS = {"local": "SmolLM2-135M-Instruct", "simulated": "simulated-judge"}
_KEY_VARIABLES = {"openai": "OPENAI_API_KEY", "anthropic": "ANTHROPIC_API_KEY"}
_HOSTS = {"openai": "api.openai.com", "anthropic": "api.anthropic.com"}

_POOL_NAME = re.compile(r"[A-Za-z0-9._:-]{1,100}")  # dicast.app.domain.job.PoolName, without the empty name
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", re.ASCII)


class PoolsError(DicastError, ValueError):
    """The pools file has a mistake: a wrong key, type or bound."""


class UnknownPool(DicastError, LookupError):
    """A job or a command names a pool that the pools file does not have."""


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """One `[pools.<name>]` table, defaults filled in. `limit` to `tpm` are first values: live state is not kept here.

    `base_url` None: the provider's own address, or, for `local` and `simulated`, the one found when it is started.
    `api_key_env` None: no key is sent. `timeout_s` bounds a server's silence, not the whole call, which
    LLM_CALL_TIMEOUT does; None: no shorter than that.
    """

    name: str
    provider: str
    dialect: str
    model: str
    base_url: str | None = None
    api_key_env: str | None = None
    structured_output: bool = True
    structured_channel: str = "json_schema"
    max_tokens_field: str = "max_tokens"
    schema_lengths: bool = True
    nonce_in_schema: bool = False
    limit: int | None = None
    ceiling: int | None = None
    adaptive: bool = True
    rpm: int | None = None
    tpm: int | None = None
    project_max: Mapping[str, float] = field(default_factory=dict)
    api_version: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float | None = None
    trust_env: bool = False

    @property
    def one_model(self) -> bool:
        """Whether the pool's model answers, whichever is asked for."""
        return self.provider == "local"

    def cut_to(self, most: int) -> str | None:
        """What the limit of all calls together leaves of this pool's own; None if it leaves all."""
        set = [(key, value) for key in ("limit", "ceiling") if (value := getattr(self, key)) and value > most]
        if not set:
            return None
        named = " and ".join(f"{key} = {value}" for key, value in set)
        return f"{named} in the pools file, but MAX_CONCURRENT_LLM_CALLS is {most}: {most} binds"


@dataclass(frozen=True, slots=True)
class PoolWarning:
    """Something that works and is still unwise; `dicast doctor` shows it."""

    pool: str
    message: str


@dataclass(frozen=True, slots=True)
class Pools:
    """All pools of the file, by name, and the name that an empty pool name stands for. `flat`: the file has the older
    shape, of one pool."""

    default: str
    pools: Mapping[str, PoolSpec]
    flat: bool = field(default=False, compare=False)

    def get(self, name: str) -> PoolSpec:
        """The pool called `name`, '' being the default one; raises `UnknownPool`."""
        try:
            return self.pools[name or self.default]
        except KeyError:
            hint = _nearest(name, self.pools) or f"; there are {_listed(self.pools)}"
            raise UnknownPool(f"there is no pool {name!r}{hint}") from None

    def findings(self) -> list[PoolWarning]:
        """What an operator should know though nothing is wrong with it."""
        return [
            PoolWarning(
                spec.name, f"base_url {spec.base_url} is not encrypted: keys and texts cross the network in clear"
            )
            for spec in self.pools.values()
            if spec.base_url is not None and _in_clear(spec.base_url)
        ]

    @classmethod
    def load(cls, path: str | Path) -> Pools:
        """Read a pools file; raises `PoolsError` with the file's name on the first mistake."""
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise PoolsError(f"pools file {path} cannot be read: {reason}") from None
        try:
            return cls.parse(text)
        except PoolsError as error:
            raise PoolsError(f"{path}: {error}") from None

    @classmethod
    def parse(cls, text: str) -> Pools:
        """Read a pools file's text. A flat document, without the `pools` table, is one pool called 'default'."""
        try:
            document = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise PoolsError(f"is no TOML: {error}") from None
        except RecursionError:
            raise PoolsError("is no TOML: nested too deeply") from None
        flat = "pools" not in document and "provider" in document
        if flat:
            document = {"default": "default", "pools": {"default": document}}
        for key in document:
            if key not in ("default", "pools"):
                raise PoolsError(f"unknown key {_shown(key)}{_nearest(key, ('default', 'pools'))}")
        tables = document.get("pools")
        if not isinstance(tables, dict) or not tables:
            raise PoolsError("needs at least one table [pools.<name>]")
        pools = {name: _pool(name, table) for name, table in tables.items()}
        default = document.get("default")
        if default is None and len(pools) == 1:
            default = next(iter(pools))
        if not isinstance(default, str) or default not in pools:
            near = _nearest(default, pools) if isinstance(default, str) else ""
            raise PoolsError(f"default must name one of the pools ({', '.join(pools)}), got {_shown(default)}{near}")
        return cls(default, pools, flat)

    def to_toml(self) -> str:
        """The same pools as a file, without what follows from the rest: `parse` gives an equal value."""
        tables = [
            "\n".join(
                [f"[pools.{_key(spec.name)}]", *(f"{key} = {_toml(value)}" for key, value in _told(spec).items())]
            )
            for spec in self.pools.values()
        ]
        return "\n\n".join([f"default = {_toml(self.default)}", *tables]) + "\n"


def _told(spec: PoolSpec) -> dict[str, Any]:
    """What a table has to say of a pool: what it is, and where it differs from what follows from that."""
    names = ("provider", "dialect", "model", "base_url", "api_version")
    said = {name: value for name in names if (value := getattr(spec, name)) is not None}
    implied = _pool(spec.name, said)
    for each in fields(spec):
        value = getattr(spec, each.name)
        if value != getattr(implied, each.name):
            said[each.name] = "" if value is None else value
    return said


def _toml(value: Any) -> str:
    """Texts here are printable, and those JSON and TOML write alike."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_toml(key)} = {_toml(item)}" for key, item in value.items()) + " }"
    return json.dumps(value, ensure_ascii=False)


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _toml(name)


def _pool(name: str, table: Any) -> PoolSpec:
    if not _POOL_NAME.fullmatch(name):
        raise PoolsError(f"pool name {_shown(name)} may hold only letters, digits, '.', '_', ':' and '-', at most 100")
    if not isinstance(table, dict):
        raise PoolsError(f"pool {name!r} must be a table [pools.{name}], got {_shown(table)}")
    _no_strangers(name, table)
    values = {key: _read(name, key, value) for key, value in table.items()}
    provider = values.get("provider")
    if provider is None:
        raise PoolsError(f"pool {name!r}: provider is missing; it is one of {', '.join(PROVIDERS)}")
    dialect = values.setdefault("dialect", provider if provider in DIALECTS else "openai")
    if provider in DIALECTS and dialect != provider:
        raise PoolsError(f"pool {name!r}: dialect must be {provider!r} with provider {provider!r}, got {dialect!r}")
    if "model" not in values and provider not in _DEFAULT_MODELS:
        raise PoolsError(f"pool {name!r}: model is missing")
    values.setdefault("model", _DEFAULT_MODELS.get(provider))
    _dialect_options(name, values)
    values.setdefault("nonce_in_schema", provider == "local")
    # A key goes by default only to the provider that issued it: another base_url has to ask for one by name.
    if values.setdefault("api_key_env", None if values.get("base_url") else _KEY_VARIABLES.get(provider)) == "":
        values["api_key_env"] = None
    limit, ceiling = values.get("limit"), values.get("ceiling")
    if limit is not None and ceiling is not None and limit > ceiling:
        raise PoolsError(f"pool {name!r}: limit must be <= ceiling ({ceiling}), got {limit}")
    if limit is None and not values.get("adaptive", True):
        raise PoolsError(f"pool {name!r}: adaptive = false needs a limit to hold")
    return PoolSpec(name=name, **values)


def _dialect_options(name: str, values: dict[str, Any]) -> None:
    """Fill in, and check, what depends on who really answers: the provider itself or a compatible server."""
    provider, dialect, base_url = values["provider"], values["dialect"], values.get("base_url")
    genuine = provider in _HOSTS and (base_url is None or urlsplit(base_url).hostname == _HOSTS[provider])
    if dialect == "openai":
        azure = "api_version" in values
        if azure and (provider != "openai" or base_url is None):
            raise PoolsError(f"pool {name!r}: api_version is for Azure: it needs provider 'openai' and a base_url")
        if values.get("structured_channel") == "tool":
            raise PoolsError(f"pool {name!r}: structured_channel must be json_schema with dialect openai, got 'tool'")
        values.setdefault("max_tokens_field", "max_completion_tokens" if genuine or azure else "max_tokens")
        values.setdefault("schema_lengths", not (genuine or azure))
        return
    for key in ("api_version", "max_tokens_field", "schema_lengths"):
        if key in values:
            raise PoolsError(f"pool {name!r}: {key} is for dialect 'openai', this pool speaks 'anthropic'")
    values.setdefault("structured_channel", "json_schema" if genuine else "tool")


def _no_strangers(name: str, table: Mapping[str, Any]) -> None:
    for key in table:
        if key == "api_key":
            raise PoolsError(f"pool {name!r}: no keys in this file; api_key_env names the variable that holds it")
        if key not in _READERS:
            raise PoolsError(f"pool {name!r}: unknown key {_shown(key)}{_nearest(key, _READERS)}")


def _read(pool: str, key: str, value: Any) -> Any:
    try:
        return _READERS[key](value)
    except ValueError as error:
        shown = "a hidden value" if key in _HIDDEN else _shown(value)
        raise PoolsError(f"pool {pool!r}: {key} must be {error}, got {shown}") from None


def _one_of(choices: tuple[str, ...]) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if value not in choices:
            raise ValueError(f"one of {', '.join(choices)}")
        return str(value)

    return read


def _text(value: Any) -> str:
    if not isinstance(value, str) or not 1 <= len(value) <= 200 or not value.isprintable() or value != value.strip():
        raise ValueError("a printable text of 1 to 200 characters")
    return value


def _variable(value: Any) -> str:
    if not isinstance(value, str) or (value and not _VARIABLE.fullmatch(value)):
        raise ValueError("the name of an environment variable ('' for none)")
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("true or false")
    return value


def _count(maximum: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= maximum:
            raise ValueError(f"a whole number from 1 to {maximum}")
        return value

    return read


def _seconds(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.01 <= value <= 3600:
        raise ValueError("a number of seconds from 0.01 to 3600")
    return float(value)


def _project_max(value: Any) -> dict[str, float]:
    wanted = "a share below 1 or a whole number of calls, or a table of these by project ('*' for the others)"
    table = value if isinstance(value, dict) else {"*": value}
    for name, most in table.items():
        number = isinstance(most, int | float) and not isinstance(most, bool)
        if not (number and (0 < most < 1 or (isinstance(most, int) and 1 <= most <= 100_000))) or not name:
            raise ValueError(wanted)
    return table


def _url(value: Any) -> str:
    """An address without anything that could carry a secret into a log or change where a path leads."""
    wanted = "an address like https://host/v1, without user, query or fragment"
    if not isinstance(value, str) or not value.isascii() or not value.isprintable() or re.search(r"[\s\\]", value):
        raise ValueError(wanted)
    try:
        parts = urlsplit(value)
        port_is_sane = parts.port is None or parts.port > 0
    except ValueError:
        raise ValueError(wanted) from None
    plain = not (parts.username or parts.password or parts.query or parts.fragment or "@" in parts.netloc)
    if parts.scheme not in ("http", "https") or not parts.hostname or not plain or not port_is_sane:
        raise ValueError(wanted)
    return value


def _texts(value: Any) -> dict[str, str]:
    wanted = "a table of texts without control characters"
    if not isinstance(value, dict):
        raise ValueError(wanted)
    for name, text in value.items():
        if not _HEADER_NAME.fullmatch(name) or not isinstance(text, str):
            raise ValueError(wanted)
        if not (text.isprintable() and text.isascii()):
            raise ValueError(wanted)
    return dict(value)


_READERS: dict[str, Callable[[Any], Any]] = {
    "provider": _one_of(PROVIDERS),
    "dialect": _one_of(DIALECTS),
    "model": _text,
    "base_url": _url,
    "api_key_env": _variable,
    "structured_output": _flag,
    "structured_channel": _one_of(STRUCTURED_CHANNELS),
    "max_tokens_field": _one_of(MAX_TOKENS_FIELDS),
    "schema_lengths": _flag,
    "nonce_in_schema": _flag,
    "limit": _count(100_000),
    "ceiling": _count(100_000),
    "adaptive": _flag,
    "rpm": _count(10**9),
    "tpm": _count(10**12),
    "project_max": _project_max,
    "api_version": _text,
    "headers": _texts,
    "query": _texts,
    "timeout_s": _seconds,
    "trust_env": _flag,
}
# What people paste into these may be a secret.
_HIDDEN = {"api_key_env", "base_url", "headers", "query"}


def _in_clear(base_url: str) -> bool:
    parts = urlsplit(base_url)
    return parts.scheme == "http" and not _loopback(parts)


def _loopback(parts: SplitResult) -> bool:
    host = (parts.hostname or "").rstrip(".")
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _nearest(name: str, known: Iterable[str]) -> str:
    near = nearest(name, known)
    return f"; did you mean {near!r}?" if near else ""


def _listed(names: Iterable[str]) -> str:
    known = list(names)
    more = len(known) - NAMES_SHOWN
    return ", ".join(known[:NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 100 else text[:97] + "..."
