"""Does a quote's interval hold what the job then costs? `python -m lab.statistics.quotes --runs 200`

Simulated jobs of five kinds are quoted after a pilot of at most 30 calls, with the functions that `dicast quote` uses,
and what the rest of their calls costs is compared with the interval:

    plain        one judge, one dimension
    batched      two judges, four dimensions in one call
    pairs        two judges, each pair in both orders
    escalating   two judges always, a third about a tenth to six tenths of the items, the harder ones
    long tails   one judge with hidden reasoning: outputs of which the longest are some hundred times the shortest, and
                 fifty items judged once more for a probe, with longer texts

Jobs have 60 to 3,000 items. Texts are log-normal in length, each with a rate of tokens a byte of its own; outputs are
log-normal, with a part that an item's units share, and may grow with the text; prices of output are two to ten times
those of input. It fails if an interval that is to hold in 95 % of the jobs holds in fewer than 90 % of any kind.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dicast.app.domain.price import Place, price_from_table
from dicast.app.domain.quote import Cell, Sample, TakenTokens, money_of

Floats = NDArray[np.float64]
PILOT_CALLS = 30
PROMISED = 0.9
AROUND = 1800
"""Bytes of a request around the item's texts."""
PROBED = 50


@dataclass(frozen=True, slots=True)
class CellWorld:
    """What each item's units of one cell truly take: arrays by item, and zeros where nobody is asked. `probed` has the
    same of the variants."""

    judge: str
    dimension: str
    place: Place
    units: int
    calls_per_unit: float
    max_output: float
    bytes: Floats
    input_tokens: Floats
    output_tokens: Floats
    always: bool = True
    probed: tuple[Floats, Floats, Floats] | None = None

    @property
    def cost(self) -> Floats:
        assert self.place.price is not None
        rates = self.place.price.rates
        return rates.input * self.input_tokens + rates.output * self.output_tokens

    @property
    def probe_cost(self) -> float:
        if self.probed is None or self.place.price is None:
            return 0.0
        rates, (_, inputs, outputs) = self.place.price.rates, self.probed
        return float(rates.input * inputs.sum() + rates.output * outputs.sum())

    def cells(self, rest: NDArray[np.intp]) -> list[Cell]:
        """Return what is to be judged when the pilot is over."""
        units = self.units * len(rest)
        cell = Cell(
            self.judge, self.dimension, self.place, units, units * self.calls_per_unit, float(self.bytes[rest].sum()),
            self.max_output, always=self.always,
        )  # fmt: skip
        if self.probed is None:
            return [cell]
        size = self.probed[0]
        variants = Cell(self.judge, self.dimension, self.place, len(size), len(size), float(size.sum()),
                        self.max_output, "authority")  # fmt: skip
        return [cell, variants]


@dataclass(frozen=True, slots=True)
class Texts:
    """The items of a job: bytes, and tokens a byte."""

    bytes: Floats
    rate: Floats

    @classmethod
    def drawn(cls, rng: np.random.Generator) -> Texts:
        count = int(np.exp(rng.uniform(np.log(60), np.log(3000))))
        size = np.clip(rng.lognormal(np.log(1500), rng.uniform(0.3, 1.0), count), 40, 60_000)
        return cls(size, np.clip(rng.normal(0.25, 0.02, count), 0.15, 0.5))

    def outputs(self, rng: np.random.Generator, spread: float, most: float) -> Callable[[], Floats]:
        """Return a function that draws an output for each item. Half of its variance is the item's own."""
        middle, growth = rng.uniform(60, 250), rng.choice([0.0, 0.0, 0.3])
        shared = rng.normal(0, spread * np.sqrt(0.5), len(self.bytes)) + growth * np.log(self.bytes / 1500)

        def draw() -> Floats:
            noise = rng.normal(0, spread * np.sqrt(0.5), len(self.bytes))
            outputs: Floats = np.minimum(np.ceil(middle * np.exp(shared + noise)), most)
            return outputs

        return draw


def drawn_place(rng: np.random.Generator) -> Place:
    """Return a place whose output costs two to ten times as much as its input."""
    of_input = int(rng.integers(100, 5000)) / 1000
    of_output = round(of_input * rng.uniform(2, 10), 3)
    return Place("pool", "model", price_from_table({"input": of_input, "output": of_output}, "drawn"))


def plain(rng: np.random.Generator) -> list[CellWorld]:
    texts, place = Texts.drawn(rng), drawn_place(rng)
    size = texts.bytes + AROUND
    outputs = texts.outputs(rng, 0.5, 1024)()
    return [CellWorld("a", "d", place, 1, 1.0, 1024, size, texts.rate * size, outputs)]


def batched(rng: np.random.Generator) -> list[CellWorld]:
    texts, worlds, many = Texts.drawn(rng), [], 4
    for judge in ("a", "b"):
        place, size = drawn_place(rng), (texts.bytes + AROUND + 400 * many) / many
        answer = texts.outputs(rng, 0.4, 1024)() / many
        for number in range(many):
            worlds.append(
                CellWorld(judge, f"d{number}", place, 1, 1 / many, 1024, size, texts.rate * size, answer)
            )  # fmt: skip
    return worlds


def pairs(rng: np.random.Generator) -> list[CellWorld]:
    texts, worlds = Texts.drawn(rng), []
    for judge in ("a", "b"):
        place, size, draw = drawn_place(rng), texts.bytes + AROUND, texts.outputs(rng, 0.5, 1024)
        worlds.append(
            CellWorld(judge, "d", place, 2, 1.0, 1024, 2 * size, 2 * texts.rate * size, draw() + draw())
        )  # fmt: skip
    return worlds


def escalating(rng: np.random.Generator) -> list[CellWorld]:
    texts, worlds = Texts.drawn(rng), []
    size = texts.bytes + AROUND
    hard = rng.random(len(size)) < rng.uniform(0.1, 0.6) * np.clip(texts.bytes / texts.bytes.mean(), 0.5, 1.6)
    for judge in ("a", "b", "c"):
        place, is_last = drawn_place(rng), judge == "c"
        outputs = texts.outputs(rng, 0.5, 1024)()
        is_asked = hard.astype(float) if is_last else np.ones(len(size))
        worlds.append(
            CellWorld(
                judge, "d", place, 1, 1.0, 1024, size, is_asked * texts.rate * size, is_asked * outputs, not is_last
            )
        )  # fmt: skip
    return worlds


def long_tails(rng: np.random.Generator) -> list[CellWorld]:
    texts, place = Texts.drawn(rng), drawn_place(rng)
    size = texts.bytes + AROUND
    draw = texts.outputs(rng, rng.uniform(0.9, 1.2), 16_000)
    probed = rng.permutation(len(size))[:PROBED]
    longer = size[probed] + 80
    variants = longer, texts.rate[probed] * longer, draw()[probed]
    return [CellWorld("a", "d", place, 1, 1.0, 16_000, size, texts.rate * size, draw(), probed=variants)]


KINDS: dict[str, Callable[[np.random.Generator], list[CellWorld]]] = {
    "plain": plain, "batched": batched, "pairs": pairs, "escalating": escalating, "long tails": long_tails,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class QuoteOutcome:
    """How one quote fared: whether its interval held, its width and the expectation's error as shares of the truth, and
    the pilot's calls."""

    holds: bool
    width: float
    error: float
    calls: float


def quoted(worlds: list[CellWorld], rng: np.random.Generator) -> QuoteOutcome:
    """Return how the quote of a job fares after its pilot."""
    per_item = sum(world.units * world.calls_per_unit for world in worlds)
    count = int(PILOT_CALLS // per_item)
    order = rng.permutation(len(worlds[0].bytes))
    chosen, rest = order[:count], order[count:]
    sample: Sample = [
        {
            (world.judge, world.dimension): TakenTokens(
                world.units, float(world.bytes[at]), float(world.input_tokens[at]), float(world.output_tokens[at])
            )
            for world in worlds
        }
        for at in chosen
    ]
    cells = [cell for world in worlds for cell in world.cells(rest)]
    money = money_of(cells, sample, random.Random(int(rng.integers(2**32))))
    truth = sum(float(world.cost[rest].sum()) + world.probe_cost for world in worlds)
    assert money.low is not None and money.high is not None
    calls = sum(
        float(world.units * world.calls_per_unit * (world.input_tokens[chosen] > 0).sum()) for world in worlds
    )  # fmt: skip
    return QuoteOutcome(
        money.low <= truth <= money.high, (money.high - money.low) / truth, abs(money.expected / truth - 1), calls
    )


def run(kind: str, runs: int, seed: int) -> list[QuoteOutcome]:
    """Quote so many jobs of a kind."""
    rng = np.random.default_rng([seed, list(KINDS).index(kind)])
    return [quoted(KINDS[kind](rng), rng) for _ in range(runs)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200, help="jobs of each kind")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    started, good, total = time.monotonic(), True, 0.0
    print(f"{'kind':<12}{'held':>8}{'width':>8}{'error':>8}{'calls of the pilot, at most':>30}")
    for kind in KINDS:
        outcomes = run(kind, options.runs, options.seed)
        holds = float(np.mean([outcome.holds for outcome in outcomes]))
        width, error = (float(np.median([getattr(o, name) for o in outcomes])) for name in ("width", "error"))
        most = max(outcome.calls for outcome in outcomes)
        print(f"{kind:<12}{holds:>8.3f}{width:>8.2f}{error:>8.3f}{most:>30.0f}", flush=True)
        good &= holds >= PROMISED and most <= PILOT_CALLS
        total += holds / len(KINDS)
    print(f"{'all':<12}{total:>8.3f}   of {len(KINDS) * options.runs:,} jobs, in {time.monotonic() - started:.0f} s")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
