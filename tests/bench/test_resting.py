"""What a worker holds at rest is mostly what it stands on: a ratio of one run, so that it holds on any machine."""

from lab.bench.resting import STEPS, WITHOUT_SDK, resting


def test_dicast_is_a_small_part_of_a_worker_at_rest() -> None:
    found = resting()
    assert list(found) == [*STEPS, WITHOUT_SDK]
    assert found["Dicast"] < 0.25 * found[WITHOUT_SDK]
