"""Tasks of your own that follow a job. Workers load them with `celery -A dicast worker -I follow_up`."""

from dicast import celery


@celery.task(name="follow_up.headline")
def headline(report: dict) -> str:
    """One line about a finished job."""
    return f"{report['job_id']}: {report['scored']} of {report['units']} scored"


@celery.task(name="follow_up.compare")
def compare(reports: list[dict]) -> dict[str, float | None]:
    """The overall scores of several jobs."""
    return {report["project"]: report["overall"] for report in reports}
