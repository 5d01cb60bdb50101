"""`dicast` as a process, on a real store, with nobody who works."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import redis
from typer.main import get_command

from dicast.app.application import create_app
from dicast.app.cli.main import cli
from dicast.workers.nodes.registry import Node
from dicast.workers.store.embedded import stop
from tests.command import JOB, Dicast, refused


def test_help_answers_at_once(dicast: Dicast) -> None:
    """0.3 s on an idle machine. CPU time, for this one may be busy, and the least of five."""
    took_s = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        run = dicast("--help")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        took_s.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        assert run.returncode == 0
    assert min(took_s) < 0.3


@pytest.mark.parametrize(
    "command",
    ["", "run", "jobs", "jobs export", "jobs watch", "governor", "governor set", "cluster", "cluster drain", "doctor"],
)
def test_help_loads_nothing_heavy(command: str, environ: dict[str, str], tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "dicast.app.cli.main", *command.split(), "--help"],
        cwd=tmp_path, env=environ, capture_output=True, text=True, check=True,
    )  # fmt: skip
    loaded = {line.rpartition("|")[2].strip().partition(".")[0] for line in run.stderr.splitlines()}
    assert not loaded & {"celery", "kombu", "redis", "numpy", "pyarrow", "openai", "anthropic", "aiohttp", "yaml"}
    assert all(len(line) <= 80 for line in run.stdout.splitlines())


def test_no_summary_of_a_command_is_cut(dicast: Dicast) -> None:
    """Of 80 columns."""
    commands = vars(get_command(cli))["commands"]
    groups = [name for name, command in commands.items() if "commands" in vars(command)]
    assert {"jobs", "cluster"} <= set(groups)
    for group in ([], *([name] for name in groups)):
        summaries = dicast(*group, "--help").stdout.partition("Commands:")[2]
        assert summaries and "..." not in summaries, group


def test_version(dicast: Dicast) -> None:
    run = dicast("--version")
    assert (run.returncode, run.stdout.split()[0].rstrip(",")) == (0, "dicast")


def test_without_a_worker_nothing_is_submitted(dicast: Dicast) -> None:
    said = refused(dicast("run", "job.json"))
    assert "no worker is alive" in said
    assert "celery -A dicast worker" in said
    assert "--local" in said
    assert json.loads(dicast("jobs", "list", "--json").stdout) == []


def test_a_pools_file_of_the_older_shape_is_printed_in_the_present_one(at_once: Dicast, tmp_path: Path) -> None:
    (tmp_path / "pools.toml").write_text('provider = "simulated"\nlimit = 4\n')
    run = at_once("pools")
    assert run.stdout.splitlines() == [
        'default = "default"', "", "[pools.default]", 'provider = "simulated"', 'dialect = "openai"',
        'model = "simulated-judge"', "limit = 4",
    ]  # fmt: skip
    assert "dicast pools prints the new one" in at_once("doctor").stdout
    (tmp_path / "pools.toml").write_text(run.stdout)
    assert at_once("pools").stdout == run.stdout
    assert "dicast pools" not in at_once("doctor").stdout


def test_a_detached_job_waits_for_a_worker(at_once: Dicast) -> None:
    run = at_once("run", "job.json", "--detach", "--project", "team", "--set", "replicates=4")
    assert run.returncode == 0
    job_id = run.stdout.strip()
    assert f"dicast jobs watch {job_id}" in run.stderr
    [listed] = json.loads(at_once("jobs", "list", "--json").stdout)
    shown = json.loads(at_once("jobs", "show", job_id, "--json").stdout)
    waits = "no worker is alive; start one: celery -A dicast worker"  # a list does not look for what each waits
    assert {**listed, "report": None, "waits_for": waits} == shown
    assert (shown["id"], shown["state"], shown["project"], shown["units"]) == (job_id, "submitted", "team", 4)
    assert "0 of 4 done" in at_once("jobs", "show", job_id).stdout
    line = at_once("jobs", "list").stdout.splitlines()[1]
    assert line.split()[:3] == [job_id, "team", "submitted"]


def test_the_message_is_a_task_of_the_job_s_id(dicast: Dicast, environ: dict[str, str]) -> None:
    job_id = json.loads(dicast("run", "job.json", "--detach", "--json").stdout)["job_id"]
    app = create_app(environ)
    with app.connection_for_read() as connection:
        message = app.amqp.queues["dicast.control"](connection.default_channel).get(no_ack=True)
    assert message.headers["id"] == job_id
    assert message.headers["task"] == "dicast.evaluate"
    assert message.payload[0] == [job_id]
    assert b"a text" not in message.body
    app.close()


def test_the_same_job_again_is_the_same_job(at_once: Dicast, tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text(json.dumps({**JOB, "id": "once"}))
    assert [at_once("run", "job.json", "-d").stdout for _ in range(2)] == ["once\n", "once\n"]
    said = refused(at_once("run", "job.json", "-d", "--set", "replicates=2"))
    assert "job 'once' was submitted before with other content" in said


def test_a_job_can_come_by_standard_input(dicast: Dicast, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"id": "r", "text": "t"}\n{"id": "s", "text": "u"}\n')
    run = dicast("run", "-", "--detach", stdin=json.dumps({**JOB, "items": "rows.jsonl"}))
    assert run.returncode == 0, run.stderr
    assert json.loads(dicast("jobs", "show", run.stdout.strip(), "--json").stdout)["units"] == 2


def test_items_are_found_from_another_folder(at_once: Dicast, tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "er"
    folder.mkdir(parents=True)
    (folder / "rows.jsonl").write_text('{"id": "r", "text": "t"}\n')
    (folder / "job.yaml").write_text(json.dumps({**JOB, "items": "rows.jsonl"}))
    run = at_once("run", "deep/er/job.yaml", "--detach")
    assert run.returncode == 0, run.stderr


def test_cancel_sends_for_the_report(at_once: Dicast, environ: dict[str, str]) -> None:
    job_id = at_once("run", "job.json", "--detach").stdout.strip()
    run = at_once("jobs", "cancel", job_id)
    assert run.returncode == 0
    assert f"job {job_id} makes no new calls" in run.stderr
    app = create_app(environ)
    with app.connection_for_read() as connection:
        queue = app.amqp.queues["dicast.control"](connection.default_channel)
        tasks = [queue.get(no_ack=True).headers["task"] for _ in range(2)]
    assert tasks == ["dicast.evaluate", "dicast.finish_job"]
    app.close()
    again = at_once("jobs", "cancel", job_id)
    assert again.returncode == 0
    assert "was finishing already" in again.stderr


@pytest.mark.parametrize(
    "arguments, said",
    [
        (("run", "none.yaml"), "none.yaml: cannot be read"),
        (("run", "job.json", "--local", "--detach"), "so the job cannot go on detached"),
        (("run", "job.json", "--local", "--on-interrupt", "detach"), "so the job cannot go on detached"),
        (("run", "job.json", "--detach", "--out", "x"), "fetch them with"),
        (("run", "job.json", "-d", "--set", "agents.0.temperature=9", "--set", "replicates=0"),
         "agents[0].temperature: must be <= 2, got 9\n  replicates: must be >= 1, got 0"),
        (("run", "job.json", "-d", "--set", "agents.0.pool=smi"), "there is no pool 'smi'; did you mean 'sim'?"),
        (("run", "job.json", "--set", "agents.0.pool=smi"), "there is no pool 'smi'"),
        (("run", "job.json", "-d", "--set", "items=rows.jsonl"), "rows.jsonl"),
        (("run", "job.json", "--out", "job.json"), "job.json: Not a directory"),
        (("run", "job.json", "--on-interrupt", "die"), "on-interrupt"),
        (("run", "job.json", "--nonsense"), "nonsense"),
        (("jobs", "show", "nobody"), "no job 'nobody'"),
        (("jobs", "watch", "nobody"), "no job 'nobody'"),
        (("jobs", "cancel", "nobody"), "no job 'nobody'"),
        (("jobs", "export", "nobody", "--format", "csv", "--to", "x"), "no job 'nobody'"),
        (("jobs", "export", "../x", "--format", "csv", "--to", "x"), "may hold only letters"),
        (("jobs", "export", "nobody", "--format", "xml", "--to", "x"), "xml"),
    ],
)  # fmt: skip
def test_refusals_name_the_reason(at_once: Dicast, arguments: tuple[str, ...], said: str) -> None:
    assert said in refused(at_once(*arguments))


def test_wrong_settings_end_a_process_before_it_does_anything(dicast: Dicast) -> None:
    for arguments in (("jobs", "list"), ("run", "job.json"), ("run", "job.json", "--local")):
        assert refused(dicast(*arguments, MAX_CONCURRENT_LLM_CALLS="0")) == (
            "dicast: MAX_CONCURRENT_LLM_CALLS must be >= 1, got 0\n"
        )


@pytest.mark.parametrize(
    "settings, said",
    [
        ({"MAX_CONCURRENT_LLM_CALLS": "0"}, "MAX_CONCURRENT_LLM_CALLS must be >= 1, got 0"),
        ({"DICAST_RESULT_DIR": "x"}, "unknown setting DICAST_RESULT_DIR; did you mean DICAST_RESULTS_DIR?"),
        ({"REDIS_URL": "redis://:pass/w0rdw0rd@localhost"}, "REDIS_URL cannot be understood"),
        ({"REDIS_URL": "http://localhost"}, "REDIS_URL cannot be understood"),
        ({"REDIS_URL": "redis://:w0rdw0rd@127.0.0.1:1/0"}, "the store does not answer: ConnectionError"),
    ],
)
def test_wrong_settings_are_one_line(at_once: Dicast, settings: dict[str, str], said: str) -> None:
    for arguments in (("jobs", "list"), ("run", "job.json")):
        told = refused(at_once(*arguments, **settings))
        assert said in told
        assert len(told.splitlines()) <= 2
        assert "w0rd" not in told
        assert "'pass'" not in told


def test_nothing_that_a_job_says_reaches_the_terminal_raw(at_once: Dicast) -> None:
    hostile = "[bold red]x[/] \x1b[2J\u202e"
    told = refused(at_once("run", "job.json", "-d", "--set", f"agents.0.pool={json.dumps(hostile)}"))
    assert "\x1b" not in told
    assert "\u202e" not in told
    project = at_once("run", "job.json", "--detach", "--project", "[red]x[/red]")
    assert project.returncode == 0
    assert "[red]x[/red]" in at_once("jobs", "list").stdout


def test_an_unreadable_terminal_encoding_loses_no_output(dicast: Dicast, at_once: Dicast) -> None:
    job_id = at_once("run", "job.json", "--detach", "--project", "équipe").stdout.strip()
    for arguments, shown in ((("jobs", "list"), "\\xe9quipe"), (("jobs", "show", job_id, "--json"), "équipe")):
        run = dicast(*arguments, PYTHONIOENCODING="ascii")
        assert run.returncode == 0, run.stderr
        assert shown in run.stdout


def test_an_export_waits_for_the_end(at_once: Dicast) -> None:
    job_id = at_once("run", "job.json", "--detach").stdout.strip()
    said = refused(at_once("jobs", "export", job_id, "--format", "csv", "--to", "x.csv"))
    assert f"job {job_id} is submitted" in said


def test_a_job_that_nobody_starts_is_watched_and_left(dicast: Dicast, environ: dict[str, str], tmp_path: Path) -> None:
    """A node that beats but takes nothing: the watcher leaves on a signal, with the code that says so."""
    app = create_app(environ)
    app.registry.announce(Node.for_this_process("w@test", limit=5, slots=5))
    process = subprocess.Popen(
        [sys.executable, "-m", "dicast.app.cli.main", "run", "job.json"],
        cwd=tmp_path, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    said = process.stderr.readline()
    assert said.startswith("submitted: 0 of 1 units")
    process.terminate()
    out, rest = process.communicate(timeout=20)
    assert (process.returncode, out) == (3, "")
    assert "Detached. The job goes on:" in rest
    [job] = json.loads(dicast("jobs", "list", "--json").stdout)
    assert (job["state"], f"dicast jobs watch {job['id']}" in rest) == ("submitted", True)
    app.close()


def test_a_worker_that_falls_silent_is_told(dicast: Dicast, environ: dict[str, str], tmp_path: Path) -> None:
    app: Any = create_app(environ)
    node = Node.for_this_process("w@test", limit=5, slots=5)
    app.registry.announce(node)
    process = subprocess.Popen(
        [sys.executable, "-m", "dicast.app.cli.main", "run", "job.json"],
        cwd=tmp_path, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    assert "no worker" not in process.stderr.readline()
    app.registry.deregister(node)
    assert "no worker is alive, so the job waits" in process.stderr.readline()
    app.registry.announce(node)
    assert "no worker" not in process.stderr.readline()
    process.terminate()
    process.communicate(timeout=20)
    app.close()


def test_a_store_that_forgets_the_job_is_told(environ: dict[str, str], tmp_path: Path) -> None:
    app: Any = create_app(environ)
    app.registry.announce(Node.for_this_process("w@test", limit=5, slots=5))
    process = subprocess.Popen(
        [sys.executable, "-m", "dicast.app.cli.main", "run", "job.json"],
        cwd=tmp_path, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    process.stderr.readline()
    app.store.flushdb()
    _, rest = process.communicate(timeout=20)
    assert process.returncode == 3
    assert "any more: was the store emptied?" in rest
    app.close()


def test_a_reader_that_has_enough_is_no_error(dicast: Dicast, environ: dict[str, str], tmp_path: Path) -> None:
    for _ in range(2):
        assert dicast("run", "job.json", "--detach").returncode == 0
    process = subprocess.Popen(
        [sys.executable, "-m", "dicast.app.cli.main", "jobs", "list", "--json"],
        cwd=tmp_path, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == b""
    process.stderr.close()
    process.wait(timeout=20)


def test_stop_ends_what_outlives_commands(environ: dict[str, str], at_once: Dicast) -> None:
    embedded = {**environ, "REDIS_URL": ""}
    assert "Nothing runs in" in at_once("stop", **embedded).stderr
    app: Any = create_app(embedded)
    try:
        node = Node.for_this_process("w@test", limit=5, slots=5)
        app.registry.announce(node)
        assert "workers live on this store (w@test)" in refused(at_once("stop", **embedded))
        app.registry.deregister(node)
        assert "Stopped the embedded Valkey" in at_once("stop", **embedded).stderr
        with pytest.raises(redis.ConnectionError):
            app.store.ping()
    finally:
        stop(environ["DICAST_STATE_DIR"])
        app.close()


def test_the_limit_that_binds_a_pool_is_told(at_once: Dicast, tmp_path: Path) -> None:
    """Before a job starts, by `validate`, and by the doctor."""
    with (tmp_path / "pools.toml").open("a") as file:
        file.write("limit = 20\nceiling = 40\n")
    said = "pool sim: limit = 20 and ceiling = 40 in the pools file, but MAX_CONCURRENT_LLM_CALLS is 5: 5 binds"
    assert said in at_once("validate", "job.json").stderr
    assert said in at_once("run", "job.json", "--detach").stderr
    doctor = at_once("doctor").stdout
    assert said in doctor
    assert (
        "raise MAX_CONCURRENT_LLM_CALLS for all workers (above 50, DICAST_MAX_CONCURRENT_LLM_CALLS_RANGE first)"
        in doctor
    )
    wide = {"MAX_CONCURRENT_LLM_CALLS": "30"}
    assert "ceiling = 40 in the pools file, but MAX_CONCURRENT_LLM_CALLS is 30" in at_once("doctor", **wide).stdout
    assert "binds" not in at_once("validate", "job.json", MAX_CONCURRENT_LLM_CALLS="40").stderr


@pytest.mark.parametrize("options", [(), ("--local",), ("--dry-run",), ("--detach",)])
def test_a_file_is_checked_before_anything_starts(
    at_once: Dicast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    """The store is away, and nobody asks it: the file's name is what is wrong."""
    monkeypatch.setattr("dicast.app.operator.stack.LocalStack", None)
    (tmp_path / "answers.jsonl").write_text('{"id": 1, "text": "a"}\n{"id": 2, "text": " "}\n')
    away = {"REDIS_URL": "redis://127.0.0.1:1/0"}
    said = refused(at_once("run", "job.json", "--set", "items=anwsers.jsonl", *options, **away))
    assert "anwsers.jsonl: cannot be read: No such file or directory; did you mean answers.jsonl?" in said
    said = refused(at_once("run", "job.json", "--set", "items=answers.jsonl", *options, **away))
    assert "answers.jsonl, line 2: text: must be text, not blank, got ' '" in said
    said = refused(at_once("run", "job.json", "--set", "agents.0.pool=smi", *options, **away))
    assert "there is no pool 'smi'; did you mean 'sim'?" in said


def test_a_dry_run_is_a_validation(at_once: Dicast) -> None:
    """The counts, and the prompt that the first call will send; nothing is stored."""
    change = ("--set", "replicates=3", "--set", "agents.0.persona=You are strict.")
    run = at_once("run", "job.json", "--dry-run", *change, REDIS_URL="redis://127.0.0.1:1/0")
    assert run.stdout == at_once("validate", "job.json", *change, DICAST_NONCE_KEY="x" * 32).stdout.replace(
        _code(at_once("validate", "job.json", *change, DICAST_NONCE_KEY="x" * 32).stdout), _code(run.stdout)
    )
    assert run.stdout.startswith("1 item x 1 agent x 1 dimension x 3 replicates = 3 units, 3 calls\n")
    assert "You are strict.\n\nYou are one judge of a panel." in run.stdout
    assert "> a text\nEND OF MATERIAL " in run.stdout
    shown = json.loads(at_once("validate", "job.json", "--json").stdout)
    assert (shown["units"], shown["calls"], shown["judges"]) == (1, 1, {"a": ["pool sim, simulated-judge"]})
    assert shown["first_call"]["user"].startswith("MATERIAL\n")
    assert json.loads(at_once("jobs", "list", "--json").stdout) == []


def _code(shown: str) -> str:
    return shown.partition("END OF MATERIAL ")[2][:16]
