"""`dicast validate` and `run --dry-run` show what a job would do, before anything is stored, started or paid for."""

from __future__ import annotations

import secrets
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson
from rich.table import Table
from rich.text import Text

from dicast.app import datasets
from dicast.app.application import Dicast
from dicast.app.cli.console import Terminal
from dicast.app.cli.progress import plural
from dicast.app.domain.arrangement import arrangement_of
from dicast.app.domain.deadlines import instant_ms
from dicast.app.domain.item import Item, ItemSource
from dicast.app.domain.nonce import nonce_for
from dicast.app.domain.printable import printable
from dicast.app.domain.probes import count_variants, variant_probes
from dicast.app.domain.prompt import Prompt, batch_prompt, single_prompt
from dicast.app.domain.rating import RatingCounts
from dicast.app.pipeline.nonce_key import configured_key
from dicast.app.refusals import JobRefused
from dicast.app.rendering import shared
from dicast.app.reports.assessing import MISSING, has_libraries
from dicast.app.submission.submit import Prepared, field_needing_libraries
from dicast.config.pools import PoolSpec


@dataclass(frozen=True, slots=True)
class FirstUnit:
    """The first call of a job; `dimensions` has the ids of the dimensions that it asks for."""

    item: str
    agent: str
    dimensions: list[str]
    prompt: Prompt


def show_plan(terminal: Terminal, dicast: Dicast, ready: Prepared, *, json: bool) -> None:
    """Show counts, judges, known obstacles, and the whole prompt of the first call. Raises `JobRefused` for a job
    that would end before its first call."""
    end = ready.job.finish_by
    if isinstance(end, str) and instant_ms(end) <= 1000 * time.time():
        raise JobRefused(f"finish_by: {end} has passed")
    first = first_unit(dicast, ready)
    remarks = notes(dicast, ready)
    if json:
        terminal.emit(orjson.dumps(_plan_document(dicast, ready, first, remarks), option=orjson.OPT_INDENT_2).decode())
        return
    job = ready.job
    counts = (
        _item_counts(ready), plural(len(job.agents), "agent", "agents"),
        plural(len(job.dimensions), "dimension", "dimensions"), plural(job.replicates, "replicate", "replicates"),
        *(["2 orders"] if job.both_orders else []),
    )  # fmt: skip
    units, calls = plural(ready.units, "unit", "units"), plural(ready.calls, "call", "calls")
    out = terminal.out
    out.print(f"{' x '.join(counts)} = {units}, {calls}", soft_wrap=True)
    rows = Table.grid(padding=(0, 2, 0, 0))
    rows.add_row(Text("items", style="dim"), Text(f"{_items(ready)}, {ready.text_bytes:,} bytes of text"))
    if ready.variants:
        rows.add_row(Text("probes", style="dim"), Text(_probes(ready)))
    if ready.ratings is not None:
        rows.add_row(Text("ratings", style="dim"), Text(_ratings(ready.ratings)))
    for agent in job.agents:
        rows.add_row(Text(printable(agent.name, 40), style="dim"), Text(", or ".join(_places(dicast, agent.choices))))
    out.print(rows)
    for note in remarks:
        terminal.say(note, "yellow")
    dimension_ids = printable(", ".join(first.dimensions))
    heading = f"\nThe first call: item {printable(first.item)}, agent {printable(first.agent)}, {dimension_ids}"
    out.print(Text(heading, "bold"), soft_wrap=True)
    for title, text in (("system", first.prompt.system), ("user", first.prompt.user)):
        out.print(Text(f"--- {title}", "dim"))
        for line in text.splitlines():
            out.print(Text(printable(line)), soft_wrap=True)
    if first.prompt.schema is not None:
        out.print(Text("--- the answer's schema", "dim"))
        out.print(Text(orjson.dumps(first.prompt.schema).decode()), soft_wrap=True)
    code = "" if _nonce_key(dicast) else " The code at the material's end will be another."
    terminal.say(f"Nothing was submitted.{code}", "dim")


def notes(dicast: Dicast, ready: Prepared) -> list[str]:
    """Return what one should know before this job starts."""
    names = dict.fromkeys(place.pool for agent in ready.job.agents for place in agent.choices)
    specs = {spec.name: spec for spec in map(dicast.pools.get, names)}.values()
    most = dicast.settings.max_concurrent_llm_calls
    remarks = list(ready.warnings)
    remarks += [f"pool {spec.name}: {cut}" for spec in specs if (cut := spec.cut_to(most)) is not None]
    remarks += [
        f"pool {spec.name}: {spec.api_key_env} is not set here; its workers need it"
        for spec in specs
        if _is_missing_key(dicast, spec)
    ]
    if (field := field_needing_libraries(ready.job)) and not has_libraries():
        remarks.append(f"{field}: {MISSING}; its workers need them")
    return remarks


def missing_key(dicast: Dicast, ready: Prepared) -> str | None:
    """Return why a worker of this machine could not call one of the job's agents, None if it could call all of them."""
    for agent in ready.job.agents:
        specs = [dicast.pools.get(place.pool) for place in agent.choices]
        if all(_is_missing_key(dicast, spec) for spec in specs):
            return f"agents: {agent.name!r} needs pool {specs[0].name}, and {specs[0].api_key_env} is not set"
    return None


def _is_missing_key(dicast: Dicast, spec: PoolSpec) -> bool:
    return bool(spec.api_key_env) and not dicast.environ.get(spec.api_key_env or "")


def first_unit(dicast: Dicast, ready: Prepared) -> FirstUnit:
    """Return the first call with its prompt as a judge will get it. Only the nonce differs if its secret is kept in
    the store."""
    job, lane = ready.job, ready.lanes[0]
    unit = lane.unit(0)
    agent, item = job.agents[unit.agent], _first_judged(ready)
    dimensions = job.dimensions if lane.batched else [job.dimensions[unit.dimension]]
    template = job.template_for(agent, dimensions[0])
    nonce = nonce_for(_nonce_key(dicast) or secrets.token_bytes(32), agent, dimensions, item, unit.replicate, template)
    arranged = None if template is None else shared.lines(template, item.without(job.rating_columns), nonce)
    spec = dicast.pools.get(agent.choices[0].pool)
    fixed = spec.nonce_in_schema
    if lane.batched:
        prompt = batch_prompt(agent, dimensions, item, nonce, fixed_nonce=fixed, arranged=arranged)
    else:
        structured = spec.structured_output
        prompt = single_prompt(
            agent, dimensions[0], item, nonce, structured=structured, fixed_nonce=fixed, arranged=arranged
        )
    return FirstUnit(item.id, agent.name, [dimension.id for dimension in dimensions], prompt)


def _nonce_key(dicast: Dicast) -> bytes | None:
    return configured_key(dicast.settings, dicast.keys.namespace)


def _first_item(ready: Prepared) -> Item:
    if isinstance(ready.job.items, ItemSource):
        return datasets.read_page(ready.job.items, None, 1)[0][0]
    return ready.job.items[0]


def _first_judged(ready: Prepared) -> Item:
    """Return the first item as a judge sees it: of a list of candidates its first pair, and without people's
    ratings."""
    job = ready.job
    return next(arrangement_of(job).expanded(iter([_first_item(ready).without(job.rating_columns)])))


def _items(ready: Prepared) -> str:
    source = ready.job.items
    return printable(Path(source.path).name, 60) if isinstance(source, ItemSource) else "in the job"


def _item_counts(ready: Prepared) -> str:
    items = plural(ready.base_items, "item", "items")
    return f"({items} + {plural(ready.variants, 'variant', 'variants')})" if ready.variants else items


def _probes(ready: Prepared) -> str:
    """Describe the variants that are judged for probes, and their calls."""
    variants = ", ".join(
        f"{probe.probe} {plural(count_variants([probe], ready.base_items), 'variant', 'variants')}"
        for probe in variant_probes(ready.job.probes)
    )
    return f"{variants}; {plural(ready.probe_calls, 'call', 'calls')} of the {ready.calls:,} are for them"


def _ratings(counts: RatingCounts) -> str:
    raters = printable(", ".join(counts.raters), 100)
    return (
        f"{plural(counts.ratings, 'rating', 'ratings')} of {plural(counts.items, 'item', 'items')} by "
        f"{plural(len(counts.raters), 'rater', 'raters')} ({raters}); no judge is shown any"
    )


def _places(dicast: Dicast, choices: Any) -> list[str]:
    specs = [(dicast.pools.get(place.pool), place.model) for place in choices]
    return [f"pool {spec.name}, {printable(model or spec.model, 60)}" for spec, model in specs]


def _plan_document(dicast: Dicast, ready: Prepared, first: FirstUnit, remarks: list[str]) -> dict[str, Any]:
    job = ready.job
    return {
        "items": ready.items, "agents": len(job.agents), "dimensions": len(job.dimensions),
        "replicates": job.replicates, "orders": 2 if job.both_orders else 1, "units": ready.units, "calls": ready.calls,
        "variants": ready.variants, "probe_calls": ready.probe_calls, "text_bytes": ready.text_bytes,
        "ratings": asdict(ready.ratings) if ready.ratings is not None else None,
        "judges": {agent.name: _places(dicast, agent.choices) for agent in job.agents},
        "notes": remarks,
        "first_call": {
            "item": first.item, "agent": first.agent, "dimensions": first.dimensions, "system": first.prompt.system,
            "user": first.prompt.user, "schema": first.prompt.schema, "max_tokens": first.prompt.max_tokens,
        },
    }  # fmt: skip
