"""`dicast doctor`: its findings as they are made, worst ones told by colour and exit code."""

from __future__ import annotations

from dataclasses import asdict

import orjson
from rich.text import Text

from app.doctor import Finding, Severity, examine
from app.terminal.console import Exit, Terminal
from config.settings import environment

MARKS = {
    Severity.OK: ("ok     ", "green"),
    Severity.INFO: ("info   ", "cyan"),
    Severity.WARNING: ("warning", "yellow"),
    Severity.ERROR: ("ERROR  ", "bold red"),
}


def show_findings(terminal: Terminal, *, call: bool, json: bool) -> Exit:
    """`FAILED` if any finding is an error."""
    findings: list[Finding] = []
    for finding in examine(environment(), call=call):
        findings.append(finding)
        if not json:
            _show(terminal, finding)
    errors = sum(finding.severity is Severity.ERROR for finding in findings)
    warnings = sum(finding.severity is Severity.WARNING for finding in findings)
    if json:
        document = {"ok": not errors, "findings": [asdict(finding) for finding in findings]}
        terminal.out.file.write(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode() + "\n")
    else:
        terminal.out.print(f"\n{errors} errors, {warnings} warnings" if errors or warnings else "\nAll is well.")
    return Exit.FAILED if errors else Exit.OK


def _show(terminal: Terminal, finding: Finding) -> None:
    mark, style = MARKS[finding.severity]
    terminal.out.print(Text.assemble((mark, style), f"  {finding.area}: ", finding.message))
    if finding.advice:
        terminal.out.print(Text(f"         {finding.advice}", style="dim"))
