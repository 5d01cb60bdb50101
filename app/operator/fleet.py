"""Shows several installations at a glance: asks each for its `GET /cluster/status` at the same time.

An installation gets its own token only and is not trusted otherwise: redirects are not followed, a body is read up to
`BODY_MAX_BYTES` and never unpacked, and an answer that is no status is reported as trouble.
"""

from __future__ import annotations

import asyncio
import time
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import httpx2
import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dicast.errors import DicastError, alternatives

BODY_MAX_BYTES = 8 * 2**20
"""A status takes less than 2 KB for each node."""
ASKED_AT_ONCE = 32
NODES_MAX = 10_000
PATH = "/cluster/status"

Count = Annotated[int, Field(ge=0, le=10**12)]


class FleetRefused(DicastError, ValueError):
    """An installation's name, address or file that cannot be used; nobody was asked."""


@dataclass(frozen=True, slots=True)
class FleetMember:
    """An installation and its server. Without a token it is asked without one."""

    name: str
    url: str
    token: str | None = field(default=None, repr=False)


class FleetNode(BaseModel):
    """One node, as far as a roll-up needs it."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    name: str = Field(max_length=1000)
    status: str = Field(max_length=100)
    reason: str = Field("", max_length=4000)
    open: Count = 0
    slots: Count = 0


class FleetStatus(BaseModel):
    """The status of one installation (`GET /cluster/status`), without the fields that are not used here."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    installation: str = Field(max_length=1000)
    by_status: dict[str, Count] = Field(max_length=100)
    capacity: Count
    available: Count
    open: Count
    waiting: dict[str, Count] = Field(max_length=10_000)
    oldest_wait_s: Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)] | None = None
    unsatisfied: list[Annotated[str, Field(max_length=4000)]] = Field(default_factory=list, max_length=10_000)
    nodes: list[FleetNode] = Field(default_factory=list, max_length=NODES_MAX)


@dataclass(frozen=True, slots=True)
class FleetAnswer:
    """The answer of one installation. If there is no `status`, `trouble` says why."""

    name: str
    url: str
    took_s: float
    status: FleetStatus | None = None
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over the installations that answered; the oldest wait is the largest."""

    installations: int
    unreachable: int
    by_status: Mapping[str, int]
    capacity: int
    available: int
    open: int
    waiting: int
    oldest_wait_s: float | None
    unsatisfied: int

    @property
    def well(self) -> bool:
        """Whether all have answered and none has work that no living node may take."""
        return not self.unreachable and not self.unsatisfied


def fleet_of(requested: Sequence[str], file: Path, environ: Mapping[str, str], token: str | None) -> list[FleetMember]:
    """Return the installations with these addresses and names, in order; without any, all of the file.

    A name is looked up in the file (TOML: `[installations.NAME]` with `url` and, if it has a token of its own,
    `token_env`, the name of the variable that holds it); `token` is for all others. Raises `FleetRefused`, naming no
    token.
    """
    configured = _read_file(file, environ, token) if file.exists() else {}
    if not requested and not configured:
        raise FleetRefused(f"no installation is given, and {file} names none")
    members = []
    for name in requested or configured:
        if "://" in name:
            members.append(FleetMember(_address(name, "installation"), _address(name, "installation"), token))
        elif name in configured:
            members.append(configured[name])
        else:
            hint = alternatives(name, configured)
            raise FleetRefused(f"installation {name!r} is neither an address (https://...) nor in {file}{hint}")
    return list({member.url: member for member in members}.values())


def _read_file(file: Path, environ: Mapping[str, str], token: str | None) -> dict[str, FleetMember]:
    try:
        tables = tomllib.loads(file.read_text(encoding="utf-8-sig")).get("installations", {})
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise FleetRefused(f"{file} cannot be read: {error}") from None
    if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
        raise FleetRefused(f"{file} has no tables [installations.NAME]")
    members = {}
    for name, table in tables.items():
        where = f"{file}: installation {name!r}"
        unknown, url, variable = sorted(table.keys() - {"url", "token_env"}), table.get("url"), table.get("token_env")
        if unknown:
            raise FleetRefused(f"{where} has an unknown key {unknown[0]!r}; there are url and token_env")
        if not isinstance(url, str) or not isinstance(variable, str | None):
            raise FleetRefused(f"{where} needs a url, and its token_env is the name of a variable")
        if variable is not None and not environ.get(variable):
            raise FleetRefused(f"{where}: the variable {variable} is empty")
        members[name] = FleetMember(name, _address(url, where), token if variable is None else environ[variable])
    return members


def _address(url: str, what: str) -> str:
    """Return the address without a slash at its end. Errors never repeat the address, which may hold a password."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError:
        usable, parts = False, urlsplit("")
    if not usable or parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        raise FleetRefused(
            f"{what}: the address must be http:// or https://, a host, and perhaps a port and a path; no user, "
            "password or query"
        )
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"


async def ask(fleet: Sequence[FleetMember], timeout_s: float) -> list[FleetAnswer]:
    """Ask every installation, each for at most `timeout_s`, and return the answers in the same order."""
    at_once = asyncio.Semaphore(ASKED_AT_ONCE)
    limits = httpx2.Limits(max_connections=ASKED_AT_ONCE, max_keepalive_connections=0)
    async with httpx2.AsyncClient(
        timeout=httpx2.Timeout(timeout_s), limits=limits, follow_redirects=False, trust_env=False
    ) as client:

        async def ask_bounded(installation: FleetMember) -> FleetAnswer:
            async with at_once:
                return await _ask(client, installation, timeout_s)

        return list(await asyncio.gather(*map(ask_bounded, fleet)))


async def _ask(client: httpx2.AsyncClient, installation: FleetMember, timeout_s: float) -> FleetAnswer:
    began = time.monotonic()
    status, trouble = None, ""
    try:
        async with asyncio.timeout(timeout_s):
            status, trouble = await _status(client, installation)
    except TimeoutError:
        trouble = f"no answer within {timeout_s:g} s"
    except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
        trouble = f"cannot be reached: {type(error).__name__}: {error}".rstrip(": ")
    return FleetAnswer(installation.name, installation.url, time.monotonic() - began, status, trouble)


async def _status(client: httpx2.AsyncClient, installation: FleetMember) -> tuple[FleetStatus | None, str]:
    headers = {"accept": "application/json", "accept-encoding": "identity", "user-agent": "dicast-fleet"}
    if installation.token is not None:
        headers["authorization"] = f"Bearer {installation.token}"
    body = bytearray()
    async with client.stream("GET", installation.url + PATH, headers=headers) as response:
        if response.status_code in {401, 403}:
            return (
                None,
                f"it refuses the token ({response.status_code}): its scope must be one that may read the cluster",
            )
        if response.is_redirect:
            return None, f"it answers with a redirect ({response.status_code}), which is not followed"
        if response.status_code != 200:
            return None, f"it answers with status {response.status_code}"
        async for piece in response.aiter_raw():
            body += piece
            if len(body) > BODY_MAX_BYTES:
                return None, f"its answer is larger than {BODY_MAX_BYTES:,} bytes"
    try:
        return FleetStatus.model_validate(orjson.loads(body)), ""
    except orjson.JSONDecodeError:
        return None, "its answer is no JSON"
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "it"
        return None, f"its answer is no cluster status: {place}: {first['msg']}"


def totals(answers: Sequence[FleetAnswer]) -> Totals:
    """Return the sums over a fleet."""
    statuses = [reply.status for reply in answers if reply.status is not None]
    by_status: Counter[str] = Counter()
    for status in statuses:
        by_status.update(status.by_status)
    waits = [status.oldest_wait_s for status in statuses if status.oldest_wait_s is not None]
    return Totals(
        installations=len(answers),
        unreachable=len(answers) - len(statuses),
        by_status=dict(sorted(by_status.items())),
        capacity=sum(status.capacity for status in statuses),
        available=sum(status.available for status in statuses),
        open=sum(status.open for status in statuses),
        waiting=sum(sum(status.waiting.values()) for status in statuses),
        oldest_wait_s=max(waits, default=None),
        unsatisfied=sum(len(status.unsatisfied) for status in statuses),
    )
