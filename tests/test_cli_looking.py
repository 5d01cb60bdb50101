"""Commands that only look, or are refused, start no store where none has ever run, and leave none behind elsewhere."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from dicast.workers.store.embedded import ensure_running, find_running, has_data, stop
from tests.command import Dicast

DEADLINE_S = 30.0
SECRET = "s" * 32


@pytest.mark.parametrize(
    "command, code, said",
    [
        ("jobs list", 0, "There are no jobs."),
        ("jobs list --json", 0, "[]"),
        ("jobs show j1", 2, "no job 'j1'"),
        ("jobs watch j1", 2, "no job 'j1'"),
        ("jobs cancel j1", 2, "no job 'j1'"),
        ("jobs resume j1", 2, "no job 'j1'"),
        ("jobs delete j1 --yes", 2, "no job 'j1'"),
        ("jobs export j1 --format csv --to out.csv", 2, "no job 'j1'"),
        ("report j1", 2, "no finished job 'j1'"),
        ("run job.json", 2, "no worker is alive, so nothing was submitted"),
        ("run --dry-run job.json", 0, "1 item x 1 agent x 1 dimension"),
        ("run --local nothing.json", 2, "nothing.json"),
        ("validate job.json", 0, "1 item x 1 agent x 1 dimension"),
        ("governor", 0, "sim"),
        ("governor show --json", 0, '"pool": "sim"'),
        ("governor show --pool smi", 2, "there is no pool 'smi'; did you mean 'sim'?"),
        ("governor set --pool smi --limit 3", 2, "there is no pool 'smi'; did you mean 'sim'?"),
        ("governor unset --pool smi limit", 2, "there is no pool 'smi'; did you mean 'sim'?"),
        ("cluster nodes", 0, "no node is known"),
        ("cluster status --json", 0, '"capacity": 0'),
        ("cluster drain n1", 2, "no node has the id or name 'n1'"),
        ("metrics", 0, "dicast_store_up 1.0"),
        ("doctor", 0, "which the first job or worker starts"),
        ("health", 1, "no worker of this host is heard"),
        ("token list", 0, "There are no tokens."),
        ("audit show", 0, "There are no lines."),
        ("audit verify", 0, "The audit log is whole: 0 lines."),
        ("stop", 0, "Nothing runs in"),
    ],
)
def test_no_store_is_started_to_be_told_that_it_is_empty(
    at_once: Dicast, tmp_path: Path, command: str, code: int, said: str
) -> None:
    run = at_once(*command.split(), REDIS_URL="", DICAST_TOKEN_SECRET=SECRET)
    assert (run.returncode, said in run.stdout + run.stderr) == (code, True), run.stdout + run.stderr
    assert not has_data(tmp_path / "state")
    assert find_running(tmp_path / "state") is None


@pytest.mark.parametrize("command", ["token list", "token issue ada --scope job:read"])
def test_without_a_secret_no_store_is_started_for_tokens(at_once: Dicast, tmp_path: Path, command: str) -> None:
    run = at_once(*command.split(), REDIS_URL="", DICAST_TOKEN_SECRET="")
    assert "DICAST_TOKEN_SECRET is not set" in run.stderr
    assert not has_data(tmp_path / "state")


def test_an_empty_store_is_told_of_as_one_that_was_never_started(at_once: Dicast, tmp_path: Path) -> None:
    """Command by command, what is said without a store is what an empty one says."""
    commands = ["jobs list --json", "governor show --json", "cluster nodes --json", "cluster status --json", "metrics"]
    without = [at_once(*command.split(), REDIS_URL="").stdout for command in commands]
    try:
        ensure_running(tmp_path / "state")
        assert [at_once(*command.split(), REDIS_URL="").stdout for command in commands] == without
    finally:
        stop(tmp_path / "state")


def test_a_store_that_was_started_to_look_ends_when_nobody_has_used_it(dicast: Dicast, tmp_path: Path) -> None:
    state_dir = tmp_path / "state"
    ensure_running(state_dir)
    stop(state_dir)
    try:
        looked = dicast("jobs", "list", "--json", REDIS_URL="", DICAST_STORE_IDLE="0.2")
        assert json.loads(looked.stdout) == []
        end = time.monotonic() + DEADLINE_S
        while "nobody has used the store for 0.2 s" not in (state_dir / "store" / "valkey.log").read_text():
            assert time.monotonic() < end, "it goes on"
            time.sleep(0.05)
        assert find_running(state_dir) is None
    finally:
        stop(state_dir)


def test_a_finished_job_is_shown_from_its_files_without_a_store(at_once: Dicast, tmp_path: Path) -> None:
    """As when the state directory was removed, or is another machine's."""
    folder = tmp_path / "results" / "j1"
    folder.mkdir(parents=True)
    (folder / "report.json").write_text("{}")
    said = at_once("jobs", "show", "j1", REDIS_URL="").stderr
    assert "the ledger holds no job 'j1', and the report in" in said
    assert not has_data(tmp_path / "state")
