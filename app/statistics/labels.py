"""Labels from several judges of different skill, after A. P. Dawid and A. M. Skene, "Maximum likelihood estimation of
observer error-rates using the EM algorithm", Journal of the Royal Statistical Society C 28 (1979), 20-28.

Each judge has a table of errors: how often it says b if a is true. Tables and true labels are estimated together, in
turns. The method needs no ratings by people, and assumes that the judges' errors are independent: what they all get
wrong in the same way it takes for the truth.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dicast.app.statistics.arrays import Floats, Ints

ROUNDS = 1000
SETTLED = 1e-9
UNSEEN = 1e-10


@dataclass(frozen=True, slots=True)
class Labelled:
    """`labels` is each item's likeliest label (-1 without any opinion), `probabilities` items x labels,
    `errors` judges x true labels x given labels, `prior` how common each label is."""

    labels: Ints
    probabilities: Floats
    errors: Floats
    prior: Floats


def dawid_skene(votes: Ints, labels: int, *, rounds: int = ROUNDS) -> Labelled:
    """Estimate labels of items (rows) from judges (columns), each 0 to labels - 1, or -1 where an opinion is missing.

    Raises ValueError for a label out of range, or if no item has any opinion.
    """
    if ((votes < -1) | (votes >= labels)).any():
        raise ValueError(f"labels are 0 to {labels - 1}, or -1 where one is missing")
    said = (votes[:, :, None] == np.arange(labels)).astype(np.float64)
    opinions = said.sum(axis=(1, 2))
    if not opinions.any():
        raise ValueError("no item has an opinion")
    some = opinions > 0
    probabilities = np.full((len(votes), labels), 1 / labels)
    probabilities[some] = said[some].sum(axis=1) / opinions[some, None]
    for _ in range(rounds):
        prior = probabilities[some].mean(axis=0)
        errors = np.einsum("ia,ijb->jab", probabilities, said)
        totals = errors.sum(axis=2, keepdims=True)
        errors = np.divide(errors, totals, out=np.full_like(errors, 1 / labels), where=totals > 0)
        evidence = np.log(prior.clip(UNSEEN)) + np.einsum("ijb,jab->ia", said, np.log(errors.clip(UNSEEN)))
        after = np.exp(evidence - evidence.max(axis=1, keepdims=True))
        after /= after.sum(axis=1, keepdims=True)
        moved = np.abs(after - probabilities)[some].max()
        probabilities = after
        if moved < SETTLED:
            break
    return Labelled(np.where(some, probabilities.argmax(axis=1), -1), probabilities, errors, prior)
