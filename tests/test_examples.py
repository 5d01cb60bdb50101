"""The programs in examples/, run as they stand against one worker and a simulated provider."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.cluster import DEADLINE_S, ROOT, Cluster, Simulated

EXAMPLES = ROOT / "examples"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory, redis_server: str) -> Iterator[Callable[[str], str]]:
    """Runs one of them to its end and gives what it prints. The pools are those of two_deployments.toml, on a port
    that is free here."""
    folder, provider = tmp_path_factory.mktemp("examples"), Simulated("--latency", "0.05")
    pools = (EXAMPLES / "two_deployments.toml").read_text(encoding="utf-8")
    pools, places = re.subn(r"http://127\.0\.0\.1:\d+", provider.base_url, pools)
    assert places == 2
    cluster = Cluster(folder, f"{redis_server}?db=13", pools)
    cluster.environ["PYTHONPATH"] = os.pathsep.join([str(EXAMPLES), cluster.environ.get("PYTHONPATH", "")])

    def run(name: str) -> str:
        program = ["-m", "dicast.app.cli.main", "run"] if name.endswith(".yaml") else []
        done = subprocess.run(
            [sys.executable, *program, EXAMPLES / name], env=cluster.environ, cwd=folder, capture_output=True,
            text=True, check=False, timeout=2 * DEADLINE_S,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    try:
        cluster.app.store.flushdb()
        cluster.worker("-I", "follow_up")
        yield run
    finally:
        cluster.stop()
        provider.stop()


def test_submit_and_wait(example: Callable[[str], str]) -> None:
    told = example("submit_and_wait.py")
    assert "2 of 2 units have a score, 2 calls were made" in told
    assert re.findall(r"^([ab]) correct (\d+) ", told, re.MULTILINE)


def test_asyncio_client(example: Callable[[str], str]) -> None:
    told = example("asyncio_client.py")
    assert re.findall(r"^(anna|ben): 5 scored, overall 0\.\d+$", told, re.MULTILINE) == ["anna", "ben"]


def test_chain_and_chord(example: Callable[[str], str]) -> None:
    first, second = example("chain_and_chord.py").splitlines()
    assert first.endswith(": 1 of 1 scored")
    assert re.fullmatch(r"\{'before': [\d.]+, 'after': [\d.]+\}", second)


def test_results_in_pandas(example: Callable[[str], str]) -> None:
    told = example("results_in_pandas.py")
    assert len(re.findall(r"^\d+ +[ab] +(?:editor|teacher) +(?:clear|short) +\d+$", told, re.MULTILINE)) == 8
    assert len(re.findall(r"(?:student|clerk) +[\d.]+$", told, re.MULTILINE)) == 4


def test_notebook(example: Callable[[str], str]) -> None:
    told = example("notebook.py")
    assert "10 of 10 units, judges and dimensions as a table" in told
    assert "10 of 10 done" in told and "10 scored once more" in told


def test_two_deployments(example: Callable[[str], str]) -> None:
    counts = {model: int(n) for model, n in re.findall(r"'([\w-]+)': (\d+)", example("two_deployments.py"))}
    assert counts.keys() == {"judge", "judge-2"}
    assert sum(counts.values()) == 20


def test_pairs_and_rankings(example: Callable[[str], str]) -> None:
    told = example("pairs_and_rankings.py")
    assert re.findall(r"^refund (as given|turned) (?:A|B|tie)$", told, re.MULTILINE) == ["as given", "turned"]
    (ranked,) = re.findall(r"^ranked (.*)$", told, re.MULTILINE)
    points = dict(ast.literal_eval(ranked))
    assert points.keys() == {"short", "exact", "rude"} and sum(points.values()) == 0


def test_labels(example: Callable[[str], str]) -> None:
    told = example("labels.py")
    assert re.search(r"^tone \{'rude': \d, 'neutral': \d, 'friendly': \d\}$", told, re.MULTILINE)
    assert re.search(r"^whole \{'Is a sum named\?': \d, 'Is a time named\?': \d\}$", told, re.MULTILINE)
    answered = re.findall(r"^[ab] whole (\d) \[(True|False), (True|False)\]$", told, re.MULTILINE)
    assert len(answered) == 2 and all(int(n) == list(yes).count("True") for n, *yes in answered)
    assert len(re.findall(r"^[ab] sendable (?:0 fail|1 pass)$", told, re.MULTILINE)) == 2


def test_question(example: Callable[[str], str]) -> None:
    told = " ".join(example("question.yaml").split())
    judged, saved = map(
        int, re.findall(r"at least 1.5\? Yes; .* after (\d+) of 60; (\d+) calls were not needed", told)[0]
    )
    assert judged < 60 and 0 < saved <= 120 - 2 * judged


def test_probes(example: Callable[[str], str]) -> None:
    told = " ".join(example("probes.yaml").split())
    assert "24 of 24 judgements scored" in told and "80 more judgements for probes" in told


def test_chief(example: Callable[[str], str]) -> None:
    told = " ".join(example("chief.yaml").split())
    assert "18 of 18 judgements scored" in told and "editor (chief)" in told


def test_every_program_is_run_and_described() -> None:
    programs = {path.name for path in EXAMPLES.glob("*.py")} | {"question.yaml", "probes.yaml", "chief.yaml"}
    tested = set(re.findall(r'example\("(\w+\.(?:py|yaml))"\)', Path(__file__).read_text(encoding="utf-8")))
    assert programs == {*tested, "follow_up.py"}
    text = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert all(
        f"`{path.name}`" in text for path in EXAMPLES.iterdir() if path.suffix in (".py", ".toml", ".yaml", ".csv")
    )
