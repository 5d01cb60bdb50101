"""Contrary orders at the same time, while units flow and workers die: a short campaign of `lab.chaos.orders`."""

from __future__ import annotations

import pytest

from lab.chaos.orders import LIMIT, Campaign, Word, granted_though_cordoned


def word(verb, given, answered, acknowledged=True):
    return Word("n", verb, given, answered, acknowledged)


@pytest.mark.parametrize(
    ("words", "late"),
    [
        ([word("cordon", 1, 2)], [2.5, 9.0]),
        ([word("cordon", 1, 2), word("uncordon", 3, 4)], [2.5]),
        ([word("drain", 1, 2), word("uncordon", 1.5, 4)], []),
        ([word("cordon", 1, 2, acknowledged=False)], []),
        ([word("uncordon", 0, 0.5), word("cut", 1, 2)], [2.5, 9.0]),
    ],
)
def test_a_grant_after_an_acknowledgement_is_found(words, late):
    found = granted_though_cordoned(words, {"n": [0.5, 1.5, 2.5, 9.0], "m": [2.5]})
    assert found == [f"n was granted a lease {at - 2:.3f} s after its {words[-1 if late == [2.5, 9.0] else 0].verb}"
                     for at in late]  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_nothing_is_violated_in_a_hundred_rounds(cluster):
    c = cluster("--latency", "0.05", "--sigma", "0", MAX_CONCURRENT_LLM_CALLS=str(LIMIT), DICAST_WINDOW_SECONDS="30")
    tally = Campaign(c, c.provider, rounds=100, seed=1).run()
    assert tally.violations == []
    assert sum(word.acknowledged for word in tally.words) > 10
