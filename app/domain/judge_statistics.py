"""What is known of a job's judges, as its report tells it: agreement, bias, people's mean, groups.

All figures are plain data, so that a report can be read where no library for statistics is installed. Every statistic
has an interval, or says why it cannot be said.
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from dicast.app.domain.figure import Figure
from dicast.app.domain.probes import ProbeName

VERSION = 1
UNKNOWABLE = (
    "how far the judges agree with people: nobody has rated any of these items, and that judges agree with each other "
    "does not make them right",
    "whether the judges are too strict or too kind: there is nothing to measure their scores by",
    "what people would have said of these items: the means above are the judges' opinion",
    "how many independent judges the panel is worth: judges that err in the same way look like judges that agree",
)
"""What nobody can know of a job without ratings by people."""


class _Plain(BaseModel):
    model_config = ConfigDict(defer_build=True, frozen=True)


class AmongRaters(_Plain):
    """How far several raters agree with each other, over `items` items; `missing` is the share of empty cells."""

    raters: int
    alpha: Figure
    fleiss: Figure
    icc_single: Figure
    icc_mean: Figure
    base_rate: float | None
    items: int
    missing: float
    left_out: list[str] = Field(
        default_factory=list, description="judges who were asked about some items only, where those before disagreed"
    )


class PeoplesMean(_Plain):
    """People's mean of all items: `powered` from the judges' scores of all and people's of some, `people_alone` from
    people's. `saved` is the factor by which people would have had to rate more for an interval as narrow."""

    powered: Figure
    people_alone: Figure
    judges_weight: float
    saved: float | None
    saved_reason: str | None = None


class VoiceStatistics(_Plain):
    """One judge, the panel, or a person, against people.

    Correlations and differences are with the mean of the *other* people (one left out in turn), kappa and the
    confusion table with one other person: judges and people stand side by side. `base_rate` is the share of people's
    commonest score: read kappa beside it. `confusion` counts this voice's scores (rows, from the scale's lowest)
    against people's.
    `mean` is that of this voice's own scores of all items, of people that of all ratings.
    `alpha_with_people` and `icc_with_people` are those of the people with this voice among them, to be read beside
    people's own. `repeats` is alpha over the replicates of one judge. Of a judge with `spared` opinions, which an
    escalating panel did not need, nothing is told: it was asked about some items only, and those are no sample of all.
    Where the panel has an audit, all is told from its items alone, `audited` of them: they are a random sample.
    """

    name: str
    kind: Literal["judge", "panel", "people"]
    mean: Figure = Figure.unknown("earlier versions did not compute it")
    pearson: Figure
    spearman: Figure
    kendall: Figure
    kappa: Figure
    base_rate: float | None
    bias: Figure
    lower_limit: Figure
    upper_limit: Figure
    confusion: list[list[int]] | None
    items: int
    missing: float
    alpha_with_people: Figure | None = None
    icc_with_people: Figure | None = None
    peoples_mean: PeoplesMean | None = None
    repeats: Figure | None = None
    spared: int = 0
    audited: int = 0


class GroupMean(_Plain):
    """One group: the panel's mean, people's mean if they rated enough of it, how likely it has each rank (the first is
    the highest mean), and of pairs how often A is preferred, ties half."""

    name: str
    items: int
    mean: Figure
    people: Figure | None = None
    ranks: list[float] | None = None
    wins: Figure | None = None


class GroupDifference(_Plain):
    """The mean of `first` less that of `second`; `p` is corrected by Holm for all pairs of the dimension."""

    first: str
    second: str
    difference: Figure
    p: float | None


class GroupStatistics(_Plain):
    """The groups that the metadata `by` makes, by mean; `cluster` is what the intervals are clustered by. `reason` says
    why there are none."""

    by: str
    cluster: str = "item"
    means: list[GroupMean] = []
    differences: list[GroupDifference] = []
    reason: str | None = None


PROBE_TITLES: dict[ProbeName, str] = {
    "verbosity": "twice the length",
    "formatting": "Markdown (seen)",
    "self_preference": "its own family",
    "injection": "attacks, their way",
    "authority": "claims of experts",
    "sycophancy": "claims of the author",
    "markdown": "Markdown (tried out)",
    "batching": "one call for all",
    "order": "the reverse order",
    "position": "being shown first",
}
"""For what a voice may give more."""


class AttackFamily(_Plain):
    """What one family of attacks did: `shift` in points towards the score it was after, and the share that moved."""

    family: str
    tries: int
    moved: Figure
    shift: Figure


class AttackFound(_Plain):
    """One attack that moved scores: by how many points on average, towards the score it was after. It is one of the
    largest of many, chosen for that, so it has no interval: another draw would bring others to the top."""

    attack: str
    family: str
    tries: int
    shift: float


class ProbeStatistics(_Plain):
    """What a probe found of one voice: `effect` in points of the scale, `p` corrected by Holm for all of the dimension.

    What is `tried` compares items with their own variants (`against` "itself"): an effect is one of what was changed.
    The others are seen in what was judged anyway, `against` people's mean or the other judges: what goes with it may be
    the cause. Positive is more for

        verbosity          a text twice as long: the slope of its score less people's mean, with robust errors
        formatting         a text with marks of Markdown, in the same way
        self_preference    texts of its own family of models
        injection          the score that an attack is after
        authority, sycophancy    a claimed score: `variant` is "high", "low", or "high against low"
        markdown           the same text with marks than without
        batching           a dimension judged in one call with the others than alone
        order              the dimensions in reverse order
        position           of a pair, the text that is shown first

    `moved` is the share of variants whose score was another (of pairs, of those whose preference turned with the
    order), `by_itself` that of replicates (which changed nothing), and `beyond` the difference. `first` is how often
    the text that is shown first is preferred, ties half.
    """

    probe: ProbeName
    voice: str
    effect: Figure
    p: float | None
    variant: str = ""
    tried: bool = False
    against: Literal["people", "judges", "itself"] = "people"
    moved: Figure | None = None
    by_itself: Figure | None = None
    beyond: Figure | None = None
    first: Figure | None = None
    families: list[AttackFamily] = []
    attacks: list[AttackFound] = Field(default_factory=list, description="those that moved scores furthest")

    @property
    def title(self) -> str:
        """What its effect is one of, in a few words."""
        named = PROBE_TITLES[self.probe]
        return f"{named}, {self.variant}" if self.variant else named


class CalibratedVoice(_Plain):
    """One judge or the panel by the job's calibration: the mean of its `raw` scores and of the `calibrated` ones, and
    by how much these differ from people's (`bias`). That the map may err, learned as it is on `learned_on` items, is in
    no interval. `differing` is what the map was made with that the job has not."""

    name: str
    kind: Literal["judge", "panel"]
    method: str = ""
    learned_on: int = 0
    differing: list[str] = []
    raw: Figure
    calibrated: Figure
    bias: Figure


class LabelShare(_Plain):
    """How common one label is: the share of the judges' opinions that give it (an item's judges count together), and
    what people's share of all items would be, with the judges' help (`people`) and from their ratings alone."""

    label: str
    judges: Figure
    people: Figure
    people_alone: Figure


class Contestant(_Plain):
    """One of those that were compared two by two: its strength after Bradley and Terry (A beats B with probability
    1 / (1 + exp(b - a)), the mean is 0), and how likely it has each rank."""

    name: str
    strength: Figure
    ranks: list[float]


class WinRate(_Plain):
    """How often one of those compared wins against all others that it met, ties half."""

    name: str
    pairs: int
    wins: Figure


class Meeting(_Plain):
    """How often `first` wins against `second`, ties half."""

    first: str
    second: str
    pairs: int
    wins: Figure


class RankingAgreement(_Plain):
    """How far a voice, or a person, orders the candidates of lists as people do: Kendall's tau-b, the mean over lists,
    and the share of the pairs on which people have a preference that it shares (a tie is none)."""

    name: str
    lists: int
    pairs: int
    tau: Figure
    agreeing: Figure


class PreferenceStatistics(_Plain):
    """Of pairs how often the panel prefers A (`wins`, ties half), the share of ties, and how often people would prefer
    A. `rates` and `contestants` are those compared, best first, `meetings` two and two of them (of 20 at most);
    `reason` says why the comparisons alone rank nobody: `contestants` are then ranked with the help of a prior, if at
    all. `rankings` are there where people rated pairs of lists."""

    wins: Figure
    ties: Figure
    people: Figure
    people_alone: Figure
    rates: list[WinRate] = []
    meetings: list[Meeting] = []
    contestants: list[Contestant] = []
    rankings: list[RankingAgreement] = []
    reason: str | None = None


class EscalationAudit(_Plain):
    """What it costs that an escalating panel asks fewer judges by a difference or an uncertainty, from the `items` on
    which all judges were asked all the same: the share of the full panel's calls that it would have made there, and how
    far its score lies from the full panel's, regardless of the direction (`off`) and with it (`shift`, above 0 where it
    is higher), in units of the scale."""

    items: int
    calls: Figure
    off: Figure
    shift: Figure


class DimensionStatistics(_Plain):
    """Everything about one dimension. `voices` are the judges in their order, then the panel; `person` is what a person
    reaches against the other people, and `independent` how many independent judges the panel is worth."""

    dimension: str
    scale_min: int
    scale_max: int
    ratings: int
    rated_items: int
    raters: list[str]
    panel: str
    voices: list[VoiceStatistics]
    person: VoiceStatistics | None
    judges: AmongRaters | None
    people: AmongRaters | None
    independent: Figure
    groups: list[GroupStatistics] = []
    probes: list[ProbeStatistics] = []
    calibrated: list[CalibratedVoice] = []
    shares: list[LabelShare] = []
    preferences: PreferenceStatistics | None = None
    audit: EscalationAudit | None = None
    summary: list[str]


class StoppedEarly(_Plain):
    """The job ended when its `question` was answered: `judged` of its `items` have an opinion, drawn at random and in
    random order (for a difference, as many of one group as of the other). `known` is what was asked, in `dimension`:
    its interval holds however often one looked. All others are those of a sample whose size is fixed beforehand.
    """

    question: str
    dimension: str
    judged: int
    items: int
    known: Figure
    summary: list[str]


class JobStatistics(_Plain):
    """The statistics of a job. `state` is "computed", or "waiting" or "left out" with the `reason`; `unknowable` is
    what cannot be known of it. `rated` tells whether people have rated any of it, `probabilities` whether the rated
    items were drawn with known, unlike probabilities; without them they are taken for a random sample."""

    version: int = VERSION
    state: Literal["computed", "waiting", "left out"]
    reason: str | None = None
    rated: bool = False
    items: int = 0
    probabilities: bool = False
    unknowable: list[str] = Field(default_factory=list)
    stopped: StoppedEarly | None = None
    dimensions: list[DimensionStatistics] = []

    @classmethod
    def of_no_ratings(cls) -> Self:
        """Of a job that nobody has rated anything of."""
        return cls(state="left out", reason="people have rated none of the items", unknowable=list(UNKNOWABLE))
