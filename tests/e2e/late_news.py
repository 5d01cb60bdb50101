"""For `celery worker -I`: Celery hears of tasks that began or ended only when the pool looks after its loop."""

import dicast.workers.runtime.pool

dicast.workers.runtime.pool.WAKE_WITHIN_S = 3600.0
