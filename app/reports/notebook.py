"""Shows reports in notebooks as HTML."""

from __future__ import annotations

from dicast.app.domain.report import Report


def show_reports() -> None:
    """Make notebooks show a `Report` as HTML from now on."""
    Report.as_html = _html


def _html(report: Report) -> str:
    from dicast.app.reports.html.page import fragment  # noqa: PLC0415  (takes long to load)

    return fragment(report)
