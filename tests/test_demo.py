"""The demo shows a whole report without a call, and its recorded judgements are those that its job asks for."""

from __future__ import annotations

import json
import random

import pytest

from lab import demo


def test_its_files_are_what_their_program_makes(monkeypatch):
    monkeypatch.chdir(demo.FOLDER)
    chance = random.Random(demo.SEED)
    assert (demo.FOLDER / "ratings.csv").read_text() == demo.ratings(chance)
    recorded = [json.loads(line) for line in (demo.FOLDER / "judgements.jsonl").read_text().splitlines()]
    made = [entry.model_dump(mode="json", exclude_defaults=True) for entry in demo.judgements(chance)]
    assert recorded == made, "`python -m lab.demo` makes them anew, as after a change to the wording of prompts"


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_it_ends_in_a_report_of_recorded_judgements(dicast, tmp_path):
    ran = dicast("demo", "shown", REDIS_URL="redis://127.0.0.1:1/0", DICAST_HTML_REPORT="true")
    assert ran.returncode == 0, ran.stderr
    folder = tmp_path / "shown" / "results" / "demo"
    report = json.loads((folder / "report.json").read_text())
    judged = len(demo.TOPICS) * len(demo.SYSTEMS) * len(demo.JUDGES) * len(demo.REMARKS)
    assert (report["scored"], report["cached"], report["calls"]) == (judged, judged, 0)
    assert (folder / "report.html").exists()
    assert "In people's opinion" in ran.stdout and "cedar" in ran.stdout
    assert "No model is called" in ran.stderr

    again = dicast("demo", "shown")
    assert again.returncode == 0 and "judged" in again.stderr
