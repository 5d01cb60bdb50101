"""Who is measured: Dicast as its users run it, and what people would pick instead, each in its own environment."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from dicast.app.reports.html.page import NAME
from dicast.workers.store import embedded
from lab.bench.processes import MeasuredProcess, ProcessOutcome, ProcessUsage, Script, usage
from lab.bench.requests import write_calls
from tests.e2e.cluster import until

ROOT = Path(__file__).parents[2]
PEERS = Path(__file__).parent / "peers"
VENVS = ROOT / ".bench"
READY_DEADLINE_S = 120.0
CEILING = 100
WARM_UP_UNITS = 900

OFFLINE = {
    "PYTHONPATH": str(PEERS / "offline"), "DO_NOT_TRACK": "1", "TELEMETRY_ENABLED": "false",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True", "DEEPEVAL_TELEMETRY_OPT_OUT": "1", "DEEPEVAL_DISABLE_DOTENV": "1",
    "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "OPENAI_API_KEY": "none",
}  # fmt: skip
"""Nothing leaves the machine, whoever tries; no telemetry, so that nobody waits for it either."""


@dataclass(frozen=True)
class Work:
    """`units` calls to be made at `base_url`; whoever is told a number of open calls is told `tell`."""

    base_url: str
    units: int
    tell: int
    folder: Path
    resume: bool = False


class Running(Protocol):
    """A contender that is ready, and makes its first call when told to go."""

    def go(self) -> None: ...

    def outcome(self, deadline_s: float) -> ProcessOutcome: ...

    def usage(self) -> dict[str, ProcessUsage]:
        """By part; what the others have in one process is called `worker`."""
        ...

    def kill(self) -> None:
        """kill -9 of everything at once; the folder stays."""
        ...

    def stop(self) -> None: ...


class Contender(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def label(self) -> str: ...

    def installed(self) -> bool: ...

    def start(self, work: Work) -> Running: ...


def environ_of(folder: Path, **more: str) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if name in ("PATH", "LANG", "TZ")}
    return {**inherited, "HOME": str(folder), **more}


class _RunningScript:
    def __init__(self, script: Script) -> None:
        self._script = script

    def go(self) -> None:
        self._script.go()

    def outcome(self, deadline_s: float) -> ProcessOutcome:
        return self._script.outcome(deadline_s)

    def usage(self) -> dict[str, ProcessUsage]:
        return {"worker": self._script.usage()}

    def kill(self) -> None:
        self._script.kill()

    def stop(self) -> None:
        self._script.kill()


@dataclass(frozen=True)
class Peer:
    """A script of `bench/peers/` under the Python of `.bench/<venv>/`. `told`: it is told the number of open calls."""

    name: str
    label: str
    venv: str
    script: str
    told: bool

    @property
    def python(self) -> Path:
        return VENVS / self.venv / "bin" / "python"

    def installed(self) -> bool:
        return (VENVS / self.venv / ".complete").exists()

    def start(self, work: Work) -> Running:
        calls = work.folder / "calls.jsonl"
        if not work.resume:
            write_calls(calls, work.units)
        command = [str(self.python), str(PEERS / self.script), "--base-url", f"{work.base_url}/v1"]
        command += ["--calls", str(calls), "--folder", str(work.folder)]
        command += ["--limit", str(work.tell)] if self.told else []
        command += ["--resume"] if work.resume else []
        environ = environ_of(work.folder, **OFFLINE, OPENAI_BASE_URL=f"{work.base_url}/v1")
        script = Script(command, environ=environ, folder=work.folder, log=work.folder / "log")
        script.ready(READY_DEADLINE_S)
        return _RunningScript(script)


POOLS = """
default = "sim"
[pools.sim]
provider = "simulated"
model = "gpt-4.1-mini"
base_url = "{url}/v1"
{told}
"""


class _RunningDicast:
    def __init__(self, work: Work, environ: Mapping[str, str]) -> None:
        self._work, self._environ = work, environ
        self._state = Path(environ["DICAST_STATE_DIR"])
        self._worker = self._celery("worker", "-n", "w@%h")
        self._beat = self._celery("beat", "--pidfile=")
        until(lambda: self._says(self._worker, b"ready."), "the worker is ready", READY_DEADLINE_S)
        until(lambda: self._says(self._beat, b"Starting"), "the beat is ready", READY_DEADLINE_S)
        self._store = embedded.ensure_running(self._state).pid
        self._client = self.client(work.units, "measured", resume=work.resume)

    def client(self, units: int, name: str, *, resume: bool) -> Script:
        """`evaluate.delay(job).get()`, in a process of its own that is ready to go."""
        command = [sys.executable, "-m", "lab.bench.dicast_client", str(units), name, *(["--resume"] if resume else [])]
        log = self._work.folder / "client.log"
        script = Script(command, environ=self._environ, folder=ROOT, log=log)
        script.ready(READY_DEADLINE_S)
        return script

    def go(self) -> None:
        self._client.go()

    def outcome(self, deadline_s: float) -> ProcessOutcome:
        return self._client.outcome(deadline_s)

    def usage(self) -> dict[str, ProcessUsage]:
        """The store is nobody's part, though it is the child of whichever process found none."""
        parts = {"worker": self._worker, "beat": self._beat, "client": self._client}
        own = {name: part.usage(without=self._store) for name, part in parts.items()}
        return {**own, "store": usage(self._store)}

    def kill(self) -> None:
        os.kill(self._store, signal.SIGKILL)
        for process in (self._worker, self._beat, self._client):
            process.kill()

    def stop(self) -> None:
        self._client.kill()
        self._beat.stop()
        self._worker.stop()
        embedded.stop(self._state)

    def _celery(self, *command: str) -> MeasuredProcess:
        log = self._work.folder / f"{command[0]}.log"
        log.unlink(missing_ok=True)
        given = [sys.executable, "-m", "celery", "-A", "app", *command]
        return MeasuredProcess(given, environ=self._environ, folder=ROOT, log=log)

    def _says(self, process: MeasuredProcess, word: bytes) -> bool:
        if process.popen.poll() is not None:
            raise RuntimeError(f"ended: {process.log.read_text()[-3000:]}")
        return word in process.log.read_bytes()


@dataclass(frozen=True)
class DicastContender:
    """Worker, beat and embedded store as the README starts them. The provider's limit is not told, but for `told`;
    `warm`: a first job, not measured, has found it."""

    name: str
    label: str
    warm: bool = False
    told: bool = False

    def installed(self) -> bool:
        return True

    def start(self, work: Work) -> Running:
        told = f"limit = {work.tell}\nadaptive = false" if self.told else ""
        (work.folder / "pools.toml").write_text(POOLS.format(url=work.base_url, told=told))
        ceiling = str(max(CEILING, work.tell))
        environ = environ_of(
            work.folder,
            DICAST_POOLS_FILE=str(work.folder / "pools.toml"),
            DICAST_RESULTS_DIR=str(work.folder / "results"),
            DICAST_STATE_DIR=str(work.folder / "state"),
            MAX_CONCURRENT_LLM_CALLS=ceiling,
            DICAST_MAX_CONCURRENT_LLM_CALLS_RANGE=ceiling,
        )
        running = _RunningDicast(work, environ)
        if self.warm:
            first = running.client(WARM_UP_UNITS, "warm-up", resume=False)
            first.go()
            first.outcome(READY_DEADLINE_S)
            first.kill()
            page = Path(environ["DICAST_RESULTS_DIR"]) / "warm-up" / NAME
            until(page.exists, "what follows the first job has ended, too", READY_DEADLINE_S)
        return running


ALL: Mapping[str, Contender] = {
    contender.name: contender
    for contender in (
        DicastContender("dicast", "Dicast, cold"),
        DicastContender("dicast-warm", "Dicast, warm", warm=True),
        DicastContender("dicast-told", "Dicast, told", told=True),
        Peer("aiohttp-told", "aiohttp and a semaphore, told", "aiohttp", "aiohttp_alone.py", told=True),
        Peer("openai-told", "OpenAI SDK (aiohttp) and a semaphore, told", "openai", "openai_sdk.py", told=True),
        Peer("openai-default", "OpenAI SDK (its own transport), told", "openai", "openai_default.py", told=True),
        Peer("openai-guess", "OpenAI SDK (aiohttp) and a semaphore of 100", "openai", "openai_sdk.py", told=False),
        Peer("inspect", "Inspect AI, default (adaptive)", "inspect", "inspect_eval.py", told=False),
        Peer("inspect-told", "Inspect AI, told", "inspect", "inspect_eval.py", told=True),
        Peer("curator", "curator, default", "curator", "curator_llm.py", told=False),
        Peer("curator-told", "curator, told", "curator", "curator_llm.py", told=True),
        Peer("deepeval", "DeepEval, default", "deepeval", "deepeval_geval.py", told=False),
        Peer("deepeval-told", "DeepEval, told", "deepeval", "deepeval_geval.py", told=True),
    )
}
