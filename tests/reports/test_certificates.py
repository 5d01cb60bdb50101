"""Certificates: what is in them, when they do not hold any more, and when a judge is said to have changed."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from dicast.app.analysis.sequences import DRIFT_ERROR, drift_evidence, drift_rank
from dicast.app.domain.certificate import AnchorJudgement, Certificate
from dicast.app.domain.item import Item
from dicast.app.domain.job import EvaluationJob
from dicast.app.domain.quality_gate import QualityGate
from dicast.app.domain.report import Report, ReportAgent, ReportDimension
from dicast.app.reports import files
from dicast.app.reports.certificates import (
    NoCertificate,
    NoLock,
    add_judgements,
    anchors_due,
    answering,
    certify,
    find_drift,
    judgements_of,
    read_certificate,
    read_judgements,
    read_lock,
    verify_run,
    write_certificate,
    write_lock,
)
from dicast.app.reports.columns import Columns
from dicast.app.reports.folders import begin, job_folder
from dicast.app.reports.quality_gate import FinishedRun, quality_verdict
from tests.reports.building import NOW, header, opinion

ITEMS, REPLICATES = 30, 4
DIMENSION = ReportDimension(id="clear", scale_min=1, scale_max=5, rubric="r")


def judged(root: Path, job_id: str, *, replicates: int = REPLICATES, moved: int = 0, seed: int = 0, **of: Any) -> Any:
    """A finished job of one judge over `ITEMS` texts."""
    begin(root, job_id, NOW)
    rng = np.random.default_rng(seed)
    opinions = [
        opinion(
            n, "ann", int(np.clip(2 + n % 2 + (rng.random() < 0.2) + moved, 1, 5)), replicate=replicate,
            model=of.get("model", "m-1"), system_fingerprint=of.get("fingerprint", "fp_1"),
        )
        for n in range(ITEMS) for replicate in range(replicates)
    ]  # fmt: skip
    files.write_page(root, job_id, NOW, "0", 0, opinions, [])
    agents, rubric = [ReportAgent(name="ann", model="m", judge=of.get("judge", "j"))], of.get("rubric", "r")
    dimensions = [DIMENSION.model_copy(update={"rubric": rubric})]
    head = header(ITEMS * replicates, agents=agents, dimensions=dimensions, prompt=of.get("prompt", "p"), job_id=job_id)
    return job_folder(root, job_id), files.finish(root, job_id, NOW, head)


def issued(root: Path, **options: Any) -> tuple[Certificate, Path, Report]:
    folder, report = judged(root, "certified")
    items = [Item(id=f"item-{n}", text=f"text {n}") for n in range(ITEMS)]
    document = {"agents": [{"name": "ann"}], "dimensions": [{"id": "clear"}], "gate": {}, "items": "a.jsonl"}
    given = {"issued": report.finished - timedelta(days=1), "days": 90, "most": 20, **options}
    return certify(folder, report, document, items, **given), folder, report


def test_it_has_what_was_measured_and_what_it_is_bound_to(tmp_path: Path) -> None:
    certificate, folder, report = issued(tmp_path)
    (judge,) = certificate.judges
    assert (judge.answering.models, judge.answering.fingerprints) == (["m-1"], ["fp_1"])
    (area,) = judge.dimensions
    assert area.repeats.value is not None and area.repeats.value > 0 and area.ceiling == 0
    assert "rated" in (area.agreement.reason or "")
    assert certificate.document == {"agents": [{"name": "ann"}], "dimensions": [{"id": "clear"}]}
    assert len(certificate.anchors) == len({anchor.id for anchor in certificate.anchors}) == 20
    assert all(len(anchor.scores["ann"]["clear"]) == REPLICATES for anchor in certificate.anchors)
    out = tmp_path / "c.json"
    write_certificate(certificate, out)
    assert read_certificate(out) == certificate
    assert certificate.objections(report, answering(folder), report.finished) == []


def test_a_job_whose_items_have_one_score_has_no_anchors(tmp_path: Path) -> None:
    folder, report = judged(tmp_path, "once", replicates=1)
    items = [Item(id="item-0", text="text")]
    with pytest.raises(NoCertificate, match="two scores or more"):
        certify(folder, report, {}, items, issued=report.finished, days=1, most=9)


def test_what_answered_is_kept_apart_by_judge_and_only_of_scored_opinions(tmp_path: Path) -> None:
    lines = [
        {"judge": "ann", "model": "m-1", "score": 1}, {"judge": "bob", "model": "m-2", "score": 2},
        {"judge": "ann", "model": "m-3", "score": 1, "system_fingerprint": "fp"}, {"judge": "ann", "model": "m-4"},
        {"judge": "eve", "model": "m-5"},
    ]  # fmt: skip
    with (tmp_path / "opinions.parquet").open("wb") as file, Columns(file) as columns:
        for line in lines:
            columns.add(orjson.dumps(line) + b"\n")
    found = {judge: (of.models, of.fingerprints) for judge, of in answering(tmp_path).items()}
    assert found == {"ann": (["m-1", "m-3"], ["fp"]), "bob": (["m-2"], [])}


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"model": "m-2"}, "for ann another model answers: m-2"),
        ({"fingerprint": "fp_2"}, "for ann another configuration answers: fp_2"),
        ({"prompt": "q"}, "it was issued for another prompt"),
        ({"rubric": "s"}, "ann is not certified for clear with the present rubric"),
        ({"judge": "k"}, "ann had another persona or temperature"),
    ],
)
def test_it_does_not_hold_for_another_judge(tmp_path: Path, changed: dict[str, str], why: str) -> None:
    certificate, *_ = issued(tmp_path)
    folder, report = judged(tmp_path, "later", **changed)
    assert certificate.objections(report, answering(folder), report.finished) == [why]
    assert "it has expired on" in certificate.objections(report, answering(folder), certificate.expires)[0]


def test_every_anchor_comes_before_any_comes_again(tmp_path: Path) -> None:
    certificate, *_ = issued(tmp_path)
    seen: list[AnchorJudgement] = []
    for look in range(8):
        for anchor in anchors_due(certificate, seen, 5):
            seen.append(
                AnchorJudgement(
                    at=certificate.issued, job=f"look-{look}", item=anchor.id, judge="ann", dimension="clear", score=3.0
                )
            )  # fmt: skip
    names = [judgement.item for judgement in seen]
    assert len(set(names[:20])) == len(set(names[20:])) == 20


def watched(root: Path, *, moved: int, looks: int = 4) -> tuple[Certificate, Path]:
    certificate, *_ = issued(root, most=ITEMS)
    out = root / "c.json"
    write_certificate(certificate, out)
    for look in range(looks):
        folder, report = judged(root, f"look-{look}", replicates=1, moved=moved, seed=look + 1)
        add_judgements(out, judgements_of(folder, report, report.finished))
    return certificate, out


@pytest.mark.parametrize("moved", [0, 1])
def test_a_judge_that_changed_is_found_and_fails_the_gate(tmp_path: Path, moved: int) -> None:
    certificate, out = watched(tmp_path, moved=moved)
    (drift,) = find_drift(certificate, read_judgements(out))
    assert drift.judgements == 4 * ITEMS and drift.changed is bool(moved)
    assert drift.shift == pytest.approx(moved, abs=0.1) and drift.needed == 1 / DRIFT_ERROR
    folder, report = judged(tmp_path, "gated")
    (check,) = quality_verdict(QualityGate(certificate=str(out)), FinishedRun(folder, report)).checks
    assert check.passed is (not moved)
    assert ("ann has changed in clear" in check.told) is bool(moved)
    (missing,) = quality_verdict(QualityGate(certificate="nowhere.json"), FinishedRun(folder, report)).checks
    assert missing.passed is None


def test_a_line_that_was_cut_short_is_left_out_and_a_new_certificate_begins_anew(tmp_path: Path) -> None:
    certificate, out = watched(tmp_path, moved=0, looks=1)
    with (tmp_path / "c.watch.jsonl").open("ab") as log:
        log.write(b'{"at": "20')
    assert len(read_judgements(out)) == ITEMS
    write_certificate(certificate, out)
    assert read_judgements(out) == []


def test_ranks_are_uniform_whatever_the_scores() -> None:
    """Of an item's exchangeable scores, ties broken by chance, also where the item is judged again and again."""
    rng = np.random.default_rng(1)
    ranks = []
    for _ in range(400):
        bag = rng.choice([1.0, 2, 2, 2, 5], 3).tolist()
        for _ in range(5):
            score = float(rng.choice([1.0, 2, 2, 2, 5]))
            ranks.append(drift_rank(bag, score, float(rng.random())))
            bag.append(score)
    counts = np.histogram(ranks, bins=10, range=(0, 1))[0]
    assert ((counts - 200) ** 2 / 200).sum() < 27.9  # chi-squared with 9 degrees of freedom, p = 0.001
    assert drift_rank([1, 2, 3], 4, 0.5) == 0.875 and drift_rank([1, 2, 3], 0, 0.5) == 0.125
    assert drift_rank([2, 2, 2], 2, 0.3) == pytest.approx(0.3)


def test_evidence_is_fair_while_nothing_changes_and_grows_after_a_change() -> None:
    """A fair gambler's capital has the mean 1 at any time, here over 4,000 short games."""
    rng = np.random.default_rng(2)
    ends = [drift_evidence(rng.random(6))[[2, 5]] for _ in range(4000)]
    assert np.mean(ends, axis=0) == pytest.approx([1, 1], abs=0.15)
    late = np.concatenate([rng.random(200), rng.random(100) ** 0.3])
    assert drift_evidence(late)[199] < 20 < drift_evidence(late)[-1]
    low = drift_evidence(rng.random(100) ** 3)
    assert low[-1] > 1e3
    assert len(drift_evidence(np.empty(0))) == 0


def test_a_lock_tells_what_has_changed_of_a_run(tmp_path: Path) -> None:
    folder, report = judged(tmp_path, "locked")
    with pytest.raises(NoLock, match=r"no run\.lock"):
        verify_run(folder, report)
    items: list[dict[str, Any]] = [{"id": f"item-{n}", "text": "text"} for n in range(ITEMS)]
    (folder / "items.jsonl").write_text("items")
    job = EvaluationJob.model_validate(
        {"items": items, "agents": [{"name": "ann"}], "dimensions": [{"id": "clear", "instructions": "?"}]}
    )
    write_lock(folder, report, job, None)
    lock = read_lock(folder)
    assert lock.judges["ann"].answering.models == ["m-1"] and lock.rubrics == {"clear": "r"}
    assert len(lock.items) == 64 and verify_run(folder, report) == []
    other = job.model_copy(update={"replicates": 2})
    write_lock(folder, report, other, None)
    assert read_lock(folder).differences(lock) == ["asked differs"]
    (folder / "items.jsonl").write_text("others")
    with (folder / "opinions.jsonl").open("ab") as file:
        file.write(b"{}")
    changed = report.model_copy(update={"prompt": "q"})
    assert verify_run(folder, changed) == ["items differs", "prompt differs", "files: opinions.jsonl differs"]
    (folder / "run.lock").write_text("{")
    with pytest.raises(NoLock, match="damaged"):
        verify_run(folder, report)


def test_the_fingerprint_of_an_items_file_is_kept(tmp_path: Path) -> None:
    folder, report = judged(tmp_path, "locked")
    document = {"items": "a.jsonl", "agents": [{"name": "ann"}], "dimensions": [{"id": "clear", "instructions": "?"}]}
    write_lock(folder, report, EvaluationJob.model_validate(document), "mark")
    assert read_lock(folder).items == "mark" and verify_run(folder, report) == []
