"""Which lines of the rooms a process runs, by the package coverage (which comes with the extra `mutation`)."""

from __future__ import annotations

import json
import os

import coverage

ROOMS = ("access", "server", "operator", "reports", "analysis", "submission", "datasets")


class LineTracer:
    """Sees all threads and greenlets of this process that begin later."""

    def __init__(self, tree: str) -> None:
        self._tree = os.path.realpath(tree)
        self._coverage = coverage.Coverage(
            data_file=None, config_file=False, concurrency=["thread", "greenlet"], messages=False,
            include=[f"{self._tree}/app/{room}/{files}" for room in ROOMS for files in ("*.py", "**/*.py")],
        )  # fmt: skip
        # A process that runs nothing of the rooms is no reason to warn, which makes a test fail.
        self._coverage.set_option("run:disable_warnings", ["no-data-collected", "already-imported"])

    def begin(self) -> None:
        self._coverage.start()

    def next(self, name: str) -> None:
        """What is run from now on is counted under this name; until then, under ''."""
        self._coverage.switch_context(name)

    def lines(self) -> dict[str, dict[str, list[int]]]:
        """The lines of each file that were run, by name. Ends the tracing."""
        self._coverage.stop()
        data = self._coverage.get_data()
        found = {}
        for name in data.measured_contexts():
            data.set_query_context(name)
            files = {file: data.lines(file) or [] for file in data.measured_files()}
            found[name] = {os.path.relpath(file, self._tree): lines for file, lines in files.items() if lines}
        return found

    def text(self) -> str:
        return json.dumps(self.lines())
