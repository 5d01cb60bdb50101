"""Makes what `dicast demo` shows: answers of three made-up help desks, judgements on them, and ratings.

    python -m lab.demo

All of it is invented: texts and ratings were written for this project, and the judgements follow from a hidden quality
of each answer, with chance and a fault of its own for each judge. They are stored under the keys of the questions that
the job asks (app/pipeline/kept_opinions.py), so they have to be made anew when the wording of prompts changes; a test
notices it.
"""

from __future__ import annotations

import csv
import io
import random
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import orjson

from dicast import config
from dicast.app.application import create_app
from dicast.app.domain.item import Item
from dicast.app.ledger.records import JobRecord
from dicast.app.pipeline.kept_opinions import question_key
from dicast.app.pipeline.pools import ServedPools
from dicast.app.reports.opinion_cache import Entry, KeptOpinion
from dicast.app.submission import job_file

FOLDER = Path(config.__file__).parent / "demo"
SEED = 11
KEPT_MS = 1_790_000_000_000
RATERS = ("ada", "ben")


class Topic(NamedTuple):
    """A question to the help desk of a library, with a right answer, one that is half right, and a wrong one."""

    question: str
    right: str
    half: str
    wrong: str


TOPICS = (
    Topic("How long may I keep a book?",
          "Four weeks. You can renew it twice for four more weeks each, unless somebody has reserved it.",
          "Four weeks, I believe, and then it has to come back.",
          "As long as you like; we do not count days any more."),
    Topic("What does a library card cost?",
          "Nothing below 18, and 15 a year for everybody else. With a benefits certificate it is 5.",
          "It is 15 a year.",
          "The first card is 60, because of the plastic."),
    Topic("May I take out films?",
          "Yes, up to five at a time for one week each. They are on the second floor.",
          "Yes, films can be borrowed like books.",
          "No. Films were thrown away when streaming came."),
    Topic("Where can I return books at night?",
          "Use the slot left of the main door; it takes books day and night, and your account shows them by noon.",
          "There is a slot outside.",
          "Leave them on the steps, somebody will find them."),
    Topic("I lost a book. What now?",
          "Tell us, so that no fees run up. You pay its price, or bring the same edition in good condition.",
          "You have to pay for it.",
          "Say nothing; after a year it leaves our records."),
    Topic("Can I use a computer without a card?",
          "Yes, for an hour a day: ask at the desk for a guest code and show any identity card.",
          "Computers are free to use for an hour.",
          "Only members of the university may touch the computers."),
    Topic("Do you have a quiet room?",
          "Yes, the reading room on the third floor. Phones are off there, and seats cannot be reserved.",
          "The third floor is rather quiet.",
          "The whole house is silent by law, also the cafe."),
    Topic("How do I reserve a book?",
          "Find it in the catalogue, press Reserve and choose a branch. We write when it waits there, for seven days.",
          "Press Reserve in the catalogue.",
          "Phone us every morning at eight until it is back."),
    Topic("Can I print here?",
          "Yes: send the file to the printer page, pay 10 cents a page with your card, fetch it on the first floor.",
          "There is a printer on the first floor.",
          "Printing is free, without any limit, in colour."),
    Topic("When are you open on Sunday?",
          "From 13 to 18, with the reading room and the cafe. Borrowing works at the machines; the desk is closed.",
          "In the afternoon.",
          "Never. Sunday is for cleaning."),
    Topic("How do I get e-books on my reader?",
          "Install the library app, log in with your card number, choose Send to reader. Old readers need a cable.",
          "There is an app for that.",
          "E-books are sent to you on a disc by post."),
    Topic("May my child have a card of its own?",
          "Yes, from the first school year on, with a parent's signature. Children pay no fees for late books.",
          "Yes, with a signature.",
          "Only from 16 on, and after a test."),
    Topic("Can you get a book that you do not have?",
          "Often: fill in the form for interlibrary loan. It costs 2 and takes one to two weeks.",
          "We can order it from elsewhere.",
          "What we do not have does not exist in print."),
    Topic("Do you take old books as gifts?",
          "Up to ten at a time, clean and younger than five years. What we cannot use is sold for the children.",
          "Yes, bring them along.",
          "Yes, we collect whole cellars on the same day."),
    Topic("How do I cancel my card?",
          "Return everything, then write to us or come by. Paid fees of the running year are not given back.",
          "Write to us.",
          "It is for life and cannot be cancelled."),
)  # fmt: skip

QUALITY = {"right": 4.6, "half": 3.2, "wrong": 1.5}
SYSTEMS = {"atlas": "rrrrrrrhrrrrrwr", "brook": "rrhrhrrhrwrhrhr", "cedar": "hwrhwhrwhhrwhhw"}
"""What each system answers to the topics in turn: right, half right or wrong."""
OPENINGS = {"atlas": "", "brook": "Thank you for asking! ", "cedar": "Dear visitor, in reply to your message: "}


class Taste(NamedTuple):
    """How a judge scores: shifted by `bias`, with a deviation of `noise`, and `length` more for each 100 characters."""

    bias: float
    noise: float
    length: float = 0.0


JUDGES = {"steady": Taste(-0.1, 0.5), "generous": Taste(0.7, 0.7), "night shift": Taste(0.0, 1.8, 0.5)}
PEOPLE = {"ada": Taste(0.0, 0.4), "ben": Taste(-0.2, 0.5)}
REMARKS = {
    "correct": ("It is wrong, and whoever follows it is misled.", "Most of it cannot be relied on.",
                "It is true, but leaves out what decides.", "It is right, with a detail left out.",
                "Every statement in it is right."),
    "helpful": ("The reader knows no more than before.", "It says little that one could act on.",
                "It helps, and a further question is needed.", "One can act on it at once.",
                "It names the way, the cost and the exception."),
}  # fmt: skip


def answers() -> Iterator[tuple[Item, float]]:
    """Yield the items, each with its hidden quality."""
    kinds = {"r": "right", "h": "half", "w": "wrong"}
    for number, topic in enumerate(TOPICS, 1):
        for system, pattern in SYSTEMS.items():
            kind = kinds[pattern[number - 1]]
            item = Item(
                id=f"q{number:02}-{system}", prompt=topic.question, text=OPENINGS[system] + getattr(topic, kind),
                metadata={"system": system, "question": f"q{number:02}"},
            )  # fmt: skip
            yield item, QUALITY[kind]


def score(taste: Taste, quality: float, text: str, chance: random.Random) -> int:
    """Return a score from 1 to 5."""
    value = quality + taste.bias + taste.length * len(text) / 100 + chance.gauss(0, taste.noise)
    return max(1, min(5, round(value)))


def ratings(chance: random.Random) -> str:
    """Return people's ratings of the answers to two topics in three as CSV."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["item_id", "rater", *REMARKS])
    for number, (item, quality) in enumerate(answers()):
        for rater in RATERS if number // len(SYSTEMS) % 3 else ():
            writer.writerow([item.id, rater, *(score(PEOPLE[rater], quality, item.output, chance) for _ in REMARKS)])
    return file.getvalue()


def judgements(chance: random.Random) -> Iterator[Entry]:
    """Yield the entry of each question that the demo's job asks."""
    app = create_app({"REDIS_URL": "redis://127.0.0.1:1/0", "DICAST_POOLS_FILE": str(FOLDER / "pools.toml")})
    document = job_file.load_job(str(FOLDER / "job.yaml"))
    ready = app.prepared(document)
    spec = ready.job
    record = JobRecord(ready.id, spec, ready.lanes, ready.units, 1, None, "demo")
    qualities = {item.id: (item, quality) for item, quality in answers()}
    pools = ServedPools(app)
    for lane in record.lanes:
        for position in range(len(qualities) * lane.units_per_item):
            unit = lane.unit(position)
            item, quality = list(qualities.values())[unit.item]
            agent, dimension = spec.agents[unit.agent], spec.dimensions[unit.dimension]
            value = score(JUDGES[agent.name], quality, item.output, chance)
            opinion = KeptOpinion(
                judge=agent.name, model="made-up", pool="demo", score=value, argument=REMARKS[dimension.id][value - 1],
                cited_evidence=[item.output.partition(". ")[0]],
            )  # fmt: skip
            key = question_key(record, lane, position, item, pools.asked_at(agent.choices[0]))
            yield Entry(key=key.hex(), kept_ms=KEPT_MS, opinion=opinion)


def main() -> None:
    """Write the files."""
    chance = random.Random(SEED)
    lines = (orjson.dumps(item.model_dump(exclude_defaults=True)) for item, _ in answers())
    (FOLDER / "items.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))
    (FOLDER / "ratings.csv").write_text(ratings(chance))
    entries = [orjson.dumps(e.model_dump(mode="json", exclude_defaults=True)) for e in judgements(chance)]
    (FOLDER / "judgements.jsonl").write_bytes(b"".join(line + b"\n" for line in entries))


if __name__ == "__main__":
    main()
