from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from dicast.app.domain.dimension import Dimension, Scale
from dicast.app.domain.item import Item
from dicast.app.domain.material import is_fresh, nonce_for
from dicast.app.domain.panel import Agent

KEY, OTHER_KEY = b"k" * 32, b"o" * 32
AGENT = Agent(name="ann", persona="You are strict.")
CLARITY, TRUTH = Dimension(id="clarity", instructions="?"), Dimension(id="truth", instructions="?")
ITEM = Item(id="1", text="A text.", prompt="Write.", reference="Another.")


def nonce(**changes: object) -> str:
    asked: dict[str, object] = {"agent": AGENT, "dimensions": [CLARITY], "item": ITEM, "replicate": 0, **changes}
    key = asked.pop("key", KEY)
    return nonce_for(key, **asked)  # type: ignore[arg-type]


def test_the_same_question_has_the_same_nonce_in_whatever_job() -> None:
    assert re.fullmatch("[0-9a-f]{16}", nonce())
    assert nonce() == nonce() == nonce(item=ITEM.model_copy(update={"id": "2", "metadata": {"of": "another job"}}))


def test_whatever_is_asked_otherwise_has_another() -> None:
    changed: list[dict[str, object]] = [
        {},
        {"key": OTHER_KEY},
        {"replicate": 1},
        {"agent": AGENT.model_copy(update={"name": "bob"})},
        {"agent": AGENT.model_copy(update={"temperature": 0.5})},
        {"agent": AGENT.model_copy(update={"model": "m"})},
        {"dimensions": [TRUTH]},
        {"dimensions": [CLARITY, TRUTH]},
        {"dimensions": [TRUTH, CLARITY]},
        {"dimensions": [CLARITY.model_copy(update={"scale": Scale(min=0, max=3)})]},
        {"item": ITEM.model_copy(update={"text": "A text"})},
        {"item": ITEM.model_copy(update={"prompt": None})},
        {"item": ITEM.model_copy(update={"prompt": "Write.Another.", "reference": None})},
        {"item": ITEM.model_copy(update={"prompt": "Another.", "reference": "Write."})},
    ]
    assert len({nonce(**change) for change in changed}) == len(changed)


def test_a_nonce_in_the_text_is_passed_over(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    met: list[str] = []

    def fresh(candidate: str, _: Item) -> bool:
        met.append(candidate)
        return len(met) % 3 == 0

    monkeypatch.setattr("dicast.app.domain.material.is_fresh", fresh)
    assert nonce() == nonce() == met[2] == met[5]
    assert len(set(met)) == 3


@given(st.text(st.characters(codec=None), min_size=1), st.text(st.characters(codec=None)))
def test_any_text_has_one(text: str, prompt: str) -> None:
    item = Item.model_construct(id="1", text=text, prompt=prompt, reference=None, metadata={})
    assert is_fresh(nonce(item=item), item)
