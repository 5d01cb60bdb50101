"""Checks that a job's template fits its items before the job is accepted, and reads templates from files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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
from dicast.app.rendering import shared

MOST_TRIED = 100_000
"""The most items tried, divided by the number of templates; each takes a tenth of a millisecond. Items beyond fail when
they are to be judged."""
MOST_WORK = 1_000_000_000
"""The most work of all trials, as templates count it: some seconds of CPU time. It ends the trial as `MOST_TRIED`
does."""
TRIED_AT_ONCE = 64
BYTES_AT_ONCE = 250_000
"""Renderings that are requested together, or fewer by their items' texts. Other jobs' trials wait meanwhile."""
PAIRS_TRIED = 3
"""The pairs tried of each list of candidates: all have the same fields."""
_CODE = "5f0c2a9be1d47783"


class Trials:
    """Tries all of a job's templates on its first items. Raises `JobRefused` for an invalid template."""

    def __init__(self, job: EvaluationJob) -> None:
        self._job = job
        self._templates = list(_needed(job))
        self._hidden = job.rating_columns
        self._items, self._work = MOST_TRIED if self._templates else 0, MOST_WORK
        self._waiting: list[tuple[str, str, Item]] = []
        self._bytes = 0
        for field, template in self._templates:
            try:
                shared.check(template)
            except TemplateError as error:
                raise JobRefused(printable(f"{field}: {error}", 300)) from None

    def add(self, item: Item) -> None:
        """Take the next item. Raises `JobRefused`, naming template, item and field, for one that does not fit; it may
        be an earlier one."""
        if self._items <= 0 or self._work <= 0:
            return
        for judged in _judged(self._job, item.without(self._hidden)):
            self._waiting += [(field, template, judged) for field, template in self._templates]
            self._items -= len(self._templates)
            self._bytes += len(self._templates) * judged.stored_bytes
        if len(self._waiting) >= TRIED_AT_ONCE or self._bytes >= BYTES_AT_ONCE:
            self.finish()

    def finish(self) -> None:
        """Try what has not been tried yet. Raises `JobRefused`."""
        waiting, self._waiting, self._bytes = self._waiting, [], 0
        trials = shared.trials([(template, item) for _, template, item in waiting], _CODE) if waiting else []
        for (field, _, _), trial in zip(waiting, trials, strict=True):
            if trial.error is not None:
                raise JobRefused(printable(f"{field}: {trial.error}", 300))
            self._work -= trial.work


def _needed(job: EvaluationJob) -> Iterator[tuple[str, str]]:
    """Yield the templates by which anything is shown, each once, with its field."""
    fields = {job.template: "template"}
    fields |= {agent.template: f"agents: the template of {agent.name!r}" for agent in job.agents}
    fields |= {d.template: f"dimensions: the template of {d.id!r}" for d in job.dimensions}
    needed = dict.fromkeys(job.template_for(agent, dimension) for agent in job.agents for dimension in job.dimensions)
    for template in needed:
        if template is not None:
            yield fields[template], template


def _judged(job: EvaluationJob, item: Item) -> Iterable[Item]:
    """Return the item as it is judged: of a list of candidates some of its pairs."""
    return [item] if job.pairs is None else islice(PairsOfLists(job.pairs).items(item), PAIRS_TRIED)


def with_template(document: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return the job's document with the contents of the template files that it, its agents and its dimensions name. A
    text that has neither `{{` nor a line break is a file name. Raises `JobRefused`."""
    resolved = _read("template", document, folder)
    for field in ("agents", "dimensions"):
        if isinstance(parts := resolved.get(field), list):
            read = [_read(f"{field}: template", part, folder) if isinstance(part, dict) else part for part in parts]
            resolved = {**resolved, field: read}
    return resolved


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
