"""A job's template: from a file or in the job, tried on the items before the job is taken, and shown to the judges."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dicast.app.application import create_app
from dicast.app.domain.fingerprints import prompt_digest
from dicast.app.domain.job import EvaluationJob
from dicast.app.domain.nonce import nonce_for
from dicast.app.refusals import JobRefused
from dicast.app.submission.job_file import load_job
from dicast.app.submission.submit import prepared

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
    prepared(a_job([good]), pools=app.pools, settings=app.settings)
    with pytest.raises(JobRefused, match="template: item 'i1': it has no 'author'"):
        prepared(a_job([good, {"id": "i1", "text": "t"}]), pools=app.pools, settings=app.settings)
    rows = tmp_path / "items.jsonl"
    rows.write_text('{"id": "r0", "text": "t", "author": "ben"}\n{"id": "r1", "text": "t"}\n')
    with pytest.raises(JobRefused, match="template: item 'r1': it has no 'author'"):
        prepared(a_job(str(rows)), pools=app.pools, settings=app.settings)
    allowed = TEMPLATE.replace("author", "author | default('nobody')")
    assert prepared(a_job(str(rows), allowed), pools=app.pools, settings=app.settings).items == 2


def test_ratings_cannot_be_shown(app: Any) -> None:
    job = a_job(
        [{"id": "i0", "text": "t", "metadata": {"stars": 4}}], "{{ text }}{{ metadata.stars }}",
        ratings={"columns": {"d": "stars"}},
    )  # fmt: skip
    with pytest.raises(JobRefused, match="template: item 'i0': it has no 'stars'"):
        prepared(job, pools=app.pools, settings=app.settings)


def test_a_template_that_is_none_is_told_with_its_line(app: Any) -> None:
    job = a_job([{"id": "a", "text": "t"}], "{{ text }}\n{{ text.upper() }}")
    with pytest.raises(JobRefused, match=r"template: line 2: templates have no call"):
        prepared(job, pools=app.pools, settings=app.settings)


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
