"""`dicast doctor` prints its findings as they are made; colour and exit code show the worst."""

from __future__ import annotations

from dataclasses import asdict
from textwrap import TextWrapper

import orjson
from rich.text import Text

from dicast.app.cli.console import Terminal
from dicast.app.cli.progress import plural
from dicast.app.doctor import Finding, Severity, examine
from dicast.config.settings import environment
from dicast.errors import Exit

MARKS = {
    Severity.OK: ("ok", "green"),
    Severity.INFO: ("info", "cyan"),
    Severity.WARNING: ("warning", "yellow"),
    Severity.ERROR: ("ERROR", "bold red"),
}
NEVER = 100_000
"""The line width when output goes to a file, so that no line is wrapped."""
MARK_WIDTH = max(len(mark) for mark, _ in MARKS.values())


def show_findings(terminal: Terminal, *, call: bool, json: bool) -> Exit:
    """Print the findings. Returns `Exit.FAILED` if any of them is an error."""
    findings: list[Finding] = []
    for finding in examine(environment(), call=call):
        findings.append(finding)
        if not json:
            _show(terminal, finding)
    errors = sum(finding.severity is Severity.ERROR for finding in findings)
    warnings = sum(finding.severity is Severity.WARNING for finding in findings)
    if json:
        document = {"ok": not errors, "findings": [asdict(finding) for finding in findings]}
        terminal.emit(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode())
    else:
        counts = f"{plural(errors, 'error', 'errors')}, {plural(warnings, 'warning', 'warnings')}"
        terminal.out.print(f"\n{counts}" if errors or warnings else "\nAll is well.")
    return Exit.FAILED if errors else Exit.OK


def _show(terminal: Terminal, finding: Finding) -> None:
    mark, style = MARKS[finding.severity]
    out = terminal.out
    margin = " " * (MARK_WIDTH + 2)
    layout = TextWrapper(
        width=out.width if out.is_terminal else NEVER, break_on_hyphens=False, initial_indent=margin,
        subsequent_indent=margin,
    )  # fmt: skip
    text = layout.fill(f"{finding.area}: {finding.message}")
    out.print(Text.assemble((mark.ljust(len(margin)), style), text.removeprefix(margin)), soft_wrap=True)
    if finding.advice:
        out.print(Text(layout.fill(finding.advice), style="italic"), soft_wrap=True)
