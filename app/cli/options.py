"""Options that several commands have."""

from __future__ import annotations

from typing import Annotated

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, on standard output.")]
Watch = Annotated[bool, typer.Option("--watch", help="Renew the output each second, until Ctrl-C.")]
