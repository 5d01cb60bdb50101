"""`dicast rubrics` shows the library of rubrics."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from dicast.app.cli.console import Terminal
from dicast.app.submission.job_file import load_rubric
from dicast.app.submission.rubrics import LIBRARY, names, rubric_path


def show_rubrics(terminal: Terminal, name: str | None) -> None:
    """List all rubrics, or print the file of one. Raises `RubricError`."""
    if name is not None:
        terminal.emit(rubric_path(name, LIBRARY).read_text(encoding="utf-8").rstrip("\n"))
        return
    table = Table.grid(padding=(0, 2, 0, 0))
    for rubric in names():
        dimension = load_rubric(rubric)
        scale = dimension.scale.allowed_values.removeprefix("a whole number from ")
        table.add_row(
            Text(rubric), Text(dimension.name, style="dim"), Text(scale), Text(f"version {dimension.version}")
        )
    terminal.out.print(table)
