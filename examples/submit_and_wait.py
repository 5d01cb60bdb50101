"""Submit a job, wait for its report, and read the opinions."""

from dicast import Agent, Dimension, EvaluationJob, Item, evaluate, load_opinions

job = EvaluationJob(
    items=[
        Item(id="a", prompt="Why is the sky blue?", text="Because short waves of light are scattered most."),
        Item(id="b", prompt="Why is the sky blue?", text="Because it reflects the sea."),
    ],
    agents=[Agent(name="physicist", persona="You teach physics.", max_tokens=200)],
    dimensions=[Dimension(id="correct", instructions="Is every statement true?")],
)

result = evaluate.delay(job)  # checked and stored; a mistake in the job raises here
print(f"job {result.id} is submitted")
report = result.get(timeout=600)  # from here on the workers are at it, even if this program ends

print(f"{report['scored']} of {report['units']} units have a score, {report['calls']} calls were made")
for opinion in load_opinions(report):
    print(opinion.item_id, opinion.criterion_id, opinion.score, opinion.argument)
