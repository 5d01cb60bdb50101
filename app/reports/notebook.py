"""Reports as notebooks show them: with the fragments of the HTML report."""

from __future__ import annotations

from dicast.app.domain.report import Report


def show_reports() -> None:
    """From now on notebooks show a `Report` as HTML."""
    Report.as_html = _html


def _html(report: Report) -> str:
    from dicast.app.reports.html.page import fragment  # noqa: PLC0415  (takes long to load)

    return fragment(report)
