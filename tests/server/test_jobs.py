"""Jobs over HTTP: submitted once, listed, cancelled; and what is refused, before anything is stored."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest
import redis
import yaml

from dicast.app.access.scopes import Scope
from dicast.app.application import Dicast
from dicast.app.reports.folders import job_folder
from dicast.app.server.parts import IdempotencyKeys
from tests.page.world import ended, finished
from tests.server.serving import JOB, client, installation, problem, served


def test_a_job_is_submitted_and_looked_at(http: httpx2.Client, dicast: Dicast) -> None:
    told = http.post("/jobs", json={**JOB, "id": "mine", "project": "p"})
    assert (told.status_code, told.headers["location"]) == (202, "/jobs/mine")
    assert told.json() == {"id": "mine", "project": "p", "units": 1, "calls": 1}
    assert http.post("/jobs", json={**JOB, "id": "mine", "project": "p"}).json() == told.json()
    seen = http.get("/jobs/mine").json()
    assert (seen["state"], seen["units"], seen["done"]) == ("submitted", 1, 0)
    assert "no worker is alive" in seen["waits_for"]
    assert [job["id"] for job in http.get("/jobs").json()["jobs"]] == ["mine"]
    problem(http.post("/jobs", json={**JOB, "id": "mine", "replicates": 2}), 409, "job-conflict")
    assert http.delete("/jobs/mine").json()["state"] == "finishing"
    assert http.delete("/jobs/mine").status_code == 200
    problem(http.get("/jobs/mine/report"), 409, "job-not-ended")
    problem(http.get("/jobs/other"), 404, "unknown-job")
    problem(http.delete("/jobs/other"), 404, "unknown-job")
    assert [(line.actor, line.action, line.object, line.outcome) for line in dicast.audit.lines()][:3] == [
        ("tester", "job.submit", "mine", "done"), ("tester", "job.submit", "mine", "nothing to do"),
        ("tester", "POST /jobs", "/jobs", "refused"),
    ]  # fmt: skip


def test_yaml_is_taken_as_the_command_line_takes_it(http: httpx2.Client) -> None:
    kind = {"Content-Type": "application/yaml; charset=utf-8"}
    told = http.post("/jobs", content=yaml.safe_dump({**JOB, "id": "y"}), headers=kind)
    assert told.json()["id"] == "y", told.text
    found = problem(http.post("/jobs", content="agents: [1\n", headers=kind), 400, "unreadable-job")
    assert "line 2, column 1" in found["detail"]


@pytest.mark.parametrize(
    ("body", "status", "kind", "said"),
    [
        (b"{", 400, "unreadable-job", "line 1, column 2"),
        (b"[]", 400, "unreadable-job", "holds a list"),
        (b'{"a": NaN}', 400, "unreadable-job", "NaN is no JSON number"),
        (b'{"agents": 1, "agents": 2}', 400, "unreadable-job", "occurs twice"),
        (b'{"project": "\\ud800"}', 400, "unreadable-job", "half a character"),
        (b"[" * 100_000, 400, "unreadable-job", "nested too deeply"),
        (b"\xff", 400, "unreadable-job", "not UTF-8"),
        ({**JOB, "agnets": []}, 422, "invalid-job", "agnets: unknown key; did you mean agents?"),
        (
            {**JOB, "metadata": {f"k{n}": n for n in range(200_000)}},
            400,
            "unreadable-job",
            "holds more than 300000 keys",
        ),
        (
            {
                **JOB,
                "replicates": 1000,
                "agents": [{"name": f"a{n}"} for n in range(1000)],
                "dimensions": [{"id": f"d{n}", "instructions": "?"} for n in range(140)],
            },
            422,
            "job-refused",
            "items: 1 x 1,000 agents x 140 dimensions x 1,000 replicates and orders is more than 100,000,000 units "
            "(DICAST_MAX_UNITS), got 140,000,000",
        ),
        ({**JOB, "metadata": {"n": 2**64}}, 422, "invalid-job", "metadata: cannot be written as JSON: integer exceeds"),
        ({**JOB, "id": "../x"}, 422, "invalid-job", "id: may hold only letters"),
        ({**JOB, "id": "a" * 129}, 422, "invalid-job", "at most 128 characters"),
        ({**JOB, "agents": [{"name": "a", "pool": "nope"}]}, 422, "job-refused", "'nope'"),
        (
            {**JOB, "agents": [{"name": "a", "params": {"top_k": 40}}]},
            422,
            "job-refused",
            "agents: 'a': params.top_k: pool 'sim' allows none (`params` in the pools file), got 40",
        ),
        ({**JOB, "agents": [{"name": "a", "pool": "http://127.0.0.1"}]}, 422, "invalid-job", "names a pool"),
        ({**JOB, "base_url": "http://evil"}, 422, "invalid-job", "addresses belong to pools"),
        ({**JOB, "items": "http://169.254.169.254/x.jsonl"}, 403, "file-refused", "no uploaded file"),
    ],
)
def test_what_is_no_job_is_refused_in_the_command_lines_words(
    http: httpx2.Client, body: object, status: int, kind: str, said: str
) -> None:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    told = problem(http.post("/jobs", content=content, headers={"Content-Type": "application/json"}), status, kind)
    assert said in told["detail"]
    assert http.get("/jobs").json() == {"jobs": [], "next": None}


def test_other_media_types_are_refused(http: httpx2.Client) -> None:
    """Among them those that a page of another site can send without being asked (CORS)."""
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        sent = http.post("/jobs", content=json.dumps(JOB), headers={"Content-Type": kind})
        problem(sent, 415, "media-type-refused")


def test_jobs_are_listed_in_pages_newest_first(http: httpx2.Client, dicast: Dicast) -> None:
    names = [f"job-{n}" for n in range(7)]
    for n, name in enumerate(names):
        dicast.submit({**JOB, "id": name, "project": f"p{n % 2}"})
    # Three of one millisecond.
    dicast.store.zadd(dicast.keys.at("jobs"), dict.fromkeys(names[2:5], 1_000_000))
    for name in names[2:5]:
        dicast.store.hset(dicast.keys.at("job", name), "created_ms", 1_000_000)
    seen, cursor = [], None
    while True:
        page = http.get("/jobs", params={"limit": 2, **({"cursor": cursor} if cursor else {})}).json()
        seen += [job["id"] for job in page["jobs"]]
        assert len(page["jobs"]) <= 2
        if (cursor := page["next"]) is None:
            break
    assert sorted(seen) == names and seen[-3:] == ["job-4", "job-3", "job-2"]
    assert {job["project"] for job in http.get("/jobs?project=p1").json()["jobs"]} == {"p1"}
    assert http.get("/jobs?state=completed").json()["jobs"] == []
    for wrong in ("limit=0", "limit=501", "limit=x", "cursor=x", "cursor=1.", "state=none", "nothing=1"):
        problem(http.get(f"/jobs?{wrong}"), 422, "request-refused")


def test_a_token_for_some_pools_submits_sees_and_cancels_their_jobs_alone(
    dicast: Dicast, address: str, http: httpx2.Client
) -> None:
    scopes = [Scope.JOB_SUBMIT, Scope.JOB_READ, Scope.POOL_ADMIN]
    bound = dicast.tokens.issue("bound", scopes, ttl_s=600, pools=["other"])
    theirs = {**JOB, "agents": [{"name": "a", "pool": "other"}]}
    assert http.post("/jobs", json={**JOB, "id": "default-pool"}).status_code == 202
    with client(address, bound) as limited:
        assert limited.post("/jobs", json={**theirs, "id": "theirs"}).status_code == 202
        for pools in ([{"pool": "sim"}], [{"pool": "other"}, {"pool": ""}]):
            job = {**JOB, "agents": [{"name": "a", "deployments": pools}]}
            problem(limited.post("/jobs", json=job), 403, "not-allowed")
        problem(limited.post("/jobs", json=JOB), 403, "not-allowed")
        assert [job["id"] for job in limited.get("/jobs").json()["jobs"]] == ["theirs"]
        problem(limited.get("/jobs/default-pool"), 404, "unknown-job")
        problem(limited.delete("/jobs/default-pool"), 404, "unknown-job")
        problem(limited.post("/jobs/default-pool/resume"), 404, "unknown-job")
        problem(limited.patch("/pools/sim", json={"limit": 1}), 403, "not-allowed")
        problem(limited.patch("/pools", json={"slo": 1}), 403, "not-allowed")
        assert limited.patch("/pools/other", json={"limit": 1}).status_code == 200


def test_a_token_for_some_labels_uses_pools_that_demand_no_others(tmp_path: Path, redis_url: str) -> None:
    dicast = installation(tmp_path, redis_url)
    pools = (tmp_path / "pools.toml").read_text()
    (tmp_path / "pools.toml").write_text(pools + '[pools.other.labels]\nregion = "eu"\n')
    token = {
        name: dicast.tokens.issue("t", [Scope.JOB_SUBMIT], ttl_s=600, labels=[name]) for name in ("region=eu", "x=y")
    }
    job = {**JOB, "agents": [{"name": "a", "pool": "other"}]}
    with served(dicast) as address:
        with client(address, token["region=eu"]) as http:
            assert http.post("/jobs", json=job).status_code == 202
        with client(address, token["x=y"]) as http:
            problem(http.post("/jobs", json=job), 403, "not-allowed")
            problem(http.post("/jobs", json={**JOB, "labels": {"region": "eu"}}), 403, "not-allowed")
            assert http.post("/jobs", json=JOB).status_code == 202


# ------------------------------------------------------------------ idempotency
def test_a_key_gives_one_job_and_one_answer_also_after_a_restart(tmp_path: Path, redis_url: str) -> None:
    answers = []
    for _ in range(2):
        dicast = installation(tmp_path, redis_url)
        token = dicast.tokens.issue("tester", [Scope.JOB_SUBMIT], ttl_s=600)
        other = dicast.tokens.issue("other", [Scope.JOB_SUBMIT], ttl_s=600)
        with served(dicast) as address, client(address, token, **{"Idempotency-Key": "k"}) as http:
            answers += [http.post("/jobs", json=JOB) for _ in range(2)]
            problem(http.post("/jobs", json={**JOB, "replicates": 2}), 422, "idempotency-key-reused")
            headers = {"Authorization": f"Bearer {other}"}
            assert http.post("/jobs", json=JOB, headers=headers).json()["id"] != answers[0].json()["id"]
    assert {(reply.status_code, reply.headers["location"], reply.text) for reply in answers} == {
        (202, answers[0].headers["location"], answers[0].text)
    }
    dicast = installation(tmp_path, redis_url)
    assert dicast.store.zcard(dicast.keys.at("jobs")) == 2  # each subject has its own keys
    record = dicast.store.keys("*.http:idempotency:*")[0]
    assert 86_000 < dicast.store.ttl(record) <= 86_400


def test_submissions_that_race_at_two_servers_are_one_job(tmp_path: Path, redis_url: str) -> None:
    one, two = installation(tmp_path, redis_url), installation(tmp_path, redis_url)
    token = one.tokens.issue("tester", [Scope.JOB_SUBMIT, Scope.JOB_READ], ttl_s=600)
    with served(one) as first, served(two) as second, ThreadPoolExecutor(8) as pool:
        clients = [client(address, token) for address in (first, second) for _ in range(4)]
        for round in range(5):
            key = {"Idempotency-Key": f"k{round}"}
            told = list(pool.map(lambda http, key=key: http.post("/jobs", json=JOB, headers=key), clients))
            assert {reply.status_code for reply in told} == {202}
            assert len({reply.json()["id"] for reply in told}) == 1
        pages = [http.get("/jobs").json() for http in (clients[0], clients[-1])]
        assert pages[0] == pages[1] and len(pages[0]["jobs"]) == 5
        for http in clients:
            http.close()


def test_a_crash_in_between_leaves_no_second_job(
    http: httpx2.Client, dicast: Dicast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At whatever step it comes."""
    key, taken = {"Idempotency-Key": "k"}, set()
    for step in ("submit", "send_task"):
        with monkeypatch.context() as broken:
            broken.setattr(dicast, step, lambda *_, **__: (_ for _ in ()).throw(redis.exceptions.ConnectionError()))
            first = http.post("/jobs", json=JOB, headers=key)
            assert first.status_code == {"submit": 503, "send_task": 202}[step]
        taken.add(http.post("/jobs", json=JOB, headers=key).json()["id"])
    with monkeypatch.context() as broken:
        broken.setattr(
            IdempotencyKeys, "keep_answer", lambda *_: (_ for _ in ()).throw(redis.exceptions.ConnectionError())
        )
        assert http.post("/jobs", json=JOB, headers={"Idempotency-Key": "other"}).status_code == 503
    first = http.post("/jobs", json=JOB, headers={"Idempotency-Key": "other"}).json()["id"]
    assert len(taken) == 1
    assert {job["id"] for job in http.get("/jobs").json()["jobs"]} == {first, *taken}


def test_a_refused_job_holds_no_key(http: httpx2.Client) -> None:
    key = {"Idempotency-Key": "k"}
    problem(http.post("/jobs", json={**JOB, "agents": []}, headers=key), 422, "invalid-job")
    assert http.post("/jobs", json=JOB, headers=key).status_code == 202
    for wrong in ("", "x" * 201, "\u00e9"):
        reply = http.post("/jobs", json=JOB, headers=[(b"Idempotency-Key", wrong.encode())])
        problem(reply, 422, "request-refused")


def test_an_ended_job_is_deleted_and_the_audit_log_says_by_whom(
    http: httpx2.Client, dicast: Dicast, address: str
) -> None:
    finished(dicast, "old", 2)
    http.post("/jobs", json={**JOB, "id": "young"})
    problem(http.post("/jobs/young/delete"), 409, "job-not-ended")
    problem(http.post("/jobs/other/delete"), 404, "unknown-job")
    with client(address, dicast.tokens.issue("reader", [Scope.JOB_READ], ttl_s=60)) as reader:
        problem(reader.post("/jobs/old/delete"), 403, "token-refused")
    with client(address, dicast.tokens.issue("other", [Scope.JOB_SUBMIT], ttl_s=60, pools=["other"])) as foreign:
        problem(foreign.post("/jobs/old/delete"), 404, "unknown-job")
    folder = job_folder(dicast.settings.results_dir, "old")
    assert folder.exists() and http.get("/jobs/old").status_code == 200
    assert http.post("/jobs/old/delete").status_code == 204
    assert not folder.exists()
    problem(http.get("/jobs/old"), 404, "unknown-job")
    problem(http.post("/jobs/old/delete"), 404, "unknown-job")
    done = [line for line in dicast.audit.lines() if line.action == "job.delete" and line.outcome == "done"]
    assert [(line.actor, line.object) for line in done] == [("tester", "old")]


def test_a_quote_tells_what_a_job_will_take_and_stores_nothing(http: httpx2.Client, dicast: Dicast) -> None:
    items = [{"id": f"i{n}", "text": "a text " * n} for n in range(1, 5)]
    told = http.post("/jobs/quote", json={**JOB, "id": "q", "items": items, "replicates": 3})
    assert told.status_code == 200, told.text
    quote = told.json()
    assert (quote["units"], quote["calls_least"], quote["calls_most"], quote["from_cache"]) == (12, 12, 12, 0)
    assert quote["source"] == "texts" and quote["unpriced"] == ["sim/simulated-judge"] and quote["sums"] == []
    assert [(line["kind"], line["name"], line["calls"]) for line in quote["lines"]] == [
        ("judge", "a", 12), ("dimension", "d", 12),
    ]  # fmt: skip
    problem(http.get("/jobs/q"), 404, "unknown-job")
    assert not list(dicast.audit.lines())
    problem(http.post("/jobs/quote", json={**JOB, "replicates": 0}), 422, "invalid-job")


def test_a_job_is_resumed_with_a_higher_cap(http: httpx2.Client, dicast: Dicast) -> None:
    ended(dicast, {**JOB, "id": "capped", "max_calls": 5})
    dicast.store.hset(dicast.keys.at("job", "capped"), "state", "cancelled")
    found = problem(http.post("/jobs/capped/resume", json={"max_tokens": 5}), 422, "invalid-job")
    assert "was submitted without max_tokens" in found["detail"]
    problem(http.post("/jobs/capped/resume", json={"max_cost": "0"}), 422, "invalid-job")
    problem(http.post("/jobs/capped/resume", json={"cap": 1}), 422, "request-refused")
    assert http.post("/jobs/capped/resume", json={"max_calls": 7}).json()["state"] == "submitted"
    assert dicast.store.hget(dicast.keys.at("job", "capped"), "max_calls") == "7"
