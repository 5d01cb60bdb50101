"""The verdict of a gate in the formats that other programs read: JUnit XML, Markdown, CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

from dicast.app.domain.gate import Check, GateVerdict, JobGate
from dicast.app.domain.printable import cell, printable
from dicast.app.domain.report import Report
from dicast.app.reports.durable import replacing

TEXT_CHARS = 1_000
WORDS = {True: "passed", False: "failed", None: "cannot be told"}
_MARKUP = re.compile(r"([\\`*_{}\[\]()#+!|<>&~@:-])")


def write_junit(verdict: GateVerdict, report: Report, out: Path, items: Iterable[tuple[str, list[str]]] = ()) -> None:
    """Write a test suite with a case for each check, whole or not at all. A check that cannot be decided is an
    error. `items` are ids with what is wrong with each; they make a second suite with a case for every item.
    Raises OSError."""
    with replacing(out, private=False) as file:
        file.write(b'<?xml version="1.0" encoding="UTF-8"?>\n<testsuites name="dicast">\n')
        failures = sum(check.passed is False for check in verdict.checks)
        errors = sum(check.passed is None for check in verdict.checks)
        file.write(
            f'<testsuite name={_attribute(verdict.job_id)} tests="{len(verdict.checks)}" failures="{failures}" '
            f'errors="{errors}" time="{report.wall_s:.3f}">\n'.encode()
        )
        file.writelines(_case(check, verdict.job_id) for check in verdict.checks)
        file.write(b"</testsuite>\n")
        if items:
            file.write(f"<testsuite name={_attribute(verdict.job_id + ' items')}>\n".encode())
            file.writelines(_item_case(item, wrong, verdict.job_id) for item, wrong in items)
            file.write(b"</testsuite>\n")
        file.write(b"</testsuites>\n")


def items_below(gate: JobGate, folder: Path, report: Report) -> Iterator[tuple[str, list[str]]]:
    """Yield every item with those of its panel scores that are below the gate's thresholds, in the order of the
    items."""
    from dicast.app.reports.panel import panel_scores  # noqa: PLC0415  (takes long to load)

    last: str | None = None
    wrong: list[str] = []
    for row in panel_scores(folder, report):
        if last is not None and row.item_id != last:
            yield last, wrong
            wrong = []
        last, least = row.item_id, gate.fail_under.get(row.criterion_id)
        score = row.calibrated if gate.calibrated else row.score
        if least is not None and (score is None or score < least):
            finding = "has no score" if score is None else f"has {score:.2f}"
            wrong.append(f"{row.criterion_id} {finding}; at least {least:g}")
    if last is not None:
        yield last, wrong


def markdown(verdict: GateVerdict, report: Report) -> str:
    """Return a summary for a pull request: the verdict, the checks, and the means."""
    head = {True: "✅ passed its gate", False: "❌ failed its gate", None: "⚠️ cannot be judged by its gate"}
    lines = [f"### Job {_escaped(report.job_id)} {head[verdict.passed]}", ""]
    counts = f"{report.scored:,} of {report.units:,} units have a score"
    lines += [f"{counts}, {report.calls:,} calls, {report.input_tokens + report.output_tokens:,} tokens.", ""]
    lines += ["| check | | |", "|---|---|---|"]
    lines += [f"| {_escaped(c.name)} | {WORDS[c.passed]} | {_escaped(c.told, TEXT_CHARS)} |" for c in verdict.checks]
    lines += ["", "| dimension | mean | scale | failed |", "|---|--:|--:|--:|"]
    for row in report.by_dimension[:50]:
        mean = "–" if row.scores.mean is None else f"{row.scores.mean:.2f}"
        scale = f"{row.dimension.scale_min}–{row.dimension.scale_max}"
        lines.append(
            f"| {_escaped(row.dimension.name or row.dimension.id)} | {mean} | {scale} | {row.scores.failures:,} |"
        )
    return "\n".join(lines) + "\n"


def write_csv(verdict: GateVerdict, out: Path) -> None:
    """Write a row for each check, safe for spreadsheets, whole or not at all. Raises OSError."""
    with replacing(out, private=False) as file:
        text = io.TextIOWrapper(file, encoding="utf-8", newline="")
        rows = csv.DictWriter(text, ["job_id", *Check.model_fields], quoting=csv.QUOTE_ALL)
        rows.writeheader()
        for check in verdict.checks:
            row = {"job_id": verdict.job_id, **check.model_dump(), "passed": WORDS[check.passed]}
            rows.writerow(
                {name: cell(printable(value)) if isinstance(value, str) else value for name, value in row.items()}
            )
        text.flush()
        text.detach()


def _attribute(text: str) -> str:
    return quoteattr(printable(text, TEXT_CHARS))


def _case(check: Check, job_id: str) -> bytes:
    message = _attribute(check.told)
    inner = {True: "", False: f"<failure message={message}/>", None: f"<error message={message}/>"}[check.passed]
    output = f"<system-out>{escape(printable(check.told, TEXT_CHARS))}</system-out>"
    return (
        f"<testcase classname={_attribute(job_id)} name={_attribute(check.name)}>{inner}{output}</testcase>\n".encode()
    )


def _item_case(item: str, wrong: list[str], job_id: str) -> bytes:
    inner = f"<failure message={_attribute('; '.join(wrong))}/>" if wrong else ""
    return f"<testcase classname={_attribute(job_id)} name={_attribute(item)}>{inner}</testcase>\n".encode()


def _escaped(text: str, limit: int = 200) -> str:
    """Escape everything that has a meaning in Markdown."""
    return _MARKUP.sub(r"\\\1", printable(text, limit))
