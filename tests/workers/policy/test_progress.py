import pytest

from dicast.workers.broker.fetch import STUCK_LOOKS, QueueProgress, Remedy, check_progress


def looks(*sights):
    state, remedies = QueueProgress(), []
    for taken, waiting, room in sights:
        state, remedy = check_progress(state, taken=taken, waiting=waiting, room=room)
        remedies.append(remedy)
    return state, remedies


STILL = (0, True, True)


def test_a_stuck_worker_reconnects_and_then_restarts():
    state, remedies = looks(*[STILL] * (2 * STUCK_LOOKS))
    assert remedies[: STUCK_LOOKS - 1] == [Remedy.NONE] * (STUCK_LOOKS - 1)
    assert remedies[STUCK_LOOKS - 1] is Remedy.RECONNECT
    assert remedies[STUCK_LOOKS:-1] == [Remedy.NONE] * (STUCK_LOOKS - 1)
    assert remedies[-1] is Remedy.RESTART
    assert state.stuck


@pytest.mark.parametrize("relief", [(1, True, True), (0, False, True)])
def test_progress_or_an_empty_queue_begins_anew(relief):
    state, remedies = looks(*[STILL] * (STUCK_LOOKS - 1), relief, *[(relief[0], True, True)] * (STUCK_LOOKS - 1))
    assert set(remedies) == {Remedy.NONE}
    assert not state.stuck


def test_a_worker_that_is_full_or_throttled_is_not_stuck():
    _, remedies = looks(*[(0, True, False)] * (5 * STUCK_LOOKS))
    assert set(remedies) == {Remedy.NONE}


def test_a_new_connection_is_given_as_long_as_the_first_whatever_was_taken_before():
    sights = [(7, True, True)] * (2 * STUCK_LOOKS + 1)  # the first look sees that seven were taken
    _, remedies = looks(*sights)
    assert [number for number, remedy in enumerate(remedies) if remedy is not Remedy.NONE] == [
        STUCK_LOOKS, 2 * STUCK_LOOKS
    ]  # fmt: skip
