from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from dicast.app.domain.job import EvaluationJob
from dicast.app.submission import job_file
from dicast.app.submission.job_file import JobFileError, load_job, override

ROOT = Path(__file__).parents[1]


def read(folder: Path, text: str | bytes, name: str = "job.yaml") -> dict[str, Any]:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return load_job(str(path))


def refusal(folder: Path, text: str | bytes, name: str = "job.yaml") -> str:
    with pytest.raises(JobFileError) as caught:
        read(folder, text, name)
    message = str(caught.value)
    assert message.startswith(str(folder / name))
    assert message.isprintable()
    return message.removeprefix(f"{folder / name}: ")


def levels(opening: str, level: str, count: int = 10, width: int = 9) -> str:
    """A mapping a0..aN, each made of `width` aliases of the one before."""
    lines = [f"a0: &a0 {opening}"]
    for n in range(1, count + 1):
        lines.append(f"a{n}: &a{n} {level.format(', '.join([f'*a{n - 1}'] * width))}")
    return "\n".join(lines)


def test_the_example_is_a_job() -> None:
    job = EvaluationJob.model_validate(load_job(str(ROOT / "config/jobs/example.yaml")))
    assert (len(job.agents), len(job.dimensions), job.id) == (3, 10, None)


def test_plain_values_mean_what_json_would_mean(tmp_path: Path) -> None:
    text = "a: [no, off, 1:30, 12e3, .inf, 0x1f, 0o17, 2024-01-01, ~, '', 1_000, 010, -5, +3, 1., .5, true, null]\nb:"
    assert read(tmp_path, text) == {
        "a": ["no", "off", "1:30", 12e3, ".inf", 31, 15, "2024-01-01", None, "", "1_000", 10, -5, 3, 1.0, 0.5, True,
              None],
        "b": None,
    }  # fmt: skip


def test_defaults_can_be_shared(tmp_path: Path) -> None:
    text = "x: &d {k: 1, l: 2}\ny: {<<: *d, k: 3}\nz: [*d, *d]"
    assert read(tmp_path, text) == {
        "x": {"k": 1, "l": 2},
        "y": {"k": 3, "l": 2},
        "z": [{"k": 1, "l": 2}, {"k": 1, "l": 2}],
    }


@pytest.mark.parametrize(
    "text, complaint",
    [
        (levels("[x, x, x]", "[{}]"), "holds more than 300000 values, aliases included"),
        (levels("{k: v}", "{{<<: [{}]}}"), "holds more than 300000 values, aliases included"),
        (levels("[x]", "[{}]", count=100, width=1), "nested deeper than 64"),
        (levels("[x]", "[{}]", count=3, width=100), "holds more than 300000 values, aliases included"),
        ("a: &a [*a]", "nested deeper than 64"),
        ("a: *b", "line 1, column 4: found undefined alias 'b'"),
        ("a: !!python/object/apply:os.system [ls]", "line 1, column 4: tags are not allowed"),
        ("a: !env KEY", "tags are not allowed"),
        ("a: !!str 5", "tags are not allowed"),
        ("a: 1\nb: 2\na: 3", "line 3, column 1: the key 'a' occurs twice"),
        ("levels: {1: bad, '1': worse}", "the key '1' occurs twice"),
        ("true: 1", "a key must be a text or a whole number"),
        ("? [a]\n: b", "a key must be a text or a whole number"),
        ("[" * 100_000, "nested deeper than 64"),
        ("{a: " * 100 + "}" * 100, "nested deeper than 64"),
        ("a: " + "9" * 5000, "too many digits"),
        ("- a", "holds a list, not a mapping"),
        ("", "holds nothing, not a mapping"),
        ("just words", "holds a text, not a mapping"),
        ("a: b: c", "line 1, column 5: mapping values are not allowed"),
        ("a: b\n---\nc: d", "another document"),
        (b"a: 1\nb: \xff", "line 2 is not UTF-8"),
        ("a: \x07", "control characters are not allowed"),
        ("a: 'x", "line 1"),
        ("x: [" + "a," * 300_001 + "]", "holds more than 300000 values"),
        (b"a" * (job_file.MAX_BYTES + 1), "is larger than 16 MiB"),
    ],
    ids=lambda value: str(value[:30]),
)
def test_yaml_is_refused_with_the_place(tmp_path: Path, text: str | bytes, complaint: str) -> None:
    assert complaint in refusal(tmp_path, text)


@pytest.mark.parametrize(
    "text, complaint",
    [
        ('{"a": 1, "a": 2}', "the key 'a' occurs twice"),
        ('{"a": NaN}', "NaN is no JSON number"),
        ('{"a": ' * 100_000, "nested too deeply"),
        ('{"a": "\\ud800"}', "half a character"),
        ('{"a":}', "line 1, column 6: Expecting value"),
        ('{"a": ' + "9" * 5000 + "}", "digits"),
        ('["a"]', "holds a list"),
    ],
)
def test_json_is_refused_with_the_reason(tmp_path: Path, text: str, complaint: str) -> None:
    assert complaint in refusal(tmp_path, text, "job.json")


def test_ten_levels_of_aliases_cost_neither_time_nor_memory(tmp_path: Path) -> None:
    """FAULTS.md, E5: in a process of its own, with 100 MB above what an empty file needs, and one second of CPU."""
    bomb = tmp_path / "bomb.yaml"
    bomb.write_text(levels("[x, x, x, x, x, x, x, x, x]", "[{}]"))
    code = """
        import resource, sys
        from dicast.app.submission import job_file
        pages = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (pages + 100_000_000,) * 2)
        used = resource.getrusage(resource.RUSAGE_SELF).ru_utime
        resource.setrlimit(resource.RLIMIT_CPU, (int(used) + 2,) * 2)
        try:
            job_file.load_job(sys.argv[1])
        except job_file.JobFileError as error:
            took = resource.getrusage(resource.RUSAGE_SELF).ru_utime - used
            sys.exit(0 if "aliases" in str(error) and took < 1 else 4)
        sys.exit(5)
    """
    run = subprocess.run([sys.executable, "-c", textwrap.dedent(code), str(bomb)], cwd=ROOT, check=False, timeout=60)
    assert run.returncode == 0


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner),
    max_leaves=20,
)  # fmt: skip


@settings(max_examples=40)
@given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), json_values))
def test_json_comes_back_as_it_was(document: dict[str, Any]) -> None:
    assert job_file._json(json.dumps(document).encode()) == document


texts = st.recursive(
    st.text(st.characters(exclude_categories=["Cs", "Cc"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text("abc<=~!0.-"), inner),
    max_leaves=20,
)


@settings(max_examples=40)
@given(st.dictionaries(st.text("abc<=~!0.-", min_size=1), texts))
def test_quoted_texts_come_back_as_they_were(document: dict[str, Any]) -> None:
    text = yaml.safe_dump(document, allow_unicode=True, default_style='"')
    assert job_file._yaml(text.encode()) == document


@pytest.mark.parametrize(
    "items, want",
    [
        ("answers.jsonl", "{folder}/answers.jsonl"),
        ({"path": "sub/answers.csv", "limit": 3}, {"path": "{folder}/sub/answers.csv", "limit": 3}),
        ("/data/answers.jsonl", "/data/answers.jsonl"),
        ([{"id": "a", "text": "t"}], [{"id": "a", "text": "t"}]),
        ({"path": 5}, {"path": 5}),
    ],
)
def test_items_lie_beside_the_job_file(tmp_path: Path, items: Any, want: Any) -> None:
    want = json.loads(json.dumps(want).replace("{folder}", str(tmp_path)))
    assert read(tmp_path, json.dumps({"items": items}), "job.json")["items"] == want


def test_a_file_that_is_not_there_or_not_a_file(tmp_path: Path) -> None:
    with pytest.raises(JobFileError, match=r"none.yaml: cannot be read: No such file"):
        load_job(str(tmp_path / "none.yaml"))
    with pytest.raises(JobFileError, match="cannot be read: Is a directory"):
        load_job(str(tmp_path))
    with pytest.raises(JobFileError, match="cannot be read"):
        load_job("nul\0.yaml")


@pytest.mark.parametrize(
    "assignment, place, value",
    [
        ("replicates=3", ["replicates"], 3),
        ("agents.1.model=gpt", ["agents", 1, "model"], "gpt"),
        ("agents.-1.model=gpt", ["agents", 1, "model"], "gpt"),
        ("metadata.run.night=true", ["metadata", "run", "night"], True),
        ("items=[{id: a, text: b}]", ["items"], [{"id": "a", "text": "b"}]),
        ("project=a=b", ["project"], "a=b"),
        ("project=", ["project"], None),
    ],
)
def test_a_value_can_be_set(assignment: str, place: list[Any], value: Any) -> None:
    document: Any = {"agents": [{"name": "a"}, {"name": "b"}]}
    override(document, assignment)
    for part in place:
        document = document[part]
    assert document == value


@pytest.mark.parametrize(
    "assignment, complaint",
    [
        ("replicates", "--set takes KEY=VALUE, got replicates"),
        ("=3", "--set takes KEY=VALUE"),
        ("agents.7.model=x", "no such place"),
        ("agents.first.model=x", "no such place"),
        ("agents.0.name.deeper=x", "no such place"),
        ("replicates=[", "did not find"),
        ("replicates=!!python/name:os.system 1", "tags are not allowed"),
    ],
)
def test_what_cannot_be_set_is_refused(assignment: str, complaint: str) -> None:
    with pytest.raises(JobFileError, match=complaint) as caught:
        override({"agents": [{"name": "a"}]}, assignment)
    assert str(caught.value).isprintable()


SCHEMA = Path(__file__).parents[1] / "docs" / "job.schema.json"


def test_the_published_schema_takes_what_the_documents_and_examples_write() -> None:
    """It is the present one, refuses what is misspelt, and has the short forms in which people write."""
    schema = json.loads(SCHEMA.read_text())
    assert schema == job_file.file_schema(), "`dicast schema -o docs/job.schema.json` writes it anew"
    validator = Draft202012Validator(schema)
    root = SCHEMA.parents[1]
    jobs = [*root.glob("config/*/*job.yaml"), *root.glob("config/jobs/*.yaml"), *root.glob("examples/*.yaml")]
    for path in jobs:
        assert [error.message for error in validator.iter_errors(job_file.read_document(str(path)))] == [], path
    assert len(jobs) >= 6
    least = {"agents": [{"name": "a"}], "dimensions": "safety", "items": ["a text"]}
    own = {"id": "d", "instructions": "?", "scale": "pass_fail"}
    short = {
        **least, "items": "a.csv", "ratings": "r.csv", "panel": "median", "calibration": "c.json",
        "probes": ["verbosity", {"probe": "order"}], "gate": {"max_errors": "1 %"},
        "dimensions": ["safety", {"rubric": "dialogue", "weight": 2}, own],
    }  # fmt: skip
    assert validator.is_valid(least) and validator.is_valid(short)
    wrong = ({"agent": []}, {"panel": "mid"}, {"dimensions": [{"id": "d"}]}, {"probes": ["verbose"]}, {"replicates": 0})
    for change in wrong:
        assert not validator.is_valid({**least, **change}), change
