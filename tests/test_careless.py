"""Careless inputs, one a row, and the very words that a user sees.

`{at}` in a message stands for the folder that the command runs in. Nothing is started, stored or called by any of them.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tests.command import JOB, ROOT, Dicast
from tests.test_refusals import GIVEN_FIELDS

AGENT, DIMENSION, ITEM = JOB["agents"][0], JOB["dimensions"][0], JOB["items"][0]  # type: ignore[index]
ROW = '{"id": 1, "text": "a"}\n'
ITEMS_FORM = "write items: answers.jsonl, or a list of {id: a1, text: ...}"
AGENTS_FORM = "write agents: [{name: physicist, persona: You teach physics.}]"
DIMENSIONS_FORM = "write dimensions: [{id: clear, instructions: Is it clear?}]"
LEVELS_FORM = "write levels: {1: poor, 5: excellent}, scores first"
SCALES = "write scale: {min: 1, max: 5}, {labels: [poor, fair, good]}, {checklist: [..., ...]} or pass_fail"


def of_agent(**changes: Any) -> dict[str, Any]:
    return {"agents": [{**AGENT, **changes}]}


def of_dimension(**changes: Any) -> dict[str, Any]:
    return {"dimensions": [{**DIMENSION, **changes}]}


JOBS: list[tuple[dict[str, Any], str]] = [
    # keys
    ({"replicats": 3}, "replicats: unknown key; did you mean replicates?"),
    ({"judges": []}, "judges: unknown key; did you mean agents?"),
    ({"criteria": []}, "criteria: unknown key; did you mean dimensions?"),
    ({"dataset": "a.csv"}, "dataset: unknown key; did you mean items?"),
    ({"colour": "red"}, f"colour: unknown key; there are {', '.join(GIVEN_FIELDS)}"),
    (of_agent(modle="gpt"), "agents[0].modle: unknown key; did you mean model?"),
    (of_agent(api_key="sk-1"), "agents[0].api_key: unknown key; keys stand in the environment; a pool's api_key_env "
                               "names the variable"),
    (of_agent(base_url="http://x"), "agents[0].base_url: unknown key; addresses belong to pools, in the pools file"),
    (of_agent(system_prompt="x"), "agents[0].system_prompt: unknown key; did you mean persona?"),
    (of_agent(top_p=1), "agents[0].top_p: unknown key; there are name, persona, pool, model, deployments, temperature, "
                        "max_tokens, effort, seed, service_tier, params, template, score_from"),
    (of_dimension(description="?"), "dimensions[0].description: unknown key; did you mean instructions?"),
    (of_dimension(scale={"maximum": 5}), "dimensions[0].scale.maximum: unknown key; did you mean max?"),
    ({"items": [{"id": "i", "output": "x"}]}, "items[0].output: unknown key; did you mean text?"),
    ({"items": {"file": "a.csv"}}, "items.path: is missing\n  items.file: unknown key; did you mean path?"),
    # forms
    (of_dimension(scale=[1, 5]), f"dimensions[0].scale: must be a mapping, got [1, 5]; {SCALES}"),
    (of_dimension(scale="1-5"), "dimensions[0].scale: must be a mapping, or one of pass_fail, preference, criteria, "
                                "got '1-5'"),
    (of_dimension(scale=5), f"dimensions[0].scale: must be a mapping, got 5; {SCALES}"),
    (of_dimension(levels={"poor": 1}), "dimensions[0].levels: a score must be a whole number, got 'poor'; "
                                       + LEVELS_FORM),
    (of_dimension(levels=["poor"]), "dimensions[0].levels: must be a mapping, got ['poor']; " + LEVELS_FORM),
    (of_dimension(levels={"1": 2}), "dimensions[0].levels: what earns a score must be a text, got 2; " + LEVELS_FORM),
    ({"agents": {"name": "a"}}, "agents: must be a list, got {'name': 'a'}; " + AGENTS_FORM),
    ({"agents": ["gpt-4"]}, "agents[0]: must be a mapping, got 'gpt-4'; " + AGENTS_FORM),
    ({"agents": "gpt-4"}, "agents: must be a list, got 'gpt-4'; " + AGENTS_FORM),
    ({"dimensions": ["clear"]},
     "dimensions: there is no rubric 'clear'; there are code_review, dialogue, faithfulness, helpfulness, "
     "instruction_following, safety, summarisation, translation (or a file: clear.yaml)"),
    ({"items": [5]}, "items[0]: must be a mapping, got 5; " + ITEMS_FORM),
    ({"items": 5}, "items: must be a list or the name of a file, got 5; " + ITEMS_FORM),
    ({"items": None}, "items: must be a list or the name of a file, got None; " + ITEMS_FORM),
    (of_agent(deployments=["openai"]), "agents[0].deployments[0]: must be a mapping, got 'openai'; write deployments: "
                                       "[{pool: openai}, {pool: azure, model: gpt-4.1}]"),
    ({"keep": "lang"}, "keep: must be a list, got 'lang'; write keep: [language, source]"),
    ({"metadata": [1]}, "metadata: must be a mapping, got [1]; write metadata: {language: en}"),
    # what is missing or empty
    ({"agents": []}, "agents: needs at least one, got none"),
    ({"dimensions": []}, "dimensions: needs at least one, got none"),
    ({"items": []}, "items: at least one is needed, got 0"),
    ({"agents": [{}]}, "agents[0].name: is missing"),
    ({"items": [{"id": "i"}]}, "items[0]: must have text, text_a and text_b, messages or candidates, got none of them"),
    ({"items": [{"id": "i", "text": " \n"}]}, "items[0].text: must not be blank, got ' \\n'"),
    ({"items": [{"id": "i", "text": ""}]}, "items[0].text: must not be empty, got ''"),
    ({"items": [{"id": "", "text": "t"}]}, "items[0].id: must not be empty, got ''"),
    (of_dimension(instructions=" "), "dimensions[0].instructions: must not be blank, got ' '"),
    # values
    ({"replicates": 0}, "replicates: must be >= 1, got 0"),
    ({"replicates": "3"}, "replicates: must be a whole number, got '3'"),
    ({"replicates": 1.5}, "replicates: must be a whole number, got 1.5"),
    ({"spend": "once"}, "spend: must be 'at_least_once' or 'at_most_once', got 'once'"),
    ({"batching": "yes"}, "batching: must be true or false, got 'yes'"),
    ({"id": "my job"}, "id: may hold only letters, digits, '.', '_' and '-', and starts with a letter or digit, got "
                       "'my job'"),
    (of_agent(temperature=9), "agents[0].temperature: must be <= 2, got 9"),
    (of_agent(temperature="low"), "agents[0].temperature: must be a number, got 'low'"),
    (of_agent(max_tokens=0), "agents[0].max_tokens: must be >= 1, got 0"),
    (of_agent(pool="a b"), "agents[0].pool: names a pool, so it may hold only letters, digits, '.', '_', ':' and '-', "
                           "got 'a b'"),
    (of_agent(pool="smi"), "agents: 'a': there is no pool 'smi'; did you mean 'sim'?"),
    (of_agent(pool="gpt-4"), "agents: 'a': there is no pool 'gpt-4'; there are sim"),
    (of_agent(params={"top_k": 40}), "agents: 'a': params.top_k: pool 'sim' allows none (`params` in the pools file), "
                                     "got 40"),
    (of_agent(params={"seed": 3}), "agents: 'a': params.seed: belongs beside params, as the judge's seed, got 3"),
    (of_agent(effort="hgih"), "agents[0].effort: must be 'none', 'minimal', 'low', 'medium', 'high', 'xhigh' or 'max', "
                              "got 'hgih'; did you mean high?"),
    (of_dimension(scale="pas_fail"), "dimensions[0].scale: must be a mapping, or one of pass_fail, preference, "
                                     "criteria, got 'pas_fail'; did you mean 'pass_fail'?"),
    ({"panel": "medain"}, "panel.combine: must be 'mean', 'median', 'trimmed', 'majority', 'weighted', 'worst', "
                          "'dawid_skene' or 'chief', got 'medain'; did you mean median?"),
    ({"panel": {"escalate": {"diference": 1}}}, "panel.escalate.diference: unknown key; did you mean difference?"),
    ({"gate": {"fail_undr": {"d": 1}}}, "gate.fail_undr: unknown key; did you mean fail_under?"),
    ({"gate": {"fastest": 1}}, "gate.fastest: unknown key; there are fail_under, opinion, confident, max_errors, "
                               "max_cost, not_worse_than, shift, min_agreement, calibrated, certificate"),
    ({"probes": [{"prob": "order"}]},
     "probes[0].probe: is missing; it is one of verbosity, formatting, self_preference, authority, sycophancy, "
     "markdown, batching, order, injection"),
    ({"probes": [{"probe": "order", "itms": 3}]}, "probes[0].order.itms: unknown key; did you mean items?"),
    (of_agent(pool="sim", deployments=[{}]), "agents[0]: pool must be named in deployments, or without them, got 'sim' "
                                             "beside them"),
    (of_dimension(scale={"min": 5, "max": 1}), "dimensions[0].scale: scale.max must be > scale.min (5), got 1"),
    (of_dimension(levels={"11": "x"}), "dimensions[0]: levels: 11 is outside the scale 1..10"),
    (of_dimension(weight=-1), "dimensions[0].weight: must be >= 0, got -1"),
    ({"agents": [AGENT, AGENT]}, "agents: the id 'a' occurs twice"),
    ({"items": [ITEM, ITEM]}, "items: the id 'i' occurs twice"),
    ({"items": [{"id": "a", "text": "t", "metadata": {"system": "x"}}], "groups": ["sytem"]},
     "groups: no item has 'sytem' in its metadata; did you mean 'system'?"),
    ({"cluster": "lang"}, "cluster: no item has 'lang' in its metadata"),
    ({"keep": ["lang"]}, "keep: no item has 'lang' in its metadata"),
]  # fmt: skip

FILES: list[tuple[str, bytes | None, str]] = [
    (
        "anwsers.jsonl",
        None,
        "{at}/anwsers.jsonl: cannot be read: No such file or directory; did you mean answers.jsonl?",
    ),
    ("folder.csv", None, "{at}/folder.csv: cannot be read: Is a directory"),
    (
        "https://host/a.csv",
        None,
        "https://host/a.csv: is a URL, and items are read from files: download it, and name the file",
    ),
    ("$NOWHERE/a.csv", None, "$NOWHERE/a.csv: the variable NOWHERE is not set"),
    (
        "a.txt",
        b"a\n",
        "{at}/a.txt: has none of the endings .jsonl, .ndjson, .csv, .tsv, .parquet, .pq: say its format, "
        "items: {path: ..., format: csv}",
    ),
    (
        "a.json",
        b'[{"id": 1, "text": "a"}]',
        "{at}/a.json: holds a JSON array: write one object a line (jq -c '.[]' FILE.json > FILE.jsonl)",
    ),
    ("a.jsonl.gz", gzip.compress(ROW.encode()), "{at}/a.jsonl.gz: is compressed with gzip: unpack it first (gunzip)"),
    (
        "a.xlsx",
        b"PK\x03\x04",
        "{at}/a.xlsx: is a ZIP archive or an Excel workbook: unpack it, or save the sheet as CSV",
    ),
    ("a.csv", "id,text\n1,ä\n".encode("utf-16"), "{at}/a.csv: is UTF-16: save it as UTF-8"),
    ("a.csv", "id,text\n1,ä\n".encode("latin-1"), "{at}/a.csv, line 2: is not UTF-8 from b'\\xe4\\n' on"),
    ("a.csv", b"id,answer\n1,a\n", "{at}/a.csv: text_field: no column 'text'; the columns are 'id', 'answer'"),
    ("a.csv", b"id,text\n1,a,b\n", "{at}/a.csv, line 2: has 3 fields, the header has 2"),
    ("a.csv", b"id,text\n", "{at}/a.csv: holds no items"),
    ("a.jsonl", b"", "{at}/a.jsonl: holds no items"),
    (
        "a.jsonl",
        (ROW + '{"id": 2, "text": "  "}\n').encode(),
        "{at}/a.jsonl, line 2: text: must be text, not blank, got '  '",
    ),
    ("a.jsonl", (ROW + ROW).encode(), "{at}/a.jsonl, line 2: id: '1' is already in line 1"),
    ("a.jsonl", b'{"id": 1, "text": ["a"]}\n', "{at}/a.jsonl, line 1: text: must be text, got ['a']"),
]

COMMANDS: list[tuple[str, dict[str, str], str]] = [
    ("run jbo.json", {}, "jbo.json: cannot be read: No such file or directory; did you mean job.json?"),
    ("run job.json --set replicates", {}, "--set takes KEY=VALUE, got replicates"),
    (
        "run job.json --set agents.7.model=x",
        {},
        "--set agents.7.model=x: the job has no such place: agents is a list, whose entries have the numbers 0 to 0",
    ),
    (
        "run job.json --set agents.a.model=x",
        {},
        "--set agents.a.model=x: the job has no such place: agents is a list, "
        "whose entries have the numbers 0 to 0, 'a' is number 0",
    ),
    (
        "run job.json --set agents.0.name.x=x",
        {},
        "--set agents.0.name.x=x: the job has no such place: agents.0.name is 'a', which has no parts",
    ),
    (
        "run job.json --local --detach",
        {},
        "with --local the worker stops when the command does, so the job cannot go on detached",
    ),
    ("jobs show nobody", {}, "no job 'nobody'"),
    (
        "token issue ada --scope job:raed",
        {"DICAST_TOKEN_SECRET": "s" * 32},
        "--scope must be one of node:register, node:admin, job:submit, job:read, pool:admin, rating:write, got "
        "'job:raed'; did you mean 'job:read'?",
    ),
    (
        "token issue ada --scope job:read --pool smi",
        {"DICAST_TOKEN_SECRET": "s" * 32},
        "--pool must be one of sim, got 'smi'; did you mean 'sim'?",
    ),
    (
        "governor set --pool sim --profile defualt",
        {},
        "profile must be one of default, classic, rules, fixed, got 'defualt'; did you mean 'default'?",
    ),
    ("governor set --pool sim", {}, "nothing to set; `dicast governor set --help` lists the overrides"),
    ("governor set --pool smi --limit 3", {}, "there is no pool 'smi'; did you mean 'sim'?"),
    ("governor set --limit 0", {}, "limit must be a whole number >= 1, got 0"),
    (
        "run job.json",
        {"MAX_CONCURRENT_LLM_CALLS": "many"},
        "MAX_CONCURRENT_LLM_CALLS must be a whole number, got 'many'",
    ),
    (
        "run job.json",
        {"DICAST_WORKER_SLOT": "3"},
        "unknown setting DICAST_WORKER_SLOT; did you mean DICAST_WORKER_SLOTS?",
    ),
    (
        "run job.json",
        {"DICAST_POOLS_FILE": "none.toml"},
        "pools file none.toml cannot be read: No such file or directory",
    ),
]


def said(at_once: Dicast, *arguments: str, **settings: str) -> str:
    """What stands on standard error, without the program's name; nothing is on standard output."""
    run = at_once(*arguments, **settings)
    assert (run.returncode, run.stdout) == (2, "")
    assert run.stderr.startswith("dicast: ")
    return run.stderr.removeprefix("dicast: ").rstrip("\n")


@pytest.mark.parametrize("changes, message", JOBS, ids=[message[:60] for _, message in JOBS])
def test_a_job_with_a_mistake(at_once: Dicast, tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    (tmp_path / "job.json").write_text(json.dumps({**JOB, **changes}))
    for command in (("run", "job.json"), ("validate", "job.json")):
        assert said(at_once, *command) == message


def test_a_key_that_is_missing_ends_a_local_run_before_it_begins(at_once: Dicast, tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text(json.dumps({**JOB, "agents": [{"name": "a", "pool": "openai"}]}))
    settings = {"DICAST_POOLS_FILE": str(ROOT / "config/pools.toml"), "OPENAI_API_KEY": "", "REDIS_URL": ""}
    assert said(at_once, "run", "--local", "job.json", **settings) == (
        "agents: 'a' needs pool openai, and OPENAI_API_KEY is not set; with --local there are no other workers that "
        "could have it"
    )


@pytest.mark.parametrize("name, content, message", FILES, ids=[message[:60] for *_, message in FILES])
def test_a_file_of_items_with_a_mistake(
    at_once: Dicast, tmp_path: Path, name: str, content: bytes | None, message: str
) -> None:
    (tmp_path / "answers.jsonl").write_text(ROW)
    (tmp_path / "folder.csv").mkdir()
    (tmp_path / "job.json").write_text(json.dumps({**JOB, "items": name}))
    if content is not None:
        (tmp_path / name).write_bytes(content)
    assert said(at_once, "run", "job.json") == message.replace("{at}", str(tmp_path))


@pytest.mark.parametrize("command, settings, message", COMMANDS, ids=[message[:60] for *_, message in COMMANDS])
def test_a_command_with_a_mistake(at_once: Dicast, command: str, settings: dict[str, str], message: str) -> None:
    assert said(at_once, *command.split(), **settings) == message


def test_there_are_eighty_of_them() -> None:
    assert len(JOBS) + len(FILES) + len(COMMANDS) >= 80
