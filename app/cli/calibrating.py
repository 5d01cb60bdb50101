"""`dicast calibrate` learns maps from judges' scores to people's from a finished job, and writes them to a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic_core import to_json

from dicast.app.cli.console import Refused, Terminal
from dicast.app.cli.statistics import finished
from dicast.app.domain.calibration import Calibration, Method
from dicast.app.reports.durable import replacing
from dicast.errors import alternatives


def calibrate_job(
    terminal: Terminal, job: str, out: str, *, method: Method, dimensions: Sequence[str], json: bool
) -> None:
    """Write the maps, and show how much each improves scores. Raises `NoLibraries`, `NoFingerprints`, `Refused`,
    OSError."""
    from dicast.app.reports.assessing import calibrate  # noqa: PLC0415  (takes long to load)
    from dicast.app.reports.findings_table import print_calibration  # noqa: PLC0415

    run = finished(job)
    dimension_ids = [dimension.id for dimension in run.report.dimensions]
    for name in dimensions:
        if name not in dimension_ids:
            raise Refused(f"--dimension: {name!r} is none of the job's{alternatives(name, dimension_ids)}")
    maps, missing = calibrate(run.folder, run.report, method, dimensions or dimension_ids)
    if not maps:
        raise Refused(f"no judge can be calibrated, because {missing[0].reason}")
    calibration = Calibration(job=run.report.job_id, maps=maps)
    with replacing(Path(out), private=False) as file:
        file.write(to_json(calibration.model_dump(exclude={"on_mismatch"}), indent=2) + b"\n")
    if json:
        terminal.emit(calibration.model_dump_json(indent=2))
        return
    print_calibration(calibration, missing, terminal.out)
    terminal.say(f"Written to {out}: a job with `calibration: {out}` uses it.", "dim")
