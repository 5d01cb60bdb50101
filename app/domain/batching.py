"""How the cost of a batched call is divided among the opinions that it brought."""

from __future__ import annotations

from app.domain.opinion import Usage


def divide_usage(usage: Usage, opinions: int) -> list[Usage]:
    """The call's tokens in `opinions` equal parts, remainder to the first, so that the parts add up to the call."""
    if opinions < 1:
        raise ValueError(f"a call's usage is divided among at least 1 opinion, got {opinions}")
    inputs, extra_input = divmod(usage.input_tokens, opinions)
    outputs, extra_output = divmod(usage.output_tokens, opinions)
    first = Usage(input_tokens=inputs + extra_input, output_tokens=outputs + extra_output)
    return [first, *[Usage(input_tokens=inputs, output_tokens=outputs)] * (opinions - 1)]
