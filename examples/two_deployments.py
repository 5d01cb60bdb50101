"""One judge in two places (two_deployments.toml): each unit goes to the one that is best off."""

from collections import Counter

from dicast import evaluate, load_opinions

job = {
    "items": [{"id": str(n), "text": f"Text number {n}."} for n in range(20)],
    "agents": [
        {
            "name": "editor",
            "max_tokens": 200,
            "deployments": [{"pool": "first"}, {"pool": "second", "model": "judge-2"}],
        }
    ],
    "dimensions": [{"id": "clear", "instructions": "Is the text clear?"}],
}

report = evaluate.delay(job).get(timeout=600)
# Which deployment answered is told by the model's name, so two places with one model look alike here.
print(Counter(opinion.model for opinion in load_opinions(report)))
