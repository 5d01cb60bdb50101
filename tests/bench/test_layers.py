"""Samples to layers, and to the bars of a flame graph."""

from __future__ import annotations

from pathlib import Path

import pytest

from dicast.app.ledger.ledger import Ledger
from dicast.app.pipeline.judge import Judge
from dicast.workers.admission.gate import Gate
from lab.bench import flame
from lab.bench.layers import OTHER, OWNERS, by_layer, layer_of

LOOP = "run (threading.py:971)"
JUDGE = "Judge.judge (app/pipeline/judge.py:84)"
CALL = "OpenAIProvider.complete (app/providers/openai.py:54)"
SDK = "AsyncAPIClient.post (openai/_base_client.py:2059)"
JSON = "dumps (json/__init__.py:183)"


def test_a_sample_belongs_to_its_innermost_owned_frame() -> None:
    stacks = [([LOOP, JUDGE], 1), ([LOOP, JUDGE, JSON], 1), ([LOOP, JUDGE, CALL, SDK, JSON], 5), ([LOOP], 1)]
    assert by_layer(stacks) == {"provider SDK and HTTP": 5 / 8, "prompts, answers, decisions": 2 / 8, OTHER: 1 / 8}


@pytest.mark.parametrize("layer", OWNERS)
def test_every_layer_owns_files_that_exist(layer: str) -> None:
    ours = [path for path in OWNERS[layer] if path.startswith(("app/", "workers/"))]
    assert all((Path(__file__).parents[2] / path).exists() for path in ours)


def test_what_is_more_special_comes_first() -> None:
    assert layer_of("Gate.run (workers/admission/gate.py:150)") == "gate and governor"
    assert layer_of("TaskRun.trace (workers/runtime/pool.py:164)") == "execution pool"
    assert layer_of("<listcomp> (x) (celery/app/trace.py:770)") == "Celery and kombu"


@pytest.mark.parametrize(
    ("owned", "layer"), [(Judge, "prompts, answers, decisions"), (Gate, "gate and governor"), (Ledger, "ledger")]
)
def test_a_frame_is_owned_under_the_path_that_it_is_imported_by(owned: type, layer: str) -> None:
    assert layer_of(f"run ({owned.__module__.replace('.', '/')}.py:1)") == layer


def test_frames_of_one_layer_are_one_bar_and_unowned_ones_their_callers() -> None:
    root = flame.tree([([LOOP, JUDGE, JSON, CALL, SDK], 3), ([LOOP, JUDGE], 2), ([LOOP], 1)], layer_of)
    (judge,) = root.above.values()
    (call,) = judge.above.values()
    assert [(bar.name, bar.samples) for bar in (root, judge, call)] == [
        ("all", 6), ("Judge.judge", 5), ("OpenAIProvider.complete", 3),
    ]  # fmt: skip
    assert call.above == {}


def test_the_picture_names_layers_and_bars(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    root = flame.tree([([JUDGE, CALL], 3), ([JUDGE], 2)], layer_of)
    flame.draw(root, list(OWNERS), tmp_path / "flame.svg")
    assert (tmp_path / "flame.svg").read_text().count("<path") > len(OWNERS)
