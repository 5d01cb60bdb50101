"""The conclusions of a job's report: which system is best, whom to trust, what failed, and what to do now.

`app/domain/concluding.py` draws the conclusions. They are data and sentences, the same for the page, the HTML report,
the terminal and the summary of a quality gate.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from dicast.app.domain.figure import Figure

Subject = Literal["systems", "scores", "pairs", "rankings", "labels", "nothing"]
Health = Literal["good", "partial", "bad"]
Advice = Literal["use", "calibrate", "drop", "unknown"]
Whose = Literal["people", "judges"]


class _Plain(BaseModel):
    model_config = ConfigDict(defer_build=True, frozen=True)


class Counts(_Plain):
    """How many judgements there are of which kind: `planned` = `scored` + `failed` + `spared` + `missing`.

    A judgement is one judge's score of one item in one dimension, once for each replicate. `spared` judgements were
    not needed by an escalating panel; `missing` ones were never made. Judgements of variants of items, for `probes`,
    are none of these: `probes` counts all of them, `probes_failed` those without a score.

    Tokens are those of all calls, as the job's books have them; in reports without books, of the calls that brought
    opinions.
    """

    planned: int
    scored: int
    failed: int
    spared: int
    missing: int
    probes: int = 0
    probes_failed: int = 0
    input_tokens: int = 0
    output_tokens: int = 0

    @property
    def made(self) -> int:
        """The judgements that judges were asked for: what `failed` is a share of."""
        return self.scored + self.failed


class NextStep(_Plain):
    """Something to do now. `judges` are those that it is about; `command` is typed into a shell."""

    kind: Literal["judge_again", "mend", "drop", "calibrate", "rate", "group", "judge_more", "name", "none"]
    text: str
    judges: list[str] = []
    command: str = ""


class Mark(_Plain):
    """One row of a chart: a dot with its interval. `place`, `low` and `high` lie on the chart's axis; without an
    interval, `low` and `high` are None. `text` is the same for people. `leads` marks those that may be the best."""

    name: str
    items: int
    place: float | None
    low: float | None
    high: float | None
    text: str
    leads: bool = False
    first: float | None = Field(default=None, description="the probability of being the best")


ChartUnit = Literal["percent of the scale", "percent of comparisons won", "percent of labels"]


class Chart(_Plain):
    """Dots with intervals on one axis. All charts of a job with the same `unit` have the same axis, from which `ticks`
    have a place and a label.

    `dimension` is the id of the dimension, '' where each row is a dimension; `by` is the metadata that tells the rows
    apart. `note` says in a few words what the chart shows.
    """

    title: str
    dimension: str
    by: str = ""
    opinion: Whose = "judges"
    unit: ChartUnit
    axis: tuple[float, float] = (0.0, 100.0)
    ticks: list[tuple[float, str]] = [(0.0, "0 %"), (50.0, "50 %"), (100.0, "100 %")]
    rows: list[Mark]
    note: str = ""


class JudgeRow(_Plain):
    """What is known of one judge, or of the panel: `advice` is to use, calibrate or drop it, `reason` says why.

    `agreement` with people, and a `person`'s, are means over the dimensions in which both are known (of correlations,
    by Fisher's z; of labels without an order, of kappas). Their intervals take the errors of the dimensions for
    identical, so they are rather too wide than too narrow. `bias` says how strict or kind the judge is, `noise` how far
    it agrees with itself, `probes` what moves it that should not.
    """

    name: str
    kind: Literal["judge", "panel"]
    model: str = ""
    agreement: Figure
    person: Figure
    bias: str = ""
    noise: Figure | None = None
    failed: int
    asked: int
    probes: list[str] = []
    advice: Advice
    reason: str


class FailureRow(_Plain):
    """How many of a judge's judgements failed for one cause, what was said, and what to do about it."""

    judge: str
    kind: str
    cause: str
    count: int
    message: str = ""
    remedy: str


class Conclusions(_Plain):
    """The conclusions. The first sentence of `best` is the most important one of the whole report.

    `winner` is named only if it can be told apart from all others, and `opinion` is whose opinion that is: people's,
    estimated with the judges' help, or the judges' own. `badge` is the job's status in a few words.
    """

    subject: Subject
    health: Health
    badge: str
    opinion: Whose
    winner: str | None = None
    best: list[str]
    trust: list[str]
    failures: list[str]
    actions: list[NextStep]
    counts: Counts
    charts: list[Chart] = []
    judges: list[JudgeRow] = []
    failed: list[FailureRow] = []
