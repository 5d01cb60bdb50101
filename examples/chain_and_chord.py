"""Jobs in Celery's canvases: what follows a job gets its report."""

from celery import chain, chord
from follow_up import compare, headline

from dicast import evaluate


def job(project: str, text: str) -> dict:
    return {
        "project": project,
        "items": [{"id": "text", "text": text}],
        "agents": [{"name": "editor", "max_tokens": 200}],
        "dimensions": [{"id": "clear", "instructions": "Is the text clear?"}],
    }


# One job, and then a task that is called with its report.
print(chain(evaluate.s(job("first", "A plain sentence.")), headline.s())().get(timeout=600))

# Two jobs side by side, and a task that is called with both reports when both have ended.
versions = {"before": "The thing is what it is.", "after": "The bus leaves at nine."}
print(chord([evaluate.s(job(name, text)) for name, text in versions.items()])(compare.s()).get(timeout=600))
