"""The node's beacon stands as long as the worker may have calls open."""

from types import SimpleNamespace

import pytest

from dicast.workers.nodes.beacon import NodeStep


@pytest.mark.parametrize("before", [[], ["hub"], ["hub", "pool"]])
def test_the_node_starts_first_and_so_leaves_last(before):
    """Celery brings steps that do not need each other into any order, another at each start."""
    worker = SimpleNamespace(steps=list(before))
    step = NodeStep(worker)
    step.include(worker)
    assert worker.steps == [step, *before]
