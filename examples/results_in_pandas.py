"""Opinions as a pandas data frame: one row each, with the metadata that the job asks to keep."""

from dicast import evaluate, to_pandas

job = {
    "items": [
        {"id": "a", "text": "The bus leaves at nine.", "metadata": {"author": "student"}},
        {"id": "b", "text": "Departure is effected at nine.", "metadata": {"author": "clerk"}},
    ],
    "agents": [{"name": "editor", "max_tokens": 200}, {"name": "teacher", "max_tokens": 200}],
    "dimensions": [
        {"id": "clear", "instructions": "Is the text clear?"},
        {"id": "short", "instructions": "Is the text short?"},
    ],
    "keep": ["author"],
}

frame = to_pandas(evaluate.delay(job).get(timeout=600))
print(frame[["item_id", "judge", "criterion_id", "score"]])
print(frame.groupby(["criterion_id", "metadata.author"])["score"].mean())
