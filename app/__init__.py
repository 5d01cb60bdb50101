"""The evaluation pipeline.

In a checkout `celery -A app worker` and `from app.tasks import evaluate` find `dicast.app` under this short name,
without a second copy of any module.
"""

if __name__ == "app":
    import sys
    from importlib import import_module

    __path__ = []
    celery, tasks = import_module("dicast.app.celery"), import_module("dicast.app.tasks")
    app = celery.app
    sys.modules |= {"app.celery": celery, "app.tasks": tasks}
