"""What is installed: one name, one copy of each module, beside whatever else an environment or a folder holds."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from zipfile import ZipFile

import pyarrow.parquet as pq
import pydantic
import pytest

import dicast
from tests.e2e.cluster import Simulated, a_job

ROOT = Path(__file__).parents[1]
FOREIGN = ("app", "workers", "config")
KEPT = {*FOREIGN, "dicast", "pyproject.toml", "README.md"}


def python(*arguments: str, folder: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env={"PATH": os.environ["PATH"], "HOME": str(folder), **environ},
        capture_output=True, text=True, check=False, timeout=90,
    )  # fmt: skip


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for `PYTHONPATH` with the wheel in it, and other people's packages under the names of ours."""
    wheels, site = tmp_path_factory.mktemp("wheels"), tmp_path_factory.mktemp("site")
    source = tmp_path_factory.mktemp("source") / "dicast"  # a build leaves files behind, and takes up older ones
    shutil.copytree(
        ROOT, source, symlinks=True, ignore=lambda folder, names: set(names) - KEPT if folder == str(ROOT) else ()
    )
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(wheels), str(source)]
    subprocess.run(build, check=True, capture_output=True, timeout=110)
    with ZipFile(next(wheels.glob("dicast-*.whl"))) as wheel:
        wheel.extractall(site)
    for name in FOREIGN:
        (site / name).mkdir()
        (site / name / "__init__.py").write_text(f"raise RuntimeError('{name} is no package of Dicast')\n")
    return site


def test_the_wheel_claims_one_name_and_holds_what_is_needed(installed: Path) -> None:
    held = {path.relative_to(installed).as_posix() for path in installed.rglob("*") if path.is_file()}
    tops = {name.partition("/")[0] for name in held} - set(FOREIGN)
    assert {name for name in tops if not name.endswith(".dist-info")} == {"dicast"}
    ours = subprocess.run(["git", "ls-files", *FOREIGN], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    kept = [name for name in ours.split() if not name.endswith("pools.compose.toml")]
    assert {f"dicast/{name}" for name in kept} <= held
    assert {"dicast/py.typed", "dicast/errors.py"} <= held


@pytest.mark.slow
def test_it_runs_a_job_and_a_worker_beside_foreign_packages(installed: Path, tmp_path: Path) -> None:
    for name in FOREIGN:
        (tmp_path / name).symlink_to(installed / name)
    provider = Simulated()
    try:
        (tmp_path / "pools.toml").write_text(
            f'[pools.sim]\nprovider = "simulated"\nbase_url = "{provider.base_url}/v1"\n'
        )
        (tmp_path / "job.json").write_text(json.dumps({**a_job(agents=1, dimensions=1), "id": "mine"}))
        environ = {"PYTHONPATH": str(installed), "DICAST_POOLS_FILE": "pools.toml"}
        said = python("-c", "from dicast import evaluate; print(evaluate.name)", folder=tmp_path, **environ)
        assert (said.returncode, said.stdout) == (0, "dicast.evaluate\n"), said.stderr
        run = python(
            "-m", "dicast", "run", "--local", "job.json",
            folder=tmp_path, **environ,
        )  # fmt: skip
        assert run.returncode == 0, run.stderr
        report = python("-m", "celery", "-A", "dicast", "report", folder=tmp_path, **environ)
        assert "dicast.app.tasks" in report.stdout, report.stderr
    finally:
        python("-m", "dicast", "stop", folder=tmp_path, PYTHONPATH=str(installed))  # the embedded store
        provider.stop()


def test_a_checkout_has_one_copy_of_each_module(tmp_path: Path) -> None:
    program = """
import app, sys
from app.celery import app as application
from app.tasks import evaluate
import dicast
assert evaluate is dicast.evaluate and application is dicast.celery is app.app
try:
    import app.ledger
except ModuleNotFoundError:
    print(sorted(name for name in sys.modules if name.split(".")[0] == "app"))
"""
    said = python("-c", program, folder=ROOT, PYTHONPATH=str(ROOT), REDIS_URL="redis://127.0.0.1:1/0")
    assert (said.returncode, said.stdout) == (0, "['app', 'app.celery', 'app.tasks']\n"), said.stderr


@pytest.mark.parametrize("name", ["dicast", "dicast.app.tasks", "dicast.app.application:app"])
def test_a_worker_is_a_node_by_whatever_name_it_finds_the_application(name: str, tmp_path: Path) -> None:
    """The signals that make it one are connected by what every worker and beat imports, and by no submitter."""
    program = f"""
import sys
from celery.app.utils import find_app
app = find_app({name!r})
print("dicast.app.bootstrap" in sys.modules)
app.loader.import_default_modules()
print("dicast.app.bootstrap" in sys.modules)
"""
    said = python("-c", program, folder=tmp_path, PYTHONPATH=str(ROOT), REDIS_URL="redis://127.0.0.1:1/0")
    assert said.stdout == "False\nTrue\n", said.stderr


def test_the_door_exports_what_it_says(tmp_path: Path) -> None:
    assert dir(dicast) == dicast.__all__ == sorted(dicast.__all__, key=lambda name: (name[0].islower(), name))
    for name in dicast.__all__:
        assert getattr(dicast, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        dicast.nothing  # noqa: B018
    # Looking at the door loads nothing behind it.
    program = "import dicast, sys; print([n for n in sys.modules if n.startswith('dicast.')])"
    assert python("-c", program, folder=tmp_path, PYTHONPATH=str(ROOT)).stdout == "[]\n"


WORKERS_OWN = ("dicast.app.bootstrap", "dicast.app.domain.report", "dicast.workers.policy.adaptive")
HEAVY = (
    "aiohttp", "anthropic", *WORKERS_OWN, "duckdb", "fastapi", "flower", "matplotlib", "numpy", "openai",
    "pandas", "pyarrow", "scipy", "uvicorn",
)  # fmt: skip


@pytest.mark.parametrize(
    "program",
    [
        "from dicast.app.cli.main import cli",
        "import dicast.app.celery",
        "from dicast import EvaluationJob, evaluate",
    ],
)
def test_whoever_only_submits_loads_nothing_heavy(program: str, tmp_path: Path) -> None:
    program += f"; import sys; print([name for name in {HEAVY} if name in sys.modules])"
    said = python("-c", program, folder=tmp_path, PYTHONPATH=str(ROOT), REDIS_URL="redis://127.0.0.1:1/0")
    assert said.stdout == "[]\n", said.stdout + said.stderr


WORKER = """
import dicast.app.celery, dicast.app.tasks, dicast.app.bootstrap, dicast.app.assembly
import dicast.app.operator.store_checks, dicast.app.operator.store_checks, dicast.workers.nodes.beacon
import dicast.workers.runtime.consumer, dicast.workers.runtime.pool
from dicast.app.providers.registry import load_sdks
from dicast.config.pools import PoolSpec
load_sdks([PoolSpec(name="p", provider="openai", model="m")])
"""


def test_a_worker_that_only_judges_loads_nothing_that_it_does_not_need(tmp_path: Path) -> None:
    """Each of these costs every worker megabytes, and the first answer tenths of a second."""
    needless = {*HEAVY, "jinja2", "polars", "rich", "typer", "dicast.app.analysis.assess", "dicast.app.statistics"}
    needless -= {"aiohttp", *WORKERS_OWN}
    program = f"{WORKER}import sys; print(sorted({needless} & set(sys.modules)), 'aiohttp' in sys.modules)"
    said = python("-c", program, folder=tmp_path, PYTHONPATH=str(ROOT), REDIS_URL="redis://127.0.0.1:1/0")
    assert said.stdout == "[] True\n", said.stdout + said.stderr


@pytest.mark.parametrize(
    "pool, sdk",
    [
        ({"provider": "openai", "calls": "sdk"}, "openai"),
        ({"provider": "openai", "trust_env": True}, "openai"),
        ({"provider": "openai", "api_version": "2026-01-01"}, "openai"),
        ({"provider": "anthropic", "dialect": "anthropic"}, "anthropic"),
    ],
)
def test_what_a_pool_needs_of_an_sdk_is_loaded_before_its_first_call(
    pool: dict[str, object], sdk: str, tmp_path: Path
) -> None:
    program = f"""
import sys
from dicast.app.providers.registry import load_sdks
from dicast.config.pools import PoolSpec
load_sdks([PoolSpec(name="p", model="m", **{pool})])
print(sorted({{"anthropic", "openai"}} & set(sys.modules)))
"""
    assert python("-c", program, folder=tmp_path, PYTHONPATH=str(ROOT)).stdout == f"['{sdk}']\n"


def test_a_worker_writes_opinions_without_pandas(tmp_path: Path) -> None:
    program = """
import sys
from dicast.app.reports.columns import Columns
with open("opinions", "wb") as file, Columns(file) as columns:
    columns.add(b'{"judge": "a"}\\n')
    columns.add(b'{"judge": "b", "not_needed": true}\\n')
print("pandas" in sys.modules)
"""
    said = python("-c", program, folder=tmp_path, PYTHONPATH=str(ROOT))
    assert (said.stdout, said.returncode) == ("False\n", 0), said.stderr
    assert pq.read_table(tmp_path / "opinions")["not_needed"].to_pylist() == [False, True]


def test_a_worker_writes_the_panels_scores_without_pandas(tmp_path: Path) -> None:
    program = """
import sys, pyarrow as pa
from dicast.app.reports.panel import SCHEMA, PanelScore, _codes, _read
rows = [PanelScore("i", "d", 0.1 + 0.2, 2), PanelScore("j", "d", None, 0)]
print(_read((row._asdict() for row in rows), SCHEMA).column("score").to_pylist())
print(_codes(_read([{"name": "b"}], pa.schema([("name", pa.string())]))["name"], ["a", "b"]), "pandas" in sys.modules)
"""
    said = python("-c", program, folder=tmp_path, PYTHONPATH=str(ROOT)).stdout.split()
    assert said[:2] == ["[0.30000000000000004,", "None]"] and said[-1] == "False" and "1" in said


TYPED = """\
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, assert_type, overload

from dicast import Agent, Dimension, EvaluationJob, Item, ItemSource, RatingSource, load_opinions
from dicast.app.domain.panel import PanelRule

job = EvaluationJob.model_validate({})
number: int = job.id  # wrong
opinions = load_opinions("job")


class Pandas:
    columns: list[str]

    @property
    def iloc(self) -> object: ...

    def __iter__(self) -> Iterator[object]: ...


class Polars:
    @property
    def columns(self) -> list[str]: ...

    @columns.setter
    def columns(self, names: Sequence[str]) -> None: ...

    @overload
    def iter_rows(self, *, named: Literal[False] = ..., buffer_size: int = ...) -> Iterator[tuple[Any, ...]]: ...

    @overload
    def iter_rows(self, *, named: Literal[True], buffer_size: int = ...) -> Iterator[dict[str, Any]]: ...

    def iter_rows(self, *, named: bool = False, buffer_size: int = 512) -> Iterator[Any]: ...


class Arrow:
    @property
    def column_names(self) -> list[str]: ...

    def to_batches(self, max_chunksize: int | None = None) -> list[object]: ...


class Nothing:
    def iter_rows(self) -> list[int]: ...


def records() -> Iterator[dict[str, str]]:
    yield {"text": "a"}


agents, dimensions = [Agent(name="a")], [Dimension(id="d", instructions="How clear is it?")]
frame, table, lazy = Pandas(), Arrow(), Nothing()
several: list[dict[str, str]] = [{"text": "a"}]
source: Mapping[str, object] = {"path": "a.csv"}
EvaluationJob(items=frame, agents=agents, dimensions=dimensions)
EvaluationJob(items=Polars(), agents=agents, dimensions=dimensions)
EvaluationJob(items=table, agents=agents, dimensions=dimensions)
EvaluationJob(items=records(), agents=agents, dimensions=dimensions)
EvaluationJob(items=several, agents=agents, dimensions=dimensions)
EvaluationJob(items=["a", {"text": "b"}, Item(id="c", text="c")], agents=agents, dimensions=dimensions)
EvaluationJob(items=(Item(id="c", text="c"),), agents=agents, dimensions=dimensions)
EvaluationJob(items="a.jsonl", agents=agents, dimensions=dimensions, ratings="b.csv", panel="median")
EvaluationJob(items={"path": "a.jsonl"}, agents=agents, dimensions=dimensions, ratings={"path": "b.csv"})
EvaluationJob(items=source, agents=agents, dimensions=dimensions, panel={"combine": "worst"}, finish_by=60)
EvaluationJob(items=["a"], agents=agents, dimensions=dimensions, unit_deadline="5m", finish_by=timedelta(hours=1))
EvaluationJob(items=["a"], agents=agents, dimensions=dimensions, max_pool_down=60, finish_by=datetime.now(UTC))
made = EvaluationJob(
    items=ItemSource(path="a.csv"), agents=agents, dimensions=dimensions, ratings=RatingSource(path="b.csv"),
    panel=PanelRule(combine="mean"), replicates=2,
)
assert_type(made.items, list[Item] | ItemSource)
assert_type(made.ratings, RatingSource | None)
assert_type(made.panel, PanelRule | None)
assert_type(made.unit_deadline, float | None)
assert_type(made.finish_by, float | str | None)
EvaluationJob(items=3, agents=agents, dimensions=dimensions)  # wrong
EvaluationJob(items=[3], agents=agents, dimensions=dimensions)  # wrong
EvaluationJob(items=b"a.jsonl", agents=agents, dimensions=dimensions)  # wrong
EvaluationJob(items=lazy, agents=agents, dimensions=dimensions)  # wrong
EvaluationJob(items=None, agents=agents, dimensions=dimensions)  # wrong
EvaluationJob(items=["a"], agents=agents, dimensions=dimensions, ratings=3)  # wrong
EvaluationJob(items=["a"], agents=agents, dimensions=dimensions, panel="medium")  # wrong
EvaluationJob(items=["a"], agents=agents, dimensions=dimensions, unit_deadline=datetime.now(UTC))  # wrong
EvaluationJob(items=["a"], agents=agents, dimensions=dimensions, replicates="2")  # wrong
EvaluationJob(items=["a"], agents=agents, dimensions=dimensions, itms=["a"])  # wrong
EvaluationJob(agents=agents, dimensions=dimensions)  # wrong
"""
WRONG = [number for number, line in enumerate(TYPED.splitlines(), 1) if line.endswith("# wrong")]


UNREAD = (
    "aiohttp", "anthropic", "cryptography", "httpx2", "joserfc", "kombu", "openai", "opentelemetry", "redis", "rich",
)  # fmt: skip
"""Libraries of which no type that a program writes is made: most of what mypy would read."""


def checked_types(folder: Path, interpreter: str, plugins: str) -> str:
    """What mypy says of the program, with the packages of an interpreter."""
    (folder / "program.py").write_text(TYPED)
    (folder / "mypy.ini").write_text(
        f"[mypy]\nstrict = true\nplugins = {plugins}\ndisable_error_code = empty-body\n"
        f"[mypy-{','.join(f'{name}.*' for name in UNREAD)}]\nfollow_imports = skip\n"
    )  # fmt: skip
    command = [sys.executable, "-m", "mypy", "--python-executable", interpreter, "program.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=380)
    return done.stdout


def lines_of_errors(said: str) -> list[int]:
    assert said.count(" error: ") == said.count("program.py"), said
    return [int(line) for line in re.findall(r"^program\.py:(\d+): error: ", said, re.MULTILINE)]


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("install, plugins", [("editable", ""), ("wheel", "pydantic.mypy")])
def test_type_checkers_find_it_in_both_installs(install: str, plugins: str, installed: Path, tmp_path: Path) -> None:
    """With pydantic's plugin and without: each run takes seconds of the machine, so there are two, not four."""
    interpreter = sys.executable
    if install == "wheel":
        venv = tmp_path / "venv"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True, timeout=60)
        (site,) = venv.glob("lib/python*/site-packages")
        shutil.copytree(installed / "dicast", site / "dicast")
        (site / "dependencies.pth").write_text(str(Path(pydantic.__file__).parents[1]))
        interpreter = str(venv / "bin" / "python")
    said = checked_types(tmp_path, interpreter, plugins)
    assert 'error: Incompatible types in assignment (expression has type "str | None"' in said
    assert lines_of_errors(said) == WRONG, said


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("pyright") is None, reason="pyright is not installed")
def test_pyright_finds_the_editable_install(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(TYPED)
    command = ["pyright", "--pythonpath", sys.executable, "program.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=110)
    assert "reportMissingImports" not in done.stdout and f"program.py:{WRONG[0]}" in done.stdout


def test_there_is_one_version() -> None:
    """That of pyproject.toml, and the newest of the changelog."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    newest = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)[0]
    assert version == newest == importlib.metadata.version("dicast")


def test_an_image_and_a_service_have_what_documented_features_need() -> None:
    wanted = {"server", "tracing", "scores", "plots"}
    for name in ("Dockerfile", "docs/deployment.md"):
        (extras,) = re.findall(r"pip install .*?'\.\[([\w,]+)\]'", (ROOT / name).read_text(encoding="utf-8"))
        assert set(extras.split(",")) == wanted
    assert "LICENSE" in (ROOT / "Dockerfile").read_text(encoding="utf-8")


def test_nobody_is_sent_to_a_registry_that_does_not_have_it() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "app").rglob("*.py")]
    assert [page.name for page in pages if "install 'dicast[" in page.read_text(encoding="utf-8")] == []
