"""A job as a notebook's cells submit it: with a progress bar, blocking or awaited, and its report as HTML.

Each part between the marks `# %%` is a cell, as Jupyter and editors read them.
"""

# %%
from dicast import AsyncClient, evaluate_and_wait

job = {
    "agents": [{"name": "a"}, {"name": "b"}],
    "dimensions": [{"id": "clear", "instructions": "Is it understood at the first reading?"}],
    "items": [{"id": str(n), "text": f"Press the button for {n} seconds."} for n in range(5)],
}
report = evaluate_and_wait(job)

# %%
# The last line of a cell is shown: a notebook asks a report for `_repr_html_()`.
shown = report._repr_html_()
print(f"{report.scored} of {report.units} units, {'judges and dimensions as a table' if '<table' in shown else 'text'}")


# %%
# In a notebook: `report = await again()`.
async def again() -> int:
    async with AsyncClient() as client:
        report = await client.evaluate(job, progress=lambda status: print(f"{status.done} of {status.units} done"))
    return report.scored


if __name__ == "__main__":
    import asyncio

    print(f"{asyncio.run(again())} scored once more")
