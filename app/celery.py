"""Where Celery's commands find the application: `celery -A dicast worker`, or `celery -A app worker` in a checkout."""

from dicast.app.application import app

__all__ = ["app"]
