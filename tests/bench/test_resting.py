"""What a worker holds at rest is Celery's and the SDK's: a ratio of one run, so that it holds on any machine."""

from lab.bench.resting import STEPS, resting


def test_dicast_is_a_small_part_of_a_worker_at_rest() -> None:
    found = resting()
    assert list(found) == [*STEPS, "in all"]
    assert found["Dicast"] < 0.15 * found["in all"]
