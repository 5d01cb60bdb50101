"""The process in which templates are rendered: what it answers, and that whatever it meets stays within its bounds."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dicast.app.domain.item import Item
from dicast.app.domain.material import TemplateError
from dicast.app.domain.template import rendered
from dicast.app.submission import rendering
from dicast.app.submission.rendering import AsyncRenderer, Renderer
from lab.templates import LISTS, rendered_all, submitted_all
from tests.workers.gates import until_turned

NONCE = "0123456789abcdef"
ITEM = Item(id="i1", text="A text.\nOf two lines.", metadata={"lang": "de", "n": 2**62, "x": float("inf")})
TEMPLATE = "In {{ metadata.lang }}, {{ metadata.n }}:\n{{ text }}{{ metadata.x }}"
BIG = Item(id="big", text="ü" * 5_000_000)
LONG = (
    "{% set l = text[:40000] | list %}{% set m = text[:40000] | list %}"
    "{% for a in text[:220] %}{% if l == m %}{% endif %}{% endfor %}{{ text[0] }}"
)
"""Within what the language allows on an item of 20 MB, and some seconds long."""


@pytest.fixture
def renderer() -> Iterator[Renderer]:
    renderer = Renderer()
    yield renderer
    renderer.close()


def pid(renderer: Any) -> int:
    link = renderer._link
    return int(link._child.pid)


async def test_it_answers_what_the_language_does(renderer: Renderer) -> None:
    wanted = rendered(TEMPLATE, ITEM, NONCE)
    assert renderer.lines(TEMPLATE, ITEM, NONCE) == wanted
    beside = AsyncRenderer()
    assert await asyncio.gather(*(beside.lines(TEMPLATE, ITEM, NONCE) for _ in range(50))) == [wanted] * 50
    beside.close()


async def test_what_does_not_fit_is_told_as_the_language_tells_it(renderer: Renderer) -> None:
    with pytest.raises(TemplateError, match="item 'i1': it has no 'author'"):
        renderer.lines("{{ text }}{{ metadata.author }}", ITEM, NONCE)
    with pytest.raises(TemplateError, match="templates have no call"):
        renderer.check("{{ text.upper() }}")
    trials = renderer.trials([("{{ text }}", ITEM), ("{{ text }}{{ prompt }}", ITEM), ("{{ text }}", ITEM)], NONCE)
    assert [trial.error for trial in trials] == [None, "item 'i1': 'prompt' is undefined", None]
    assert trials[0].work == trials[2].work > 0


def test_the_process_has_no_secrets(renderer: Renderer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    renderer.lines(TEMPLATE, ITEM, NONCE)
    assert renderer._child is not None
    environment = Path(f"/proc/{renderer._child.pid}/environ").read_bytes()
    assert b"sk-secret" not in environment and b"PATH=" in environment


def test_cpu_time_is_bounded(renderer: Renderer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendering, "CPU_S", 0)
    big = Item(id="big", text="a" * 20_000_000)
    with pytest.raises(TemplateError, match="item 'big': the template took more than 0 s of CPU time"):
        for _ in range(5):
            renderer.lines(LONG, big, NONCE)
    assert renderer.lines("{{ text }}", ITEM, NONCE) == ["> A text.", "> Of two lines."]


def test_memory_is_bounded(renderer: Renderer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendering, "MEMORY_FACTOR", 0)
    monkeypatch.setattr(rendering, "MEMORY_BYTES", 100 * 2**20)
    wide = "{{ " + " ~ ".join(["text", "'\U0001f600'"] * 4) + " }}"
    with pytest.raises(TemplateError, match="item 'big': the template took more than 100 MiB of memory"):
        renderer.lines(wide, BIG, NONCE)
    assert renderer.lines("{{ text }}", ITEM, NONCE) == ["> A text.", "> Of two lines."]


def test_output_is_bounded(renderer: Renderer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendering, "OUTPUT_BYTES", 100)
    monkeypatch.setattr(rendering, "OUTPUT_FACTOR", 0)
    with pytest.raises(TemplateError, match="item 'i1': the template wrote more than it may"):
        renderer.lines("{{ text }}{{ text }}{{ text }}{{ text }}{{ text }}{{ text }}", ITEM, NONCE)


async def test_a_process_that_says_nothing_ends_and_those_that_wait_behind_it_are_answered() -> None:
    renderer = AsyncRenderer()
    await renderer.lines(TEMPLATE, ITEM, NONCE)
    link = renderer._link
    assert link is not None
    os.kill(pid(renderer), signal.SIGSTOP)
    waiting = [asyncio.create_task(renderer.lines(TEMPLATE, ITEM, NONCE)) for _ in range(4)]
    await until_turned(lambda: len(link._waiting) == 4)
    link._check_time()
    assert not link.ended, "it has time yet"
    link._begun -= rendering.WALL_S
    link._check_time()
    with pytest.raises(TemplateError, match="item 'i1': the template took more than 30 s"):
        await waiting[0]
    assert await asyncio.gather(*waiting[1:]) == [rendered(TEMPLATE, ITEM, NONCE)] * 3
    renderer.close()


async def test_a_process_that_others_end_costs_nobody_his_answer(renderer: Renderer) -> None:
    wanted = rendered(TEMPLATE, ITEM, NONCE)
    beside = AsyncRenderer()
    assert await beside.lines(TEMPLATE, ITEM, NONCE) == wanted
    waiting = [asyncio.create_task(beside.lines(TEMPLATE, ITEM, NONCE)) for _ in range(5)]
    await asyncio.sleep(0)
    os.kill(pid(beside), signal.SIGKILL)
    assert await asyncio.gather(*waiting) == [wanted] * 5
    beside.close()

    renderer.lines(TEMPLATE, ITEM, NONCE)
    assert renderer._child is not None
    os.kill(renderer._child.pid, signal.SIGKILL)
    assert renderer.lines(TEMPLATE, ITEM, NONCE) == wanted


async def test_one_that_ends_again_and_again_is_no_ones_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendering.sys, "executable", "/bin/false")
    for lines in (Renderer().lines, AsyncRenderer().lines):
        with pytest.raises(TemplateError, match="item 'i1': the process that renders it ended twice"):
            made = lines(TEMPLATE, ITEM, NONCE)
            if asyncio.iscoroutine(made):
                await made


def test_a_process_ends_when_it_has_grown_and_another_goes_on(
    renderer: Renderer, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.setattr(rendering, "GROWN_BYTES", 1)
    pids = set()
    for _ in range(2):
        trials = renderer.trials([("{{ text }}", ITEM)] * 2, NONCE)
        assert [trial.error for trial in trials] == [None, None]
        assert renderer._child is not None
        pids.add(renderer._child.pid)
    assert len(pids) == 2


def test_threads_share_it(renderer: Renderer) -> None:
    found: list[list[str]] = []
    threads = [threading.Thread(target=lambda: found.append(renderer.lines(TEMPLATE, ITEM, NONCE))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [rendered(TEMPLATE, ITEM, NONCE)] * 8


def test_a_slice_of_the_templates_that_no_author_writes() -> None:
    found = rendered_all(range(20_000, 20_200))
    assert found.broken == [] and found.outcomes["rendered"] > 5, list(found.lines())


def test_a_server_lives_while_it_is_given_them() -> None:
    found = submitted_all(range(20_000, 20_040), first=[LISTS])
    assert found.broken == [], list(found.lines())
    assert found.outcomes["answered 422"] > 20 and found.outcomes["looks at /healthz"] > 3
