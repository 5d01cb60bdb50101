"""Lets a worker that does not know the store's address join an installation over HTTP, with a token for registering.

The server gives it an id, an address of the store with a login of its own, and a token for heartbeats, which it renews
in the replies to them. While no server answers, the worker goes on. If a heartbeat is answered by 404, the worker
registers again under the same id. If one is refused, the worker ends, since it may no longer work here. Times are on
the worker's monotonic clock; only the server deals with dates.
"""

from __future__ import annotations

import logging
import os
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import httpx2
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dicast.errors import DicastError
from dicast.workers.system.files import make_folder
from dicast.workers.system.supervision import end_worker, supervised_thread

logger = logging.getLogger(__name__)

ANSWER_TIMEOUT_S = 10.0
PAUSE_FIRST_S, PAUSE_MAX_S = 0.5, 30.0
"""The first and the longest pause between tries while no server answers."""
LEAVE_TIMEOUT_S = 3.0
LOOK_S = 1.0
"""How often the store is asked whether it lets this member in."""
JOINED_FILE = "joined.store"
"""A file in the state directory that only this user can read."""
STORE_SCHEMES = frozenset({"redis", "rediss", "unix", "sentinel"})


class ServerAway(DicastError):
    """The server does not answer, or cannot do it now. The request may succeed later."""


class NodeRejected(DicastError):
    """The server rejects this node, or the registration that it asks for."""


class NodeUnknown(DicastError):
    """The server does not know this node, which has to register again."""


class NotJoined(DicastError):
    """The store is needed, but only a worker can join over HTTP and none has."""

    def __init__(self) -> None:
        super().__init__(
            "DICAST_SERVER_URL and DICAST_NODE_TOKEN let a worker join, and none has joined from here with this "
            "DICAST_STATE_DIR; set REDIS_URL to reach the store without one"
        )


class Registration(BaseModel):
    """The registration that the server has granted. `store_url` includes the login."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    node: str = Field(min_length=1, max_length=500)
    store_url: str = Field(repr=False)
    heartbeat_token: str = Field(repr=False, min_length=1)
    expires_in_s: float = Field(gt=0)
    heartbeat_s: float = Field(gt=0, le=3600)

    def secrets(self) -> list[str]:
        """Return the passwords, which no log may show."""
        passwords = [urlsplit(url).password for url in self.store_url.split(";")]
        return [form for password in passwords if password for form in (password, unquote(password))]


class Renewal(BaseModel):
    """The reply to a heartbeat, which sometimes holds a newer token."""

    model_config = ConfigDict(extra="ignore")

    heartbeat_token: str | None = Field(None, repr=False)
    expires_in_s: float = Field(0.0, ge=0)


@dataclass(frozen=True, slots=True)
class HeartbeatToken:
    """A heartbeat token, and when it ends by this host's monotonic clock."""

    text: str = field(repr=False)
    ends: float


class ServerClient:
    """Makes a node's requests to the server. `now` is monotonic time in seconds. Not for several threads at once."""

    def __init__(
        self, url: str, token: str, *, ca_file: str | None = None, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._url, self._token, self._now = url.rstrip("/"), token, now
        tls = ssl.create_default_context(cafile=ca_file) if url.startswith("https://") else True
        self._http = httpx2.Client(timeout=ANSWER_TIMEOUT_S, verify=tls)

    def register(self, name: str, was: tuple[str, str] | None = None) -> Registration:
        """Join under a name. `was` is the id and heartbeat token of this process if it was registered before. Raises
        `ServerAway`, `NodeRejected`."""
        previous = {"node": was[0], "heartbeat_token": was[1]} if was is not None else {}
        response = self._ask("POST", "/cluster/nodes", self._token, {"name": name, **previous})
        try:
            registration = Registration.model_validate_json(response.content)
        except ValidationError as error:
            raise ServerAway(f"{self._url} sent an invalid registration: {error.error_count()} mistakes") from None
        if urlsplit(registration.store_url).scheme not in STORE_SCHEMES:
            raise NodeRejected("the server gave an invalid address of the store")
        return registration

    def heartbeat(self, node: str, token: str) -> HeartbeatToken | None:
        """Send a heartbeat. Return a newer token if there is one. Raises `ServerAway`, `NodeRejected`,
        `NodeUnknown`."""
        response = self._ask("POST", f"/cluster/nodes/{quote(node, safe='')}/heartbeat", token, {})
        try:
            renewal = Renewal.model_validate_json(response.content or b"{}")
        except ValidationError:
            return None  # of another version or a proxy: the heartbeat itself has succeeded
        if renewal.heartbeat_token is None:
            return None
        return HeartbeatToken(renewal.heartbeat_token, self._now() + renewal.expires_in_s)

    def leave(self, node: str, token: str) -> None:
        """Report that the node has ended. Raises the errors of `heartbeat`."""
        self._ask("DELETE", f"/cluster/nodes/{quote(node, safe='')}", token, None, timeout_s=LEAVE_TIMEOUT_S)

    def close(self) -> None:
        self._http.close()

    def _ask(
        self, method: str, path: str, token: str, body: Mapping[str, Any] | None, timeout_s: float = ANSWER_TIMEOUT_S
    ) -> httpx2.Response:
        headers = {"Authorization": f"Bearer {token}"}
        try:
            response = self._http.request(method, self._url + path, headers=headers, json=body, timeout=timeout_s)
        except (httpx2.HTTPError, OSError) as error:
            raise ServerAway(f"{self._url} does not answer: {type(error).__name__}") from None
        status = response.status_code
        if response.is_success:
            return response
        if status in (401, 403):
            raise NodeRejected(f"{self._url} refuses this node: {_detail(response)}")
        if status == 404:
            raise NodeUnknown(f"{self._url} does not know {path}")
        if status in (400, 409, 413, 422):  # the same would be refused again
            raise NodeRejected(f"{self._url} does not take this node: {_detail(response)}")
        raise ServerAway(f"{self._url} answers {status}")


class Member:
    """The membership of one worker process: it registers, sends heartbeats from a supervised thread, and leaves.

    `end` is called once, when the process may no longer work here. `is_shut` tells, every `LOOK_S`, whether the store
    rejects this member's login; a heartbeat is then sent at once.
    """

    def __init__(
        self, client: ServerClient, name: str, *, end: Callable[[str], None] = end_worker,
        is_shut: Callable[[str], bool] = lambda store_url: False, now: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._client, self._name, self._end, self._is_shut, self._now = client, name, end, is_shut, now
        self._stop, self._lock, self._over = threading.Event(), threading.Lock(), False
        self._thread = supervised_thread("heartbeats", self._run)
        self.registration = self._register_first()
        self._token = HeartbeatToken(self.registration.heartbeat_token, self._now() + self.registration.expires_in_s)

    def start(self) -> None:
        """Start sending heartbeats."""
        self._thread.start()

    def leave(self) -> None:
        """Stop the heartbeats and report to the server that the node has ended. Takes a few seconds at most."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=LEAVE_TIMEOUT_S)
        with self._lock:
            over, self._over = self._over, True
        if not over:
            try:
                self._client.leave(self.registration.node, self._token.text)
            except DicastError as error:
                logger.warning("node %s could not report that it leaves: %s", self.registration.node, error)
        self._client.close()

    def beat(self) -> float:
        """Send one heartbeat; return the seconds until the next. Raises `ServerAway`, `NodeRejected`."""
        member = self.registration
        try:
            newer = self._client.heartbeat(member.node, self._token.text)
        except (NodeUnknown, NodeRejected) as refused:
            if isinstance(refused, NodeRejected) and self._now() < self._token.ends:
                raise  # revoked: the token has not expired
            self._register_again()
        else:
            self._token = newer or self._token
        return member.heartbeat_s

    def _register_again(self) -> None:
        """Register again under the same id, since the store's login is in use."""
        member = self.registration
        registration = self._client.register(self._name, (member.node, self._token.text))
        if (registration.node, registration.store_url) != (member.node, member.store_url):
            raise NodeRejected(
                f"the server no longer knows {member.node} and has named it {registration.node}: restart it"
            )
        self.registration = registration
        self._token = HeartbeatToken(registration.heartbeat_token, self._now() + registration.expires_in_s)
        logger.warning("node %s was not known any more, and is registered again", registration.node)

    def _register_first(self) -> Registration:
        pause_s = PAUSE_FIRST_S
        while True:
            try:
                return self._client.register(self._name)
            except (ServerAway, NodeUnknown) as error:
                logger.warning("%s; tried again in %g s", error, pause_s)
                self._stop.wait(pause_s)
                pause_s = min(PAUSE_MAX_S, 2 * pause_s)

    def _run(self) -> None:
        wait_s, pause_s = self.registration.heartbeat_s, 0.0
        while self._wait(wait_s):
            try:
                wait_s, pause_s = self.beat(), 0.0
            except (ServerAway, NodeUnknown) as error:
                if not pause_s:
                    logger.warning("%s: the node goes on", error)
                pause_s = min(PAUSE_MAX_S, max(PAUSE_FIRST_S, 2 * pause_s))
                wait_s = pause_s
            except NodeRejected as error:
                with self._lock:
                    self._over = True
                self._end(str(error))
                return

    def _wait(self, wait_s: float) -> bool:
        """Wait for `wait_s`, or until the store rejects this member's login. Returns False if the worker ends."""
        due = self._now() + wait_s
        while (left_s := due - self._now()) > LOOK_S:
            if self._stop.wait(LOOK_S):
                return False
            if wait_s == self.registration.heartbeat_s and self._is_shut(self.registration.store_url):
                return True
        return not self._stop.wait(max(0.0, left_s))


def remember(state_dir: str | Path, store_url: str) -> None:
    """Record the store's address for this user's commands on this machine, such as the worker's health check. Raises
    OSError."""
    path = Path(state_dir) / JOINED_FILE
    make_folder(path.parent, shared=False)
    beside = path.with_suffix(f".{os.getpid()}")
    beside.unlink(missing_ok=True)
    with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(store_url)
    beside.replace(path)


def remembered(state_dir: str | Path) -> str | None:
    """Return the address that the newest worker of this machine has recorded; None if there is none."""
    try:
        return (Path(state_dir) / JOINED_FILE).read_text() or None
    except OSError:
        return None


def forget(state_dir: str | Path, store_url: str) -> None:
    """Remove the recorded address if it is this one. Raises OSError."""
    if remembered(state_dir) == store_url:
        (Path(state_dir) / JOINED_FILE).unlink(missing_ok=True)


def _detail(response: httpx2.Response) -> str:
    """Return the detail of a problem (RFC 9457) in one line, or else the status."""
    try:
        detail = response.json().get("detail", "")
    except (ValueError, AttributeError):
        detail = ""
    line = " ".join(str(detail).split())
    return line[:300] if line.isprintable() and line else f"status {response.status_code}"
