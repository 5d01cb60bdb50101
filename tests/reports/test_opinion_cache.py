"""Opinions are found by what was asked, and by nothing else; the file bears several writers and a kill."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import signal
from types import SimpleNamespace

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dicast.app.domain.dimension import Dimension
from dicast.app.domain.item import Item
from dicast.app.domain.plan import lanes
from dicast.app.pipeline.kept_opinions import KeptOpinions, question_key
from dicast.app.reports.opinion_cache import CacheError, Entry, KeptOpinion, OpinionCache
from tests.ledger.bench import a_job

KEEPS = {"cache": "use"}


def an_entry(number: int = 1, kept_ms: int = 1000, **fields) -> Entry:
    opinion = KeptOpinion(**{"judge": "a0", "model": "m", "score": 3, "argument": "So.", **fields})
    return Entry(key=f"{number:064x}", kept_ms=kept_ms, opinion=opinion)


def key_of(entry: Entry) -> bytes:
    return bytes.fromhex(entry.key)


def a_record(batched=False, **more):
    spec = a_job(agents=2, replicates=2, **{**KEEPS, **more})
    plan = lanes([("",)] * 2, len(spec.dimensions), spec.rounds, [batched] * 2)
    return SimpleNamespace(id=spec.id, spec=spec, lanes=plan)


def keys(job, items=None, place="p"):
    lane = job.lanes[0]
    items = job.spec.items if items is None else items
    return {
        (unit.item, unit.replicate, unit.agent, unit.dimension): question_key(
            job, lane, position, items[unit.item], place
        )
        for position in range(len(items) * lane.units_per_item)
        for unit in [lane.unit(position)]
    }


@pytest.fixture
def cache(tmp_path):
    with OpinionCache(tmp_path, most_bytes=2**30) as cache:
        yield cache


class TestKeys:
    @pytest.mark.parametrize("batched", [False, True])
    def test_each_unit_has_its_own(self, batched):
        found = keys(a_record(batched=batched))
        assert len(set(found.values())) == len(found) == 16

    def test_what_no_judge_sees_does_not_count(self):
        job = a_record()
        moved = [item.model_copy(update={"id": f"x{item.id}", "metadata": {"a": 1}}) for item in job.spec.items]
        assert keys(a_record(groups=["a"], labels={"a": "b"}), moved) == keys(job)

    def test_a_template_may_show_ids_and_metadata(self):
        job = a_record(template="{{ item.id }} {{ text }}")
        moved = [item.model_copy(update={"id": f"x{item.id}"}) for item in job.spec.items]
        assert not set(keys(job, moved).values()) & set(keys(job).values())

    def test_another_project_shares_none(self):
        assert not set(keys(a_record(project="other")).values()) & set(keys(a_record()).values())

    def test_a_changed_dimension_changes_its_own_alone(self):
        before, job = keys(a_record()), a_record()
        job.spec.dimensions[1] = job.spec.dimensions[1].model_copy(update={"instructions": "how bad?"})
        after = keys(job)
        assert {unit for unit in before if before[unit] != after[unit]} == {unit for unit in before if unit[3] == 1}

    @given(st.data())
    def test_any_edit_that_a_judge_can_see_changes_the_key(self, data):
        job = a_record()
        lane, item = job.lanes[0], job.spec.items[0]
        before = question_key(job, lane, 0, item, "p")
        name = data.draw(st.sampled_from(["text", "prompt", "reference", "place", "persona", "model", "max_tokens",
                                          "temperature", "instructions", "levels", "template", "probe"]))  # fmt: skip
        word, place = data.draw(st.text(min_size=1, max_size=30).filter(lambda t: t != item.text)), "p"
        agent, dimension = job.spec.agents[0], job.spec.dimensions[0]
        if name in ("text", "prompt", "reference", "probe"):
            item = item.model_copy(update={name: word})
        elif name == "place":
            place = f"p{word}"
        elif name in ("persona", "model"):
            job.spec.agents[0] = agent.model_copy(update={name: word})
        elif name == "max_tokens":
            job.spec.agents[0] = agent.model_copy(
                update={name: data.draw(st.integers(1, 9999).filter(lambda n: n != 1024))}
            )
        elif name == "temperature":
            job.spec.agents[0] = agent.model_copy(update={name: data.draw(st.floats(0, 2))})
        elif name == "levels":
            job.spec.dimensions[0] = dimension.model_copy(update={name: {1: word}})
        else:
            update = {name: f"how good?{word}" if name == "instructions" else word}
            job.spec.dimensions[0] = dimension.model_copy(update=update)
        assert question_key(job, lane, 0, item, place) != before


class TestFile:
    def test_it_is_made_by_the_first_entry_and_not_by_looking(self, cache):
        assert cache.find([b"k" * 32]) == {} and cache.stats().entries == 0 and list(cache.export()) == []
        assert not cache.path.exists()
        assert cache.add([an_entry()]) == 1
        assert cache.path.stat().st_mode & 0o77 == 0

    def test_the_earlier_opinion_stays_unless_it_is_replaced(self, cache):
        first, second = an_entry(score=1), an_entry(kept_ms=2000, score=2)
        assert (cache.add([first]), cache.add([second])) == (1, 0)
        assert cache.find([key_of(first)])[key_of(first)] == first
        cache.add([second], replace=True)
        assert cache.find([key_of(first)])[key_of(first)] == second

    def test_entries_that_are_too_old_are_not_found(self, cache):
        cache.add([an_entry(1, 1000), an_entry(2, 2000)])
        assert list(cache.find([key_of(an_entry(n)) for n in (1, 2, 3)], since_ms=1500)) == [key_of(an_entry(2))]

    def test_the_oldest_go_when_it_is_full(self, tmp_path):
        with OpinionCache(tmp_path, most_bytes=400_000) as cache:
            for n in range(40):
                cache.add(an_entry(100 * n + k, kept_ms=n, argument="x" * 500) for k in range(20))
            stats = cache.stats()
        assert stats.bytes < 600_000 and stats.oldest_ms > 0 and stats.newest_ms == 39

    def test_an_export_brings_everything_back(self, cache, tmp_path):
        entries = [an_entry(n, n, judge=f"a{n % 3}", answers=[True, False], dissent="") for n in range(1200)]
        cache.add(entries)
        path = tmp_path / "kept.jsonl"
        path.write_bytes(b"".join(cache.export()))
        with OpinionCache(tmp_path / "other", most_bytes=2**30) as other:
            assert other.add_export(path) == 1200
            assert sorted(other.entries(), key=lambda e: e.kept_ms) == entries
            assert other.stats().judges == {"a0": 400, "a1": 400, "a2": 400}

    @pytest.mark.parametrize(
        "line, message",
        [
            (b"{", "Invalid JSON"),
            (b'{"key": "00", "kept_ms": 1}', "key: String should match"),
            (orjson.dumps(an_entry().model_dump() | {"kept_ms": -1}), "kept_ms: Input should be greater"),
            (orjson.dumps(an_entry().model_dump() | {"more": 1}), "more: Extra inputs"),
        ],
    )
    def test_an_export_with_a_wrong_line_adds_nothing(self, cache, tmp_path, line, message):
        path = tmp_path / "kept.jsonl"
        path.write_bytes(orjson.dumps(an_entry().model_dump()) + b"\n" + line + b"\n")
        with pytest.raises(CacheError, match=f"line 2 is no opinion of a cache: {message}"):
            cache.add_export(path)
        assert cache.stats().entries == 0

    def test_pruning_removes_the_older(self, cache):
        cache.add(an_entry(n, 1000 * n) for n in range(10))
        assert cache.prune(before_ms=4000) == 4
        assert cache.stats().oldest_ms == 4000

    def test_a_file_that_is_none_is_an_error_that_names_it(self, tmp_path):
        with OpinionCache(tmp_path, most_bytes=2**30) as cache:
            cache.path.write_bytes(b"x" * 5000)
            with pytest.raises(CacheError, match=r"opinions\.sqlite3: file is not a database"):
                cache.find([b"k" * 32])

    def test_four_processes_and_a_kill_lose_and_tear_nothing(self, tmp_path):
        context = multiprocessing.get_context("spawn")
        pipes = [context.Pipe(duplex=False) for _ in range(4)]  # one each: a killed writer holds no lock of the others
        endless = 10**6  # the first one writes until it is killed
        writers = [
            context.Process(target=_write, args=(str(tmp_path), n, 40 if n else endless, sender))
            for n, (_, sender) in enumerate(pipes)
        ]
        for writer, (_, sender) in zip(writers, pipes, strict=True):
            writer.start()
            sender.close()
        finished = [_batches(receiver, 5) for receiver, _ in pipes]  # each is in the middle of something then
        os.kill(writers[0].pid, signal.SIGKILL)
        finished = [max(count, _batches(receiver)) for count, (receiver, _) in zip(finished, pipes, strict=True)]
        for writer in writers:
            writer.join(60)
        assert [writer.exitcode for writer in writers] == [-signal.SIGKILL, 0, 0, 0]
        assert finished[1:] == [40] * 3
        with OpinionCache(tmp_path, most_bytes=2**30) as cache:
            numbers = {int(entry.key, 16) for entry in cache.entries()}
        for writer, batches in enumerate(finished):
            written = {number for number in numbers if number // 10**6 == writer}
            assert written >= {10**6 * writer + n for n in range(20 * batches)}
            assert len(written) % 20 == 0


def _write(folder: str, number: int, batches: int, sender) -> None:
    with OpinionCache(folder, most_bytes=2**30) as cache:
        for batch in range(batches):
            cache.add(an_entry(10**6 * number + 20 * batch + n) for n in range(20))
            sender.send(batch + 1)


def _batches(receiver, most: int = 10**6) -> int:
    """Return the highest number of batches that a writer has reported, up to `most` or until it ended."""
    batches = 0
    with contextlib.suppress(EOFError):
        while batches < most:
            batches = receiver.recv()
    return batches


class TestUse:
    POOLS = SimpleNamespace(asked_at=lambda deployment: deployment.pool or "p")

    def kept(self, cache, job, score=3, **fields):
        for key in keys(job).values():
            cache.add([Entry(key=key.hex(), kept_ms=5000, opinion=an_entry(score=score, **fields).opinion)])
        return KeptOpinions(cache, self.POOLS)

    def results(self, kept, job, now_ms=6000):
        lane, items = job.lanes[0], dict(enumerate(job.spec.items))
        positions = range(len(items) * lane.units_per_item)
        found = kept.results(job, lane, items, positions, now_ms)
        return {position: orjson.loads(result)["opinion"] for position, result in found.items()}

    def test_a_kept_opinion_becomes_one_of_this_job(self, cache):
        job = a_record()
        found = self.results(self.kept(cache, job), job)
        assert len(found) == 16
        unit = job.lanes[0].unit(5)
        assert found[5] == {
            "judge": f"a{unit.agent}", "criterion_id": f"d{unit.dimension}", "item_id": f"i{unit.item}",
            "replicate": unit.replicate, "score": 3, "argument": "So.", "cited_evidence": [], "model": "m", "pool": "",
            "usage": {"input_tokens": 0, "output_tokens": 0}, "latency_s": 0.0, "attempts": 0, "metadata": {},
            "cached": "1970-01-01T00:00:05+00:00",
        }  # fmt: skip

    @pytest.mark.parametrize("mode, count", [("off", 0), ("refresh", 0), ("use", 16), ("only", 16)])
    def test_the_job_says_whether_they_are_used(self, cache, mode, count):
        job = a_record(cache=mode)
        assert len(self.results(self.kept(cache, job), job)) == count

    @pytest.mark.parametrize("age, count", [("2s", 16), (0.5, 0), (0, 0)])
    def test_up_to_the_age_that_it_allows(self, cache, age, count):
        job = a_record(cache_max_age=age)
        assert len(self.results(self.kept(cache, job), job)) == count

    def test_what_is_not_on_the_scale_is_not_used(self, cache):
        job = a_record()
        assert self.results(self.kept(cache, job, score=11), job) == {}
        cache.prune(before_ms=10_000)
        assert self.results(self.kept(cache, job, score=1, answers=[True]), job) == {}

    def test_a_cache_that_cannot_be_read_costs_calls_and_no_results(self, cache, caplog):
        cache.path.write_bytes(b"x" * 5000)
        job = a_record()
        assert self.results(KeptOpinions(cache, self.POOLS), job) == {}
        with pytest.raises(CacheError):
            self.results(KeptOpinions(cache, self.POOLS), a_record(cache="only"))
        KeptOpinions(cache, self.POOLS).keep({0: '{"opinion":{"score":1},"question":"zz"}'}, 1, replace=False)
        assert [record.levelname for record in caplog.records] == ["WARNING"] * 2

    CRITERIA = (
        {"text": "Is it so?", "points": 10},
        {"text": "It is long", "points": -6},
        {"text": "Why?", "points": 3},
    )

    def of_criteria(self, *criteria):
        job = a_record(items=1, dimensions=1)
        job.spec.items[:] = [Item.model_validate({"id": "i0", "text": "text 0", "criteria": [*criteria]})]
        job.spec.dimensions[:] = [
            Dimension.model_validate({"id": "d0", "instructions": "how good?", "scale": "criteria"})
        ]
        return job

    def test_what_an_item_s_criteria_make_is_used_again(self, cache):
        job = self.of_criteria(*self.CRITERIA)
        fields = {"answers": [True, True, False], "attained": (round(4 / 13, 6),) * 2}
        results = self.results(self.kept(cache, job, score=31, **fields), job)
        assert len(results) == 4
        assert {(o["score"], *o["answers"], *o["attained"]) for o in results.values()} == {
            (31, True, True, False, *fields["attained"])
        }
        dearer = self.of_criteria({**self.CRITERIA[0], "points": 9}, *self.CRITERIA[1:])
        assert self.results(KeptOpinions(cache, self.POOLS), dearer) == {}

    @pytest.mark.parametrize(
        "fields",
        [
            {"score": 30, "answers": [True, True, False], "attained": (0.307692, 0.307692)},
            {"score": 31, "answers": [True, True, False], "attained": (0.3, 0.3)},
            {"score": 31, "answers": [True, True, False]},
            {"score": 77, "answers": [True, False], "attained": (0.769231, 0.769231)},
            {"score": 88, "answers": [True, False, None], "attained": (0.769231, 1.0)},
            {"score": 31},
        ],
    )
    def test_what_the_criteria_could_not_make_is_not_used(self, cache, fields):
        job = self.of_criteria(*self.CRITERIA)
        assert self.results(self.kept(cache, job, **fields), job) == {}

    def test_criteria_without_an_answer_are_not_kept(self, cache):
        opinion = an_entry().opinion.model_dump() | {
            "score": 88,
            "answers": [True, False, None],
            "attained": (0.7, 1.0),
        }
        page = {0: orjson.dumps({"opinion": opinion, "question": f"{1:064x}"}).decode()}
        KeptOpinions(cache, self.POOLS).keep(page, 7, replace=False)
        assert cache.stats().entries == 0

    def test_errors_are_not_kept(self, cache):
        key = f"{1:064x}"
        opinion = an_entry().opinion.model_dump() | {"judge": "a"}
        page = {
            0: orjson.dumps({"opinion": opinion | {"score": None}, "question": key}).decode(),
            1: orjson.dumps({"opinion": opinion, "error": {}}).decode(),
        }
        kept = KeptOpinions(cache, self.POOLS)
        kept.keep(page, 7, replace=False)
        assert cache.stats().entries == 0
        kept.keep({2: orjson.dumps({"opinion": opinion, "question": key}).decode()}, 7, replace=False)
        assert [(entry.key, entry.kept_ms) for entry in cache.entries()] == [(key, 7)]


def test_ten_thousand_edits_hit_nothing_that_was_not_asked():
    """Random jobs that differ in one thing each: equal keys if and only if nothing differs that a judge can see."""
    chance, seen = random.Random(5), {}
    job = a_record()
    lane, agents, dimensions = job.lanes[0], list(job.spec.agents), list(job.spec.dimensions)
    words = ["", " ", "a", "b", "ab", "a\n", "\u00e9", "e\u0301", "A", "1"]
    for _ in range(10_000):
        text, prompt, persona, instructions = (chance.choice(words) for _ in range(4))
        place, position = chance.choice(["p", "q", ""]), chance.randrange(8)
        job.spec.agents[:] = [agent.model_copy(update={"persona": persona}) for agent in agents]
        job.spec.dimensions[:] = [d.model_copy(update={"instructions": instructions}) for d in dimensions]
        item = Item(id=f"i{chance.random()}", text=text + ".", prompt=prompt or None)
        asked = (text, prompt, persona, instructions, place, position)
        assert seen.setdefault(question_key(job, lane, position, item, place), asked) == asked
    assert len(set(seen.values())) == len(seen) > 5000
