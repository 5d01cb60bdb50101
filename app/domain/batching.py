"""The name of a batched call, and how its usage is divided among the opinions it returned."""

from __future__ import annotations

from collections.abc import Sequence

from dicast.app.domain.dimension import Dimension
from dicast.app.domain.opinion import Usage

MAX_LABEL_CHARS = 200


def batch_label(dimensions: Sequence[Dimension]) -> str:
    """Return a label for a call, for people: its dimensions' ids, cut to `MAX_LABEL_CHARS` characters."""
    if len(dimensions) == 1:
        return dimensions[0].id
    text = ", ".join([dimension.id for dimension in dimensions])
    return text if len(text) <= MAX_LABEL_CHARS else f"{text[: MAX_LABEL_CHARS - 3]}..."


def divide_usage(usage: Usage, opinions: int) -> list[Usage]:
    """Divide the call's tokens into `opinions` equal parts, with the remainder in the first, so that they add up to the
    call."""
    if opinions < 1:
        raise ValueError(f"a call's usage is divided among at least 1 opinion, got {opinions}")
    inputs, extra_input = divmod(usage.input_tokens, opinions)
    outputs, extra_output = divmod(usage.output_tokens, opinions)
    first = Usage(input_tokens=inputs + extra_input, output_tokens=outputs + extra_output)
    return [first, *[Usage(input_tokens=inputs, output_tokens=outputs)] * (opinions - 1)]
