"""Issues certificates of judges from finished jobs, keeps what was judged of their anchors since, and looks for drift.

`write_lock` puts all digests of a run into `run.lock`, and `verify_run` compares the files with them.

Beside `certificate.json` lies `certificate.watch.jsonl`, a line for each judgement of an anchor. The libraries of the
extra `scores` are imported when a function needs them.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from importlib import metadata
from pathlib import Path
from typing import Any

import orjson
from pydantic import ValidationError

from dicast.app.analysis import MISSING, NoLibraries
from dicast.app.domain.certificate import (
    Anchor,
    AnchorJudgement,
    Answering,
    Certificate,
    CertifiedDimension,
    CertifiedJudge,
    CertifiedProbe,
    Drift,
    LockedJudge,
    RunLock,
    due,
)
from dicast.app.domain.figure import Figure
from dicast.app.domain.fingerprints import digest
from dicast.app.domain.item import Item
from dicast.app.domain.job import EvaluationJob
from dicast.app.domain.judge_statistics import DimensionStatistics, JobStatistics
from dicast.app.domain.report import Report
from dicast.app.reports.folders import replacing
from dicast.app.reports.statistics import compute
from dicast.app.reports.stored_items import ARRANGED, ITEMS
from dicast.errors import DicastError

# ruff: noqa: PLC0415  (see above)

OF_JOB_ALONE = (
    "id", "items", "pairs", "ratings", "gate", "question", "calibration", "groups", "cluster", "these", "keep",
    "probes", "panel", "cache", "cache_max_age", "max_cost", "max_tokens", "max_calls", "finish_by", "replicates",
    "metadata",
)  # fmt: skip
"""What a job says of its own items and report, and not of how judges are asked."""
FEWEST_SCORES = 2


class NoCertificate(DicastError, ValueError):
    """There is no certificate, or none can be issued. The message says why."""


def certify(
    folder: Path, report: Report, document: Mapping[str, Any], items: Iterable[Item], *, issued: datetime,
    days: float, most: int,
) -> Certificate:  # fmt: skip
    """Return the certificate of a finished job's judges, with up to `most` anchors, drawn by chance from those of its
    `items` (as they were judged: of lists, the pairs) that each judge scored twice or more in each dimension. Raises
    `NoCertificate`, `NoLibraries`, OSError."""
    stored = report.statistics
    statistics = stored if stored is not None and stored.state == "computed" else compute(folder, report)
    scores = _scores_by_item(folder, report)
    usable = [item for item in items if item.id in scores]
    if not usable:
        raise NoCertificate(
            "no item has two scores or more by each judge in each dimension, so there is nothing to compare later "
            "scores with: judge with replicates"
        )
    usable.sort(key=lambda item: _chance(report.job_id, item.id))
    answering_by_judge = answering(folder)
    return Certificate(
        job=report.job_id,
        issued=issued,
        expires=issued + timedelta(days=days),
        prompt=report.prompt,
        template=report.template,
        judges=[
            CertifiedJudge(
                name=agent.name,
                judge=agent.judge,
                answering=answering_by_judge.get(agent.name, Answering()),
                dimensions=[
                    _measured(statistics, report, agent.name, dimension.id, scores) for dimension in report.dimensions
                ],
            )
            for agent in report.agents
        ],
        document={name: value for name, value in document.items() if name not in OF_JOB_ALONE},
        anchors=[
            Anchor(item=item.model_dump(mode="json", exclude_defaults=True), scores=scores[item.id])
            for item in usable[:most]
        ],
    )


_Scores = dict[str, dict[str, dict[str, list[float]]]]
"""By item, judge and dimension."""


def _scores_by_item(folder: Path, report: Report, fewest: int = FEWEST_SCORES) -> _Scores:
    """Return the scores of those items of which each judge gave so many or more in each dimension."""
    try:
        import numpy as np

        from dicast.app.reports.scores import item_names, load_scores
    except ImportError as error:
        raise NoLibraries(MISSING) from error
    loaded, names = load_scores(folder, report, by=[]), item_names(folder)
    by_item: _Scores = {}
    for at, name in enumerate(names):
        of_item: dict[str, dict[str, list[float]]] = {judge: {} for judge in loaded.judges}
        for dimension in loaded.dimensions:
            for place, judge in enumerate(loaded.judges):
                scores = dimension.scores[at, place]
                of_item[judge][dimension.spec.id] = scores[~np.isnan(scores)].tolist()
        if all(len(scores) >= fewest for of_judge in of_item.values() for scores in of_judge.values()):
            by_item[name] = of_item
    return by_item


def _measured(
    statistics: JobStatistics, report: Report, judge: str, dimension: str, scores: _Scores
) -> CertifiedDimension:
    area = next(area for area in statistics.dimensions if area.dimension == dimension)
    spec = next(row for row in report.dimensions if row.id == dimension)
    voice = next(voice for voice in area.voices if voice.name == judge and voice.kind == "judge")
    all_scores = [score for of_item in scores.values() for score in of_item[judge][dimension]]
    labels = not voice.pearson.is_known and voice.kappa.is_known
    return CertifiedDimension(
        dimension=dimension,
        rubric=spec.rubric,
        agreement=voice.kappa if labels else voice.pearson,
        person=_persons(area, labels=labels),
        repeats=voice.repeats or Figure.unknown("it was asked once about each item"),
        ceiling=sum(score == spec.scale_max for score in all_scores) / max(1, len(all_scores)),
        probes=[
            CertifiedProbe(probe=probe.probe, variant=probe.variant, effect=probe.effect, p=probe.p)
            for probe in area.probes
            if probe.voice == judge
        ],
    )


def _persons(area: DimensionStatistics, *, labels: bool) -> Figure:
    if area.person is None:
        return Figure.unknown("nobody has rated this dimension")
    return area.person.kappa if labels else area.person.pearson


def answering(folder: Path) -> dict[str, Answering]:
    """Return what has answered for each judge of a finished job. Raises OSError."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    names_by_judge: dict[str, dict[str, set[str]]] = {}
    with pq.ParquetFile(folder / "opinions.parquet") as file:
        names = [name for name in ("model", "system_fingerprint") if name in file.schema_arrow.names]
        for batch in file.iter_batches(columns=["judge", *names, "score"]):
            scored = batch.filter(pc.is_valid(batch["score"]))
            # `group_by` would do, but loads pyarrow's datasets and with them pandas, in a worker.
            for judge in pc.unique(scored["judge"]):
                of_judge = scored.filter(pc.equal(scored["judge"], judge))
                by_column = names_by_judge.setdefault(judge.as_py(), {})
                for name in names:
                    by_column.setdefault(name, set()).update(filter(None, pc.unique(of_judge[name]).to_pylist()))
    return {
        judge: Answering(
            models=sorted(by_column.get("model", ())), fingerprints=sorted(by_column.get("system_fingerprint", ()))
        )
        for judge, by_column in names_by_judge.items()
    }


LOCK = "run.lock"
RESULTS = ("opinions.jsonl", "errors.jsonl")


class NoLock(DicastError, LookupError):
    """A job's folder has no lock, or one that cannot be read."""


def write_lock(folder: Path, report: Report, job: EvaluationJob, items: str | None) -> None:
    """Write all digests of a finished run into its folder; `items` is the fingerprint of the items' file, if they came
    from one. Raises OSError."""
    document = job.model_dump(mode="json", exclude={"items"} if isinstance(job.items, list) else set())
    lock = _lock(folder, report, digest(document), items)
    with replacing(folder / LOCK) as file:
        file.write(lock.model_dump_json(indent=2).encode() + b"\n")


def read_lock(folder: Path) -> RunLock:
    """Return the lock in a job's folder. Raises `NoLock`."""
    try:
        return RunLock.model_validate_json((folder / LOCK).read_bytes())
    except FileNotFoundError:
        raise NoLock(f"{folder} has no {LOCK}: it is an earlier version's, or not finished") from None
    except ValidationError as error:
        raise NoLock(f"{folder / LOCK} is damaged: {error.errors()[0]['msg']}") from None


def verify_run(folder: Path, report: Report) -> list[str]:
    """Return in what the files of a finished job differ from its lock; nothing if they are what was written. Raises
    `NoLock`, OSError."""
    lock = read_lock(folder)
    return lock.differences(_lock(folder, report, lock.asked, None if _own_items(folder) else lock.items))


def _lock(folder: Path, report: Report, asked: str, items: str | None) -> RunLock:
    answering_by_judge, stored = answering(folder), _own_items(folder)
    return RunLock(
        job=report.job_id,
        finished=report.finished,
        asked=asked,
        items=_sha256(stored) if stored is not None else items or "",
        prompt=report.prompt,
        template=report.template,
        rubrics={dimension.id: dimension.rubric for dimension in report.dimensions},
        judges={
            agent.name: LockedJudge(
                judge=agent.judge, model=agent.model, answering=answering_by_judge.get(agent.name, Answering())
            )
            for agent in report.agents
        },
        software={"dicast": _version(), "python": platform.python_version()},
        files={name: _sha256(folder / name) for name in RESULTS if (folder / name).exists()},
    )


def _own_items(folder: Path) -> Path | None:
    """Return the file of the items as they were judged, if the job's folder has one."""
    return next((folder / name for name in (ARRANGED, ITEMS) if (folder / name).exists()), None)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _version() -> str:
    try:
        return metadata.version("dicast")
    except metadata.PackageNotFoundError:
        return "from its sources"


def write_certificate(certificate: Certificate, out: Path) -> None:
    """Write the certificate whole or not at all, and begin its watch anew. Raises OSError."""
    with replacing(out, private=False) as file:
        file.write(certificate.model_dump_json(indent=2, exclude_defaults=False).encode() + b"\n")
    _log(out).unlink(missing_ok=True)


def read_certificate(path: Path) -> Certificate:
    """Return the certificate in a file. Raises `NoCertificate`."""
    try:
        return Certificate.model_validate_json(path.read_bytes())
    except OSError as error:
        raise NoCertificate(f"{path}: {error.strerror or error}") from None
    except ValidationError as error:
        raise NoCertificate(f"{path} is no certificate: {error.errors()[0]['msg']}") from None


def _log(path: Path) -> Path:
    return path.with_name(f"{path.stem}.watch.jsonl")


def read_judgements(path: Path) -> list[AnchorJudgement]:
    """Return what was judged of a certificate's anchors since, in order; a line that was cut short is left out."""
    log, judgements = _log(path), []
    for line in log.read_bytes().splitlines() if log.exists() else ():
        try:
            judgements.append(AnchorJudgement.model_validate_json(line))
        except ValidationError:
            continue
    return judgements


def add_judgements(path: Path, judgements: Iterable[AnchorJudgement]) -> None:
    """Keep these judgements beside the certificate. Raises OSError."""
    with _log(path).open("ab") as file:
        file.writelines(orjson.dumps(judgement.model_dump(mode="json")) + b"\n" for judgement in judgements)


def judgements_of(folder: Path, report: Report, at: datetime) -> list[AnchorJudgement]:
    """Return the judgements of a finished job as those of anchors. Raises `NoLibraries`, OSError."""
    return [
        AnchorJudgement(at=at, job=report.job_id, item=item, judge=judge, dimension=dimension, score=score)
        for item, judges in _scores_by_item(folder, report, fewest=0).items()
        for judge, dimensions in judges.items()
        for dimension, scores in dimensions.items()
        for score in scores
    ]


def anchors_due(certificate: Certificate, judgements: Sequence[AnchorJudgement], count: int) -> list[Anchor]:
    """Return the anchors to be judged next: in a random order, each before any of them a second time."""
    judged = len({(judgement.job, judgement.item) for judgement in judgements})
    order = sorted(
        range(len(certificate.anchors)),
        key=lambda at: _chance(certificate.job, f"{certificate.issued.isoformat()} {certificate.anchors[at].id}"),
    )
    return due(certificate.anchors, order, judged, count)


def find_drift(certificate: Certificate, judgements: Sequence[AnchorJudgement]) -> list[Drift]:
    """Return for each judge and dimension whether the judge has changed. All of them together are wrong with a
    probability of 5 % at most, however often one looks. Raises `NoLibraries`."""
    try:
        import numpy as np

        from dicast.app.analysis.sequences import DRIFT_ERROR, drift_evidence, drift_rank
    except ImportError as error:
        raise NoLibraries(MISSING) from error
    cells = [(judge.name, area.dimension) for judge in certificate.judges for area in judge.dimensions]
    drifts, needed = [], len(cells) / DRIFT_ERROR
    for judge, dimension in cells:
        scores_of = {anchor.id: list(anchor.scores[judge][dimension]) for anchor in certificate.anchors}
        certified = {item: sum(scores) / len(scores) for item, scores in scores_of.items()}
        of_cell = [s for s in judgements if (s.judge, s.dimension) == (judge, dimension) and s.item in scores_of]
        ranks = []
        for judgement in of_cell:
            before = scores_of[judgement.item]
            chance = _chance(certificate.job, f"{judge} {dimension} {judgement.item} {len(before)}")
            ranks.append(drift_rank(before, judgement.score, chance))
            before.append(judgement.score)
        evidence = drift_evidence(np.array(ranks))
        crossed = np.flatnonzero(evidence >= needed)
        apart = [judgement.score - certified[judgement.item] for judgement in of_cell]
        drifts.append(
            Drift(
                judge=judge,
                dimension=dimension,
                judgements=len(of_cell),
                shift=sum(apart) / len(apart) if apart else None,
                evidence=float(evidence.max(initial=1.0)),
                needed=needed,
                since=of_cell[int(crossed[0])].at if len(crossed) else None,
            )
        )
    return drifts


def _chance(key: str, value: str) -> float:
    """Return a number between 0 and 1 that looks drawn by chance, and is the same for the same texts."""
    return int.from_bytes(hashlib.sha256(f"{key}\0{value}".encode()).digest()[:8]) / 2**64
