"""Which of two answers is better, asked in both orders; and three answers ranked by their pairs."""

from collections import Counter

from dicast import Agent, Dimension, EvaluationJob, Item, Scale, evaluate, load_opinions

judges = [Agent(name="clerk", persona="You answer letters of customers.", max_tokens=300)]
better = [Dimension(id="better", instructions="Which answer is more useful?", scale=Scale(preference="choice"))]
ask = "When is my refund coming?"
answers = {"short": "Soon.", "exact": "On Friday, by bank transfer.", "rude": "Read the rules."}

pair = Item(id="refund", prompt=ask, text_a=answers["short"], text_b=answers["exact"])
report = evaluate.delay(EvaluationJob(items=[pair], agents=judges, dimensions=better)).get(timeout=600)
for opinion in load_opinions(report):
    print(opinion.item_id, "turned" if opinion.swapped else "as given", opinion.label)

ranked = Item.model_validate(
    {"id": "refund", "prompt": ask, "candidates": [{"id": name, "text": text} for name, text in answers.items()]}
)
report = evaluate.delay(EvaluationJob(items=[ranked], agents=judges, dimensions=better, pairs="all")).get(timeout=600)
points: Counter[str] = Counter()
for opinion in load_opinions(report):
    assert opinion.score is not None
    points[str(opinion.metadata["candidate_a"])] += opinion.score
    points[str(opinion.metadata["candidate_b"])] -= opinion.score
print("ranked", points.most_common())
