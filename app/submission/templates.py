"""Whether a job's template fits its items, before the job is taken; and templates in files of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from dicast.app.datasets.kinds import located
from dicast.app.domain.item import Item
from dicast.app.domain.job import EvaluationJob
from dicast.app.domain.material import TemplateError
from dicast.app.domain.printable import printable
from dicast.app.domain.ranking import PairsOfLists
from dicast.app.refusals import JobRefused

MOST_TRIED = 100_000
"""Items, or fewer by the number of templates; each takes a tenth of a millisecond. What fails behind them fails when it
is to be judged."""
PAIRS_TRIED = 3
"""Of each list of candidates: all have the same fields."""
_CODE = "5f0c2a9be1d47783"


def trying(job: EvaluationJob, seen: Callable[[Item], None]) -> Callable[[Item], None]:
    """`seen`, after each of the first `MOST_TRIED` items has been through all of the job's templates. What it gives
    raises `JobRefused`, naming template, item and field. Raises it itself for what is no template."""
    templates = list(_needed(job))
    if not templates:
        return seen
    from dicast.app.domain.template import check_template, rendered  # noqa: PLC0415  (few jobs need Jinja2)

    for field, template in templates:
        try:
            check_template(template)
        except TemplateError as error:
            raise JobRefused(printable(f"{field}: {error}", 300)) from None

    tried = 0
    hidden = job.rating_columns

    def tries(item: Item) -> None:
        nonlocal tried
        for shown in _judged(job, item) if tried < MOST_TRIED else ():
            for field, template in templates:
                tried += 1
                try:
                    rendered(template, shown.without(hidden), _CODE)
                except TemplateError as error:
                    raise JobRefused(printable(f"{field}: {error}", 300)) from None
        seen(item)

    return tries


def _needed(job: EvaluationJob) -> Iterator[tuple[str, str]]:
    """The templates by which anything is shown, each once, with its field."""
    fields = {job.template: "template"}
    fields |= {agent.template: f"agents: the template of {agent.name!r}" for agent in job.agents}
    fields |= {d.template: f"dimensions: the template of {d.id!r}" for d in job.dimensions}
    needed = dict.fromkeys(job.template_for(agent, dimension) for agent in job.agents for dimension in job.dimensions)
    for template in needed:
        if template is not None:
            yield fields[template], template


def _judged(job: EvaluationJob, item: Item) -> Iterable[Item]:
    """The item as it is judged: of a list of candidates some of its pairs."""
    return [item] if job.pairs is None else islice(PairsOfLists(job.pairs).items(item), PAIRS_TRIED)


def with_template(document: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The job's document with the texts of the templates' files in the place of their names: of the job, its agents and
    its dimensions. A text that has neither `{{` nor a line break is a name. Raises `JobRefused`."""
    found = _read("template", document, folder)
    for field in ("agents", "dimensions"):
        if isinstance(parts := found.get(field), list):
            read = [_read(f"{field}: template", part, folder) if isinstance(part, dict) else part for part in parts]
            found = {**found, field: read}
    return found


def _read(field: str, document: dict[str, Any], folder: Path) -> dict[str, Any]:
    name = document.get("template")
    if not isinstance(name, str) or "{{" in name or "\n" in name or not name.strip():
        return document
    path = Path(located(name, folder))
    try:
        return {**document, "template": path.read_text(encoding="utf-8")}
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "is not UTF-8"
        raise JobRefused(printable(f"{field}: {path} cannot be read: {reason}", 300)) from None
