from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dicast.app.domain.dimension import Dimension
from dicast.app.domain.opinion import Usage
from dicast.app.domain.plan import MAX_LABEL_CHARS, batch_label, divide_usage


def test_the_remainder_goes_to_the_first() -> None:
    parts = divide_usage(Usage(input_tokens=1000, output_tokens=11), 3)
    assert parts == [
        Usage(input_tokens=334, output_tokens=5),
        Usage(input_tokens=333, output_tokens=3),
        Usage(input_tokens=333, output_tokens=3),
    ]


@given(st.integers(0, 10**9), st.integers(0, 10**9), st.integers(1, 200))
def test_the_parts_add_up_to_the_call(inputs: int, outputs: int, opinions: int) -> None:
    parts = divide_usage(Usage(input_tokens=inputs, output_tokens=outputs), opinions)
    assert len(parts) == opinions
    assert sum(part.input_tokens for part in parts) == inputs
    assert sum(part.output_tokens for part in parts) == outputs


def test_nothing_cannot_be_divided_among_none() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        divide_usage(Usage(), 0)


def test_a_call_is_named_by_its_dimensions() -> None:
    dimensions = [Dimension(id=f"dim-{n}", instructions="?") for n in range(100)]
    assert batch_label(dimensions[:1]) == "dim-0"
    assert batch_label(dimensions[:3]) == "dim-0, dim-1, dim-2"
    assert len(batch_label(dimensions)) == MAX_LABEL_CHARS and batch_label(dimensions).endswith("...")
