"""The same work on plain Celery, as a good engineer would write it in a day, under the campaign's faults."""
