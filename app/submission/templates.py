"""Whether a job's template fits its items, before the job is taken; and templates in files of their own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from dicast.app.datasets.kinds import located
from dicast.app.domain.item import Item
from dicast.app.domain.job import EvaluationJob
from dicast.app.domain.material import TemplateError
from dicast.app.domain.printable import printable
from dicast.app.refusals import JobRefused

MOST_TRIED = 100_000
"""Items; it takes a tenth of a millisecond each. What fails behind them fails when it is to be judged."""
_CODE = "5f0c2a9be1d47783"


def trying(job: EvaluationJob, seen: Callable[[Item], None]) -> Callable[[Item], None]:
    """`seen`, after each of the first `MOST_TRIED` items has been through the job's template. What it gives raises
    `JobRefused`, naming item and field. Raises it itself for what is no template."""
    template = job.template
    if template is None:
        return seen
    from dicast.app.domain.template import check_template, rendered  # noqa: PLC0415  (few jobs need Jinja2)

    try:
        check_template(template)
    except TemplateError as error:
        raise JobRefused(printable(f"template: {error}", 300)) from None

    tried = 0
    hidden = job.rating_columns

    def tries(item: Item) -> None:
        nonlocal tried
        if tried < MOST_TRIED:
            tried += 1
            try:
                rendered(template, item.without(hidden), _CODE)
            except TemplateError as error:
                raise JobRefused(printable(f"template: {error}", 300)) from None
        seen(item)

    return tries


def with_template(document: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The job's document with the text of the template's file in the place of its name. A text that has neither `{{`
    nor a line break is a name. Raises `JobRefused`."""
    name = document.get("template")
    if not isinstance(name, str) or "{{" in name or "\n" in name or not name.strip():
        return document
    path = Path(located(name, folder))
    try:
        return {**document, "template": path.read_text(encoding="utf-8")}
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "is not UTF-8"
        raise JobRefused(printable(f"template: {path} cannot be read: {reason}", 300)) from None
