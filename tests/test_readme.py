"""The README's first steps, word by word."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from dicast.app.cli.main import cli
from dicast.app.domain.job import EvaluationJob
from dicast.app.submission.submit import check_job
from tests.command import ROOT, Dicast

README = (ROOT / "README.md").read_text(encoding="utf-8")
OPERATIONS = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
FAQ = (ROOT / "docs" / "faq.md").read_text(encoding="utf-8")
RECIPES = (ROOT / "docs" / "how-to.md").read_text(encoding="utf-8")
TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")


def blocks(language: str, text: str = README) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def commands(text: str) -> list[list[str]]:
    lines = [shlex.split(line, comments=True) for block in blocks("sh", text) for line in block.splitlines()]
    return [words for words in lines if words]


TEXTS = (README, OPERATIONS, FAQ, RECIPES, TUTORIAL)


def _alone(words: list[str]) -> list[str]:
    """A command without what follows where it fails."""
    return words[: words.index("||")] if "||" in words else words


def test_the_programs_are_at_hand_once_the_environment_is_activated() -> None:
    """No command names the environment's folder but the one that activates it."""
    assert [words for words in commands(README) if ".venv" in " ".join(words)] == [["source", ".venv/bin/activate"]]
    first = [words[:2] for words in commands(README)]
    assert (
        first.index(["make", "setup"]) < first.index(["source", ".venv/bin/activate"]) < first.index(["dicast", "init"])
    )


@pytest.mark.parametrize(
    "words",
    [
        words[words.index("dicast") :]
        for words in map(_alone, (w for text in TEXTS for w in commands(text)))
        if "dicast" in words and not {"celery", "git", "make"} & set(words)
    ],
    ids=" ".join,
)
def test_every_command_can_be_given_as_it_stands(words: list[str]) -> None:
    """Options and arguments are parsed; nothing is done."""
    command: Any = get_command(cli)
    context, rest = None, words[1:]
    while True:
        context = command.make_context(command.name, rest, parent=context, resilient_parsing=False)
        if not hasattr(command, "commands"):
            return
        name, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        assert command is not None, name


def test_the_first_job_passes_every_check(at_once: Dicast, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(blocks("yaml")[0])
    run = at_once("validate", "job.yaml", DICAST_POOLS_FILE=str(ROOT / "config" / "pools.toml"))
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("1 item x 2 agents x 2 dimensions x 1 replicate = 4 units, 4 calls\n")


def test_the_parts_of_jobs_in_the_recipes_are_valid() -> None:
    """Each with what it leaves out; those that come in one recipe belong together."""
    whole: dict[str, Any] = {
        "agents": [{"name": "a", "persona": "p"}],
        "dimensions": [{"id": "clear", "instructions": "Is it clear?"}],
        "items": [{"id": "i", "text": "a text", "metadata": {"system": "a"}}],
    }
    parts = [yaml.safe_load(block) for block in blocks("yaml", RECIPES)]
    for part in parts:
        EvaluationJob.model_validate({**whole, **{k: v for k, v in part.items() if k != "calibration"}})
    assert len(parts) > 6


def test_what_init_writes_passes_every_check(at_once: Dicast, tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    run = at_once("init", "new")
    assert run.returncode == 0, run.stderr
    assert "dicast validate new/job.yaml" in run.stderr
    run = at_once("validate", "new/job.yaml", DICAST_POOLS_FILE=str(tmp_path / "new" / "config" / "pools.toml"))
    assert run.returncode == 0, run.stderr
    assert "2 items x 2 agents x 2 dimensions x 1 replicate = 8 units, 8 calls" in run.stdout
    (tmp_path / "new" / "job.yaml").write_text("mine")
    again = at_once("init", "new")
    assert (again.returncode, (tmp_path / "new" / "job.yaml").read_text()) == (2, "mine")
    assert "nothing was changed" in again.stderr


def test_the_recipe_with_a_frame_gives_its_items(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in for the workers."""
    from dicast.app import aio

    monkeypatch.setattr(aio, "evaluate_and_wait", check_job)
    names: dict[str, Any] = {}
    (recipe,) = [block for block in blocks("python", RECIPES) if "pd.DataFrame" in block]
    exec(compile(recipe, "how-to.md", "exec"), names)
    assert [(item.id, item.metadata) for item in names["report"].items] == [
        ("a1", {"system": "new"}), ("a2", {"system": "old"})
    ]  # fmt: skip


def test_the_python_example_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With a stand-in for the workers."""
    from dicast.app import tasks
    from dicast.app.reports import results

    class Answer:
        def get(self) -> str:
            return "the report"

    (tmp_path / "job.yaml").write_text(blocks("yaml")[0])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tasks.evaluate, "delay", lambda job: Answer() if job["project"] == "demo" else None)
    monkeypatch.setattr(results, "load_opinions", lambda report: [report])
    names: dict[str, Any] = {}
    exec(compile(blocks("python")[0], "README.md", "exec"), names)
    assert names["opinions"] == ["the report"]
    assert "dicast.app.tasks" in sys.modules
