"""The command that counts the modules that one message runs through."""

import re
import subprocess
import sys

from tests.command import ROOT

MODULES_MAX = 35
PARTS = {"app.tasks", "app.pipeline.judge", "app.pipeline.call", "app.providers.openai", "app.ledger.ledger"}
"""What every unit's work runs through, whatever becomes of the rest."""


def traced() -> set[str]:
    run = subprocess.run(
        [sys.executable, "-m", "lab.message_trace"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=100
    )
    *lines, total = run.stdout.splitlines()
    modules = {line.split()[0] for line in lines if re.fullmatch(r"[\w.]+ +\d+", line)}
    assert (counted := re.match(r"modules: (\d+), functions: \d+$", total)) and int(counted[1]) == len(modules)
    return modules


def test_one_message_runs_through_few_modules() -> None:
    modules = traced()
    if len(modules) > MODULES_MAX:
        modules &= traced()  # a busy machine lets other work in between, not the same each time
    assert modules >= PARTS and not [name for name in modules if name.startswith("app.providers.simulated")]
    assert len(modules) <= MODULES_MAX
