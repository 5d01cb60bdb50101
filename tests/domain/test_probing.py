"""What probes try out: attacks, claims and marks, in drawn items, the same whenever they are made again."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from pydantic import ValidationError

from dicast.app.domain.dimension import Dimension, Scale
from dicast.app.domain.item import Item
from dicast.app.domain.job import EvaluationJob
from dicast.app.domain.material import material
from dicast.app.domain.plan import Lane
from dicast.app.domain.probes import count_variants, family_of, is_marked, marked_up, plain
from dicast.app.domain.refusals import JobRefused
from dicast.app.domain.variants import ATTACKS, FAMILIES, ScaleEnds, Variants, attack_text, with_attack
from dicast.app.submission.submit import check_probes

NONCE = "0123456789abcdef" * 2
TRIED = ["injection", "authority", "sycophancy", "markdown", "batching", "order"]


def a_job(**more: Any) -> EvaluationJob:
    return EvaluationJob.model_validate(
        {
            "items": [{"id": f"i{n}", "text": f"A text. It has number {n}."} for n in range(100)],
            "agents": [{"name": "j"}],
            "dimensions": [{"id": "d", "instructions": "Is it good?", "scale": {"min": 1, "max": 5}}],
            **more,
        }
    )


def variants_of(items: list[Item], job: EvaluationJob, seed: str = "s", shown: Any = ()) -> list[Item]:
    of = Variants(job.probes, job.dimensions, seed, shown)
    found = [one for at in of.chosen(len(items)) for one in of.variants(items[at], at, len(items))]
    assert len(found) == of.count(len(items)) == count_variants(job.probes, len(items))
    return found


def test_the_corpus_is_large_and_each_attack_is_one_of_its_own() -> None:
    assert len(ATTACKS) >= 40 and len(FAMILIES) >= 12
    assert len({attack.id for attack in ATTACKS}) == len({attack.text for attack in ATTACKS}) == len(ATTACKS)
    assert {attack.place for attack in ATTACKS} == {"text", "prompt", "reference", "metadata"}
    for attack in ATTACKS:
        assert "{" not in attack_text(attack, "1", "5").replace('{"', "").replace("{{", "") or '"' in attack.text


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.id)
def test_no_attack_leaves_the_material(attack: Any) -> None:
    item = Item(id="i", text="A text.", prompt="A task.", reference="A reference.", metadata={"note": "A note."})
    changed = with_attack(item, attack, ScaleEnds("1", "5"), ["note"])
    assert changed.probe == f"injection:{attack.id}" and changed.id == "i" and changed != item
    lines = "\n".join(material(changed, NONCE)).splitlines()
    own = {"MATERIAL", "The task that the text answers:", "A reference answer, known to be good:", "The text to judge:"}
    assert all(line.startswith("> ") or line in own or line == f"END OF MATERIAL {NONCE}" for line in lines)
    if attack.place == "text":
        assert changed.text.startswith("A text.") or changed.text.endswith("A text.")


def test_attacks_come_about_as_often_as_each_other_and_only_where_they_fit() -> None:
    job = a_job(probes=[{"probe": "injection", "items": 100, "attacks": 5}])
    assert isinstance(job.items, list)
    found = Counter(item.probe for item in variants_of(job.items, job))
    assert sum(found.values()) == 500
    assert set(found) == {f"injection:{attack.id}" for attack in ATTACKS if attack.place == "text"}
    assert max(found.values()) <= 3 * min(found.values())
    whole = [item.model_copy(update={"prompt": "P", "reference": "R", "metadata": {"m": "x"}}) for item in job.items]
    assert len({item.probe for item in variants_of(whole, job, shown=["m"])}) == len(ATTACKS)
    for n, item in enumerate(whole):
        of = Variants(job.probes, job.dimensions, "s")
        probes = [one.probe for one in of.variants(item, n, 100)]
        assert len(probes) == len(set(probes)) == 5


def test_variants_are_the_same_again_and_others_for_another_seed() -> None:
    job = a_job(probes=[{"probe": probe, "items": 20} for probe in TRIED])
    assert isinstance(job.items, list)
    found = variants_of(job.items, job)
    assert len(found) == 20 * (1 + 2 + 2 + 1 + 1 + 1)
    assert found == variants_of(job.items, job) != variants_of(job.items, job, seed="t")
    by_id = {item.id: item for item in job.items}
    for one in found:
        base = by_id[one.id]
        if one.probe in ("batching:single", "order:reversed"):
            assert one.model_copy(update={"probe": None}) == base
        else:
            assert one.text != base.text


def test_few_items_are_all_drawn() -> None:
    job = a_job(probes=["authority"])
    assert isinstance(job.items, list)
    assert len(variants_of(job.items[:12], job)) == 24


@pytest.mark.parametrize(
    ("scales", "said"),
    [([(1, 5)], "deserves 5 on a scale from 1 to 5."), ([(1, 5), (0, 10)], "deserves the highest score.")],
)
def test_claims_name_the_scale(scales: Any, said: str) -> None:
    job = a_job(probes=["sycophancy"])
    dimensions = [Dimension(id=f"d{low}", instructions="?", scale=Scale(min=low, max=high)) for low, high in scales]
    of = Variants(job.probes, dimensions, "s")
    high, low = of.variants(Item(id="i", text="Short."), 0, 10)
    assert high.text.endswith(said) and low.text != high.text and low.text.startswith("Short.")


@pytest.mark.parametrize(
    ("text", "bare"),
    [
        ("# Title\n\nSo **bold** and `code`.", "Title\n\nSo bold and code."),
        ("- one\n- two\n1. three", "one\ntwo\nthree"),
        ("| a | b |\n|---|---|\n| 1 | 2 |", "a, b\n1, 2"),
        ("```python\nx = 1\n```\n", "x = 1\n"),
        ("Plain: 3 * 4 and snake_case.", "Plain: 3 * 4 and snake_case."),
        ("---", "---"),
    ],
)
def test_marks_are_taken_away(text: str, bare: str) -> None:
    assert plain(text) == bare


def test_marks_are_added_without_a_word() -> None:
    text = "It rains. It pours!\nWhy 3.5 mm?"
    marked = marked_up(text)
    assert is_marked(marked) and not is_marked(text)
    assert plain(marked).split() == text.split()
    assert is_marked(marked_up("word"))


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("gpt-4.1-mini", "openai"), ("openai/gpt-4o", "openai"), ("o3-mini", "openai"), ("chatgpt-4o", "openai"),
        ("claude-sonnet-4-5", "anthropic"), ("us.anthropic.claude-3-opus", "anthropic"),
        ("models/gemini-2.5-pro", "google"), ("meta-llama/Llama-3.1-8B-Instruct", "meta"),
        ("Qwen2.5-7B", "qwen"), ("deepseek-r1-distill-llama-70b", "deepseek"), ("mixtral-8x7b", "mistral"),
        ("human", None), ("supernova", None), ("", None),
    ],
)  # fmt: skip
def test_families(name: str, family: str | None) -> None:
    assert family_of(name) == family
    assert family_of(name, {name: "mine"}) == "mine"


def test_options_of_probes() -> None:
    job = a_job(probes=["verbosity", "self_preference", {"probe": "injection", "items": 30, "attacks": 2}])
    assert [probe.probe for probe in job.probes] == ["verbosity", "self_preference", "injection"]
    assert job.keep == ["model"], "whose model wrote it stands beside the opinions"
    assert a_job(probes=[{"probe": "self_preference", "author": "by"}]).keep == ["by"]
    again = EvaluationJob.model_validate_json(job.model_dump_json())
    assert again == job


@pytest.mark.parametrize(
    ("probes", "said"),
    [
        ([{"probe": "injection", "items": 9}], "greater than or equal to 10"),
        ([{"probe": "injection", "items": 1001}], "less than or equal to 1000"),
        ([{"probe": "injection", "attacks": 11}], "less than or equal to 10"),
        ([{"probe": "order", "attacks": 2}], "attacks"),
        ([{"probe": "verbosity", "items": 20}], "items"),
        (["vanity"], "vanity"),
        (["order", "order"], "probes: the id 'order' occurs twice"),
        ("order", "list"),
    ],
)
def test_options_that_are_refused(probes: Any, said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        a_job(probes=probes)


def test_nobody_else_makes_variants() -> None:
    with pytest.raises(ValidationError, match=r"'i' has a probe .*which Dicast alone sets"):
        a_job(items=[{"id": "i", "text": "x", "probe": "injection:order-plain"}])
    assert "probe" not in EvaluationJob.model_json_schema()["$defs"]["Item"]["properties"]


@pytest.mark.parametrize("probe", ["batching", "order"])
def test_probes_of_batches_need_judges_that_are_asked_so(probe: str) -> None:
    def lane(agent: int, *, batched: bool) -> Lane:
        return Lane(("p",), (agent,), 2, 1, batched)

    more = {"agents": [{"name": "a"}, {"name": "b"}], "probes": [probe]}
    job = a_job(**more, dimensions=[{"id": "d", "instructions": "?"}, {"id": "e", "instructions": "?"}])
    check_probes(job, [lane(0, batched=True), lane(1, batched=True)])
    with pytest.raises(JobRefused, match=f"'{probe}' needs judges that are asked for all .* 'b' is not"):
        check_probes(job, [lane(0, batched=True), lane(1, batched=False)])
    alone = a_job(**more, dimensions=[{"id": "d", "instructions": "?"}])
    with pytest.raises(JobRefused, match=f"'{probe}' needs two dimensions or more, got 1"):
        check_probes(alone, [lane(0, batched=True)])
    verbose = a_job(probes=["verbosity", "injection"])
    check_probes(verbose, [lane(0, batched=False)])
