"""The module in which Celery's commands find the application.

It is `celery -A dicast worker`, or `celery -A app worker` in a checkout.
"""

from dicast.app.application import app
from dicast.app.operator import remote_control, worker_options

assert remote_control, "`celery control` knows of the commands that were registered"
worker_options.reject_zero_concurrency()

__all__ = ["app"]
