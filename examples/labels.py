"""Judge on labels, a checklist and pass or fail, all in one call a text."""

from dicast import Agent, Dimension, EvaluationJob, Item, Scale, evaluate, load_opinions

job = EvaluationJob(
    items=[
        Item(id="a", text="Dear Ms Roth, your refund of 40 EUR is on its way. It takes three days."),
        Item(id="b", text="Refunds are refunds. Read the rules."),
    ],
    agents=[Agent(name="clerk", persona="You answer letters of customers.", max_tokens=300)],
    dimensions=[
        Dimension(id="tone", instructions="How does it sound?", scale=Scale(labels=["rude", "neutral", "friendly"])),
        Dimension(id="whole", instructions="Look for:", scale=Scale(checklist=["Is a sum named?", "Is a time named?"])),
        Dimension(id="sendable", instructions="Can it be sent as it is?", scale=Scale(labels=["fail", "pass"])),
    ],
    batching=True,
)

report = evaluate.delay(job).get(timeout=600)
for row in report["by_dimension"]:
    print(row["dimension"]["id"], row["labels"] or {q["question"]: q["yes"] for q in row["questions"]})
for opinion in load_opinions(report):
    print(opinion.item_id, opinion.criterion_id, opinion.score, opinion.label or opinion.answers)
