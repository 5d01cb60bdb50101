"""A job's template: from a file or in the job, tried on the items before the job is taken, and shown to the judges."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dicast.app.analysis.runs import incompatibilities
from dicast.app.application import create_app
from dicast.app.domain.fingerprints import prompt_digest, template_digest
from dicast.app.domain.job import EvaluationJob
from dicast.app.domain.material import nonce_for
from dicast.app.domain.refusals import JobRefused
from dicast.app.submission.job_file import load_job
from dicast.app.submission.submit import prepare
from tests.reports.building import header

TEMPLATE = "By {{ metadata.author }}:\n{{ text }}"


@pytest.fixture
def app(environ):
    app = create_app(environ)
    yield app
    app.close()


def a_job(items: Any, template: str = TEMPLATE, **more: Any) -> dict[str, Any]:
    return {"items": items, "agents": [{"name": "a"}], "dimensions": [{"id": "d", "instructions": "?"}],
            "template": template, **more}  # fmt: skip


def test_items_that_lack_a_field_are_refused(app: Any, tmp_path: Path) -> None:
    good = {"id": "i0", "text": "t", "metadata": {"author": "ada"}}
    prepare(a_job([good]), pools=app.pools, settings=app.settings)
    with pytest.raises(JobRefused, match="template: item 'i1': it has no 'author'"):
        prepare(a_job([good, {"id": "i1", "text": "t"}]), pools=app.pools, settings=app.settings)
    rows = tmp_path / "items.jsonl"
    rows.write_text('{"id": "r0", "text": "t", "author": "ben"}\n{"id": "r1", "text": "t"}\n')
    with pytest.raises(JobRefused, match="template: item 'r1': it has no 'author'"):
        prepare(a_job(str(rows)), pools=app.pools, settings=app.settings)
    allowed = TEMPLATE.replace("author", "author | default('nobody')")
    assert prepare(a_job(str(rows), allowed), pools=app.pools, settings=app.settings).items == 2


def test_ratings_cannot_be_shown(app: Any) -> None:
    job = a_job(
        [{"id": "i0", "text": "t", "metadata": {"stars": 4}}], "{{ text }}{{ metadata.stars }}",
        ratings={"columns": {"d": "stars"}},
    )  # fmt: skip
    with pytest.raises(JobRefused, match="template: item 'i0': it has no 'stars'"):
        prepare(job, pools=app.pools, settings=app.settings)


def test_a_template_that_is_none_is_told_with_its_line(app: Any) -> None:
    job = a_job([{"id": "a", "text": "t"}], "{{ text }}\n{{ text.upper() }}")
    with pytest.raises(JobRefused, match=r"template: line 2: templates have no call"):
        prepare(job, pools=app.pools, settings=app.settings)


def test_a_job_file_names_a_file(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("template: shown.j2\nitems: []\n")
    with pytest.raises(JobRefused, match=r"shown\.j2 cannot be read"):
        load_job(str(tmp_path / "job.yaml"))
    (tmp_path / "shown.j2").write_text(TEMPLATE)
    assert load_job(str(tmp_path / "job.yaml"))["template"] == TEMPLATE


def test_the_runs_digest_and_the_nonce_know_the_template() -> None:
    jobs = [
        EvaluationJob.model_validate(a_job([{"id": "i", "text": "t", "metadata": {"author": "ada"}}], template))
        for template in (TEMPLATE, TEMPLATE + "!")
    ]
    assert len({prompt_digest(job) for job in jobs}) == 2
    assert len({nonce_for(b"k", j.agents[0], j.dimensions, j.items[0], 0, j.template) for j in jobs}) == 2  # type: ignore[index]


def test_the_nearest_template_wins() -> None:
    job = EvaluationJob.model_validate({
        "items": [{"id": "i", "text": "t"}], "template": "job {{ text }}",
        "agents": [{"name": "a"}, {"name": "b", "template": "agent {{ text }}"}],
        "dimensions": [
            {"id": "d", "instructions": "?"}, {"id": "e", "instructions": "?", "template": "dimension {{ text }}"}
        ],
    })  # fmt: skip
    found = [[job.template_for(agent, dimension) for dimension in job.dimensions] for agent in job.agents]
    assert [[template.split()[0] for template in row if template] for row in found] == [
        ["job", "dimension"], ["agent", "dimension"],
    ]  # fmt: skip


def test_a_dimension_with_a_template_of_its_own_is_asked_about_alone(app: Any) -> None:
    asked = [{"id": "d", "instructions": "?"}, {"id": "e", "instructions": "?"}]
    job = {"items": [{"id": "i", "text": "t"}], "agents": [{"name": "a"}], "dimensions": asked, "batching": True}
    assert app.prepared(job).calls == 1
    job["dimensions"] = [asked[0], {**asked[1], "template": "{{ text }}"}]
    assert app.prepared(job).calls == 2


@pytest.mark.parametrize("place", ["agents", "dimensions"])
def test_all_templates_are_tried_and_named(app: Any, tmp_path: Path, place: str) -> None:
    job: dict[str, Any] = {"items": [{"id": "i", "text": "t"}], "agents": [{"name": "x"}],
                           "dimensions": [{"id": "x", "instructions": "?"}]}  # fmt: skip
    job[place][0]["template"] = "{{ text }}{{ metadata.author }}"
    with pytest.raises(JobRefused, match=f"{place}: the template of 'x': item 'i': it has no 'author'"):
        app.prepared(job)
    job[place][0]["template"] = "shown.j2"
    (tmp_path / "shown.j2").write_text(TEMPLATE)
    (tmp_path / "job.json").write_text(json.dumps(job))
    assert load_job(str(tmp_path / "job.json"))[place][0]["template"] == TEMPLATE


def test_lists_of_candidates_are_tried_as_the_pairs_that_they_become(app: Any) -> None:
    listed = [{"id": n, "text": n * 3} for n in "abc"]
    job = a_job([{"id": "l", "candidates": listed}], "{{ text_a }}{{ text_b }}{{ metadata.candidate_a }}", pairs="all")
    job["dimensions"] = [{"id": "d", "instructions": "?", "scale": "preference"}]
    assert app.prepared(job).items == 3
    with pytest.raises(JobRefused, match=r"item 'l/1-2': it shows nothing of what is judged"):
        app.prepared({**job, "template": TEMPLATE})


def test_templates_elsewhere_leave_nonces_as_they_were() -> None:
    job = EvaluationJob.model_validate(a_job([{"id": "i", "text": "t"}]))
    agent, dimension, item = job.agents[0], job.dimensions[0], job.items[0]  # type: ignore[index]
    plain = nonce_for(b"k", agent, [dimension], item, 0)
    other = agent.model_copy(update={"template": "x"}), [dimension.model_copy(update={"template": "y"})]
    assert nonce_for(b"k", *other, item, 0) == plain == "7b7a5ba7d5959fa8"


def test_digests_follow_the_templates_and_the_kinds_of_items(app: Any) -> None:
    def run(**changes: Any) -> EvaluationJob:
        given = {"items": [{"id": "i", "text": "t"}], "agents": [{"name": "a"}],
                 "dimensions": [{"id": "d", "instructions": "?"}]}  # fmt: skip
        return app.prepared({**given, **changes}).job

    talk = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "So."}]
    preference = [{"id": "d", "instructions": "?", "scale": "preference"}]
    candidates = [{"id": n, "text": n} for n in "ab"]
    jobs = {
        "text": run(), "picture": run(items=[{"id": "i", "text": "t", "images": ["https://h/1"]}]),
        "answer": run(items=[{"id": "i", "messages": talk}]),
        "talk": run(items=[{"id": "i", "messages": talk, "judged": "conversation"}]),
        "both": run(items=[{"id": "i", "messages": talk}, {"id": "j", "text": "t"}]),
        "pair": run(items=[{"id": "i", "text_a": "a", "text_b": "b"}], dimensions=preference),
        "template": run(template="{{ text }}"),
        "agent": run(agents=[{"name": "a", "template": "{{ text }}"}]),
        "dimension": run(dimensions=[{"id": "d", "instructions": "?", "template": "{{ text }}"}]),
        "chief": run(agents=[{"name": "a"}, {"name": "b"}, {"name": "c"}], panel={"chief": "c"}),
    }  # fmt: skip
    assert len({prompt_digest(job) for job in jobs.values()}) == len(jobs)
    ranked = run(items=[{"id": "i", "candidates": candidates}], dimensions=preference, pairs="all")
    assert prompt_digest(ranked) == prompt_digest(jobs["pair"])
    assert prompt_digest(jobs["text"]) == prompt_digest(run(item_kinds=["pair"])), "nobody else says of what kind"
    assert prompt_digest(jobs["text"].model_copy(update={"agents": jobs["pair"].agents})) == prompt_digest(jobs["text"])
    digests = {name: template_digest(job) for name, job in jobs.items()}
    assert {name for name, found in digests.items() if found} == {"template", "agent", "dimension"}
    assert len(set(digests.values())) == 4


def test_runs_that_were_shown_otherwise_are_not_compared(app: Any) -> None:
    first, second = (header(1, template=digest) for digest in ("", "5f0c2a9be1d47783"))
    assert incompatibilities(first, first) == incompatibilities(second, second) == []  # type: ignore[arg-type]
    assert incompatibilities(first, second) == [  # type: ignore[arg-type]
        "the templates that showed the items to the judges: none and 5f0c2a9be1d47783"
    ]
