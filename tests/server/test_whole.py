"""A job end to end over HTTP, judged by a real worker; and the document's examples, word by word."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dicast.app.access.scopes import Scope
from dicast.app.reports.files import read_report
from dicast.app.reports.html.page import NAME, write_report
from tests.e2e.cluster import ROOT, Cluster, one_worker, until
from tests.server.serving import POOLS, SECRET, client, problem, served
from tests.server.test_events import told

pytestmark = pytest.mark.slow
DOCUMENT = (ROOT / "docs" / "http.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, module_url: str) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("whole")
    with one_worker(
        folder, module_url, POOLS, "--latency", "0.05", "--sigma", "0", DICAST_TOKEN_SECRET=SECRET,
        DICAST_UPLOAD_DIR=str(folder / "uploads"), DICAST_SERVER_RATE="100000",
    ) as cluster:  # fmt: skip
        yield cluster


@pytest.fixture(scope="module")
def address(cluster: Cluster) -> Iterator[str]:
    with served(cluster.app) as url:
        yield url


@pytest.fixture(scope="module")
def token(cluster: Cluster) -> str:
    return cluster.app.tokens.issue("tester", [Scope.JOB_SUBMIT, Scope.JOB_READ, Scope.NODE_ADMIN], ttl_s=600)


def test_a_job_is_judged_cancelled_and_resumed(cluster: Cluster, address: str, token: str) -> None:
    lines = b"".join(json.dumps({"id": f"i{n}", "text": f"Text {n}"}).encode() + b"\n" for n in range(60))
    with client(address, token) as http:
        path = http.post("/uploads?ending=.jsonl", content=lines).json()["path"]
        job = {
            "id": "whole",
            "items": path,
            "agents": [{"name": "a"}],
            "dimensions": [{"id": "d", "instructions": "?"}],
        }
        assert http.post("/jobs", json=job).json() == {"id": "whole", "project": "default", "units": 60, "calls": 60}
        until(lambda: http.get("/jobs/whole").json()["done"] >= 5, "it is being judged")
        cluster.provider.control(latency=2.0)  # much is left to cancel, however slow this process is
        with http.stream("GET", "/jobs/whole/events") as reply:
            found = told(reply.iter_lines())
            assert json.loads(next(found)["data"])["state"] == "running"
            problem(http.post("/jobs/whole/resume"), 409, "job-not-ended")
            assert http.delete("/jobs/whole").json()["state"] in ("cancelling", "finishing")
            last = list(found)[-1]
        assert (last["event"], json.loads(last["data"])["state"]) == ("ended", "cancelled")
        assert http.get("/jobs/whole/report").json()["missing"] > 0
        cluster.provider.control(latency=0.05)
        assert http.post("/jobs/whole/resume").status_code == 202
        until(lambda: http.get("/jobs/whole").json()["state"] == "completed", "it is judged whole")
        report = http.get("/jobs/whole/report").json()
        assert (report["scored"], report["missing"]) == (60, 0)
        opinions = http.get("/jobs/whole/opinions?limit=1000").json()["opinions"]
        assert {opinion["item_id"] for opinion in opinions} == {f"i{n}" for n in range(60)}
        assert http.post("/jobs/whole/resume").json()["state"] == "completed"
        (node,) = http.get("/cluster/nodes?status=online").json()
        assert http.get("/status").json()["workers"] == 1 and node["pools"] == ["other", "sim"]


def test_nobody_else_reads_what_is_kept(cluster: Cluster, address: str) -> None:
    """Uploads, a job's files with the judged texts, ratings, a page, the spool and the state."""
    scopes = [Scope.JOB_SUBMIT, Scope.JOB_READ, Scope.RATING_WRITE]
    with client(address, cluster.app.tokens.issue("tester", scopes, ttl_s=600)) as http:
        path = http.post("/uploads?ending=.jsonl", content=b'{"id": "i", "text": "a secret text"}\n').json()["path"]
        job = {"id": "kept", "items": path, "agents": [{"name": "a"}],
               "dimensions": [{"id": "d", "instructions": "?"}]}  # fmt: skip
        assert http.post("/jobs", json=job).status_code == 202
        until(lambda: http.get("/jobs/kept").json()["state"] == "completed", "it is judged")
        assert http.post("/jobs/kept/rating", json={"size": 1}).status_code == 201
        (code,) = http.get("/jobs/kept/rating?rater=ada").json()["items"]
        rating = {"rater": "ada", "item_id": code, "dimension": "d", "score": 4}
        assert http.post("/jobs/kept/rating/scores", json=rating).status_code == 200
        assert http.post("/jobs/kept/rating/finish", json={"rater": "ada"}).status_code == 200
        folder = cluster.results / "kept"
        write_report(folder, read_report(cluster.results, "kept"), folder / NAME)
    settings = cluster.app.settings
    roots = [Path(place) for place in (settings.results_dir, settings.upload_dir, settings.state_dir)]
    made = [path for root in roots if root.exists() for path in (root, *root.rglob("*"))]
    open_to_others = [path for path in made if path.stat().st_mode & 0o077]
    assert open_to_others == []
    assert {"report.html", "ratings.jsonl", "opinions.parquet"} <= {path.name for path in folder.rglob("*")}


@pytest.mark.parametrize(
    ("language", "command", "said"),
    [
        ("sh", ["bash", "-euo", "pipefail"], '"units":1'),
        ("python", [sys.executable, "-I"], "a1 physicist "),
        ("javascript", ["node", "--input-type=module"], "completed 1"),
    ],
)
def test_the_documents_examples_run(
    cluster: Cluster, address: str, token: str, tmp_path: Path, language: str, command: list[str], said: str
) -> None:
    if shutil.which(command[0]) is None or (language == "sh" and shutil.which("curl") is None):
        pytest.skip(f"{command[0]} or curl is not installed")
    (tmp_path / "job.yaml").write_text(
        "items: [{id: a1, text: Water boils.}]\nagents: [{name: physicist}]\n"
        "dimensions: [{id: correct, instructions: Is it correct?}]\n"
    )
    blocks = re.findall(rf"^```{language}\n(.*?)^```", DOCUMENT, re.DOTALL | re.MULTILINE)
    (program,) = [block for block in blocks if "DICAST_URL" in block]
    environ = {"PATH": os.environ["PATH"], "DICAST_URL": address, "DICAST_TOKEN": token}
    run = subprocess.run(
        command, input=program, env=environ, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    assert run.returncode == 0, run.stderr
    assert said in run.stdout
    if language == "javascript":
        assert "event: ended" in run.stderr
