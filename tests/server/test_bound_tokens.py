"""What a token that is bound to pools or to a node sees and does: every route x every binding. The routes are the
application's own: one without its row in `ROUTES` fails."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx2
import orjson
import pytest

from dicast.app.access.scopes import Scope
from dicast.app.application import Dicast
from dicast.app.server.interface import routes
from dicast.workers.nodes.registry import Node
from dicast.workers.policy.rules import RulesStatus
from tests.server.serving import JOB, client, installation, problem, served
from tests.server.test_tokens import EXAMPLES

POOLS = """
default = "sim"
[pools.sim]
provider = "simulated"
base_url = "http://127.0.0.1:9/v1"
[pools.canarypool]
provider = "simulated"
base_url = "http://127.0.0.1:9/v1"
price = { input = 1, output = 1 }
budget = { day = 5 }
"""
OWN, FOREIGN = "w1@here", "canarynode@there"

ROUTES: dict[tuple[str, str], str] = {
    ("POST", "/jobs"): "body",
    ("POST", "/jobs/quote"): "body",
    ("POST", "/jobs/check"): "body",
    ("GET", "/jobs"): "seen",
    ("GET", "/jobs/{job}"): "job",
    ("DELETE", "/jobs/{job}"): "job",
    ("POST", "/jobs/{job}/resume"): "job",
    ("POST", "/jobs/{job}/delete"): "job",
    ("GET", "/jobs/{job}/events"): "job",
    ("GET", "/jobs/{job}/report"): "job",
    ("GET", "/jobs/{job}/report.html"): "job",
    ("GET", "/jobs/{job}/opinions"): "job",
    ("GET", "/jobs/{job}/errors"): "job",
    ("GET", "/jobs/{job}/errors/newest"): "job",
    ("GET", "/jobs/{job}/so-far"): "job",
    ("GET", "/jobs/{job}/items"): "job",
    ("GET", "/jobs/{job}/item"): "job",
    ("GET", "/jobs/{job}/text"): "job",
    ("GET", "/jobs/{job}/scores"): "job",
    ("GET", "/jobs/{job}/facets"): "job",
    ("GET", "/jobs/{job}/points"): "job",
    ("GET", "/jobs/{job}/compare"): "job",
    ("GET", "/jobs/{job}/prompt"): "job",
    ("POST", "/jobs/{job}/rating"): "job",
    ("GET", "/jobs/{job}/rating"): "job",
    ("GET", "/jobs/{job}/rating/item"): "job",
    ("POST", "/jobs/{job}/rating/scores"): "job",
    ("POST", "/jobs/{job}/rating/notes"): "job",
    ("POST", "/jobs/{job}/rating/finish"): "job",
    ("POST", "/jobs/{job}/rating/forget"): "job",
    ("GET", "/jobs/{job}/rating/agreement"): "job",
    ("GET", "/jobs/{job}/rating/file"): "job",
    ("GET", "/session"): "seen",
    ("GET", "/"): "nobody's",
    ("GET", "/page/{file}"): "nobody's",
    ("GET", "/rubrics"): "nobody's",
    ("GET", "/job.schema.json"): "nobody's",
    ("POST", "/uploads"): "own",
    ("GET", "/pools"): "seen",
    ("GET", "/pools/{pool}"): "pool",
    ("PATCH", "/pools"): "all pools",
    ("PATCH", "/pools/{pool}"): "pool",
    ("GET", "/slo"): "seen",
    ("GET", "/status"): "seen",
    ("GET", "/spend"): "seen",
    ("GET", "/metrics"): "seen",
    ("GET", "/grafana/dashboard"): "nobody's",
    ("GET", "/cluster/nodes"): "seen",
    ("POST", "/cluster/nodes"): "join",
    ("GET", "/cluster/nodes/{node}"): "node",
    ("DELETE", "/cluster/nodes/{node}"): "node",
    ("POST", "/cluster/nodes/{node}/heartbeat"): "own",
    ("POST", "/cluster/nodes/{node}/cordon"): "node",
    ("POST", "/cluster/nodes/{node}/uncordon"): "node",
    ("POST", "/cluster/nodes/{node}/drain"): "node",
    ("POST", "/cluster/steal"): "all pools",
    ("GET", "/cluster/status"): "seen",
    ("GET", "/cluster/events"): "seen",
    ("GET", "/healthz"): "nobody's",
    ("GET", "/readyz"): "nobody's",
    ("GET", "/openapi.json"): "nobody's",
}
"""What each route is about: a `job`, `pool` or `node` that its path names, what its `body` names, `all pools`; what can
be `seen` of several; the caller's `own`; or nothing of the installation."""
BODIES = {
    "/jobs": {**JOB, "id": "canarynew", "agents": [{"name": "a", "pool": "canarypool"}]},
    "/jobs/quote": {**JOB, "agents": [{"name": "a", "pool": "canarypool"}]},
    "/jobs/check": {**JOB, "agents": [{"name": "a", "pool": "canarypool"}]},
    "/pools": {"slo": 3}, "/pools/{pool}": {"limit": 5}, "/cluster/nodes": {"name": "new"},
    "/jobs/{job}/rating": {}, "/jobs/{job}/rating/finish": {"rater": "r"},
    "/jobs/{job}/rating/notes": {"rater": "r", "item_id": "i", "dimension": "d", "cannot_say": True},
    "/jobs/{job}/rating/scores": {"rater": "r", "item_id": "i", "dimension": "d", "score": 1},
}  # fmt: skip


@dataclass(frozen=True)
class World:
    """An installation with a pool, jobs, a project and nodes that a bound token is not to know of."""

    dicast: Dicast
    http: httpx2.Client
    own: str
    """Id of the node that serves the token's pool, and not another one."""
    foreign: str
    both: str
    tokens: dict[str, str]

    def ask(self, binding: str, method: str, route: str, **names: str) -> tuple[int, str]:
        path = EXAMPLES[method, route][0]
        for known, name in names.items():
            path = path.replace(known, name)
        headers = {"Authorization": f"Bearer {self.tokens[binding]}"}
        body = BODIES.get(route) if method in ("POST", "PATCH") else None
        with self.http.stream(method, path, headers=headers, json=body) as reply:
            if reply.headers.get("content-type", "").startswith("text/event-stream"):
                return reply.status_code, next(line for line in reply.iter_lines() if line.startswith("data"))
            reply.read()
            return reply.status_code, reply.text

    def state(self) -> dict[str, object]:
        """Everything in the store but what each request moves."""
        store, found = self.dicast.store, {}
        for name in sorted(store.scan_iter("*")):
            if not any(part in name for part in (".access", ".http", "node:", "nodes_heard")):
                kind = store.type(name)
                found[name] = {
                    "hash": store.hgetall, "string": store.get, "set": store.smembers,
                    "list": lambda name: store.lrange(name, 0, -1), "zset": lambda name: store.zrange(name, 0, -1),
                }.get(kind, str)(name)  # fmt: skip
        return found


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, module_url: str) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("bound")
    dicast = installation(folder, module_url)
    (folder / "pools.toml").write_text(POOLS)
    dicast.cluster._wait_s = 0.0  # nobody is there to acknowledge
    made: dict[str, str] = {}
    facts = {"canary": ("canarypool",), "own": ("sim",), "both": ("sim", "canarypool")}
    for name, of in ((FOREIGN, "canary"), (OWN, "own"), ("w2@here", "both")):
        node = Node.for_this_process(
            name, limit=5, slots=5, version="0", pools=facts[of], missing_keys=facts["canary"] * (of != "canary"),
            queues=tuple(f"provider.{pool}" for pool in facts[of]), stuck="canarypool stands" if of == "both" else "",
        )  # fmt: skip
        dicast.registry.announce(node, RulesStatus(5, 5, 0.0, 0.0, "start", 0))
        made[of] = node.id
    both = [{"name": "a", "pool": "sim"}, {"name": "b", "pool": "canarypool"}]
    dicast.submit({**JOB, "id": "mine"})
    dicast.submit({**JOB, "id": "canaryjob", "project": "canaryproject", "agents": both[1:]})
    dicast.submit({**JOB, "id": "canaryboth", "project": "shared", "agents": both})
    for job in ("canaryjob", "canaryboth"):
        dicast.store.hset(dicast.keys.at("job", job), "b:0.0.20000:calls", 1)
    for lease, pool, job in (("1~0.0.0", "canarypool", "canaryjob"), ("2~0.0.1", "sim", "canaryboth")):
        holder = {"pool": pool, "job": job, "project": "p", "node": made["both"], "sent_ms": 1, "probe": False}
        dicast.store.hset(dicast.keys.holders, f"{job}{lease}", orjson.dumps(holder))
    every = set(Scope) - {Scope.NODE_HEARTBEAT}
    issue = dicast.tokens.issue
    tokens = {
        "none": issue("whole", every, ttl_s=600), "pool": issue("pool", every, ttl_s=600, pools=["sim"]),
        "node": issue("node", every, ttl_s=600, node=made["own"]),
    }  # fmt: skip
    with served(dicast) as address, client(address) as http:
        found = World(dicast, http, made["own"], made["canary"], made["both"], tokens)
        for pool in ("sim", "canarypool"):
            weights = {"limit": 4, "weights": {"canaryproject" if "canary" in pool else "own": 2}}
            headers = {"Authorization": f"Bearer {tokens['none']}"}
            assert http.patch(f"/pools/{pool}", json=weights, headers=headers).status_code == 200
        yield found


def test_every_route_has_its_row() -> None:
    assert set(ROUTES) == {(method, route.path) for route in routes() for method in route.methods or ()}


def of_kind(*kinds: str) -> list[tuple[str, str]]:
    return [route for route, kind in ROUTES.items() if kind in kinds]


def quoted(node: str) -> str:
    return node.replace("#", "%23")


@pytest.mark.parametrize(("method", "route"), of_kind("seen"))
def test_what_may_be_seen_names_nothing_else(world: World, method: str, route: str) -> None:
    status, whole = world.ask("none", method, route)
    assert status == 200
    if route != "/session":
        assert "canary" in whole, "else this test sees nothing"
    for binding in ("pool", "node"):
        status, told = world.ask(binding, method, route)
        assert status == 200
        if binding == "pool":
            assert "canary" not in told
        if "canarynode" in whole:
            assert "canarynode" not in told
            assert OWN in told, "and what is its own is there"


@pytest.mark.parametrize(("method", "route"), of_kind("job", "pool", "node", "body", "all pools", "join"))
def test_what_is_anothers_cannot_be_reached(world: World, method: str, route: str) -> None:
    kind, before = ROUTES[method, route], world.state()
    names = {"mine": "canaryjob", "/gone": "/canaryjob", "pools/sim": "pools/canarypool"}
    for foreign in (world.foreign, world.both) if kind == "node" and method != "GET" else (world.foreign,):
        status, told = world.ask("pool", method, route, **names, **{"w1@here%23aa": quoted(foreign)})
        slug = json.loads(told)["type"].rpartition(":")[2]
        if kind == "job":
            assert (status, slug) == (404, "unknown-job")
        elif kind == "node" and foreign == world.foreign:
            assert (status, slug) == (404, "unknown-node")
        else:
            assert (status, slug) == (403, "not-allowed")
        if kind == "node":
            status, told = world.ask("node", method, route, **{"w1@here%23aa": quoted(foreign)})
            assert (status, json.loads(told)["type"]) == (403, "urn:dicast:problem:token-refused")
    if (method, route) in (("PATCH", "/pools/{pool}"), ("GET", "/pools/{pool}")):
        asked, none = (world.ask("pool", method, route, **{"pools/sim": f"pools/{p}"}) for p in ("canarypool", "nil"))
        assert asked[1].replace("canarypool", "nil") == none[1], "nor does it learn whether there is such a pool"
    if (method, route) == ("POST", "/cluster/steal"):
        assert world.ask("node", method, route)[0] == 403
    assert world.state() == before


def test_a_job_of_several_pools_is_seen_by_none_of_their_tokens(world: World) -> None:
    for method, route in of_kind("job"):
        status, _ = world.ask("pool", method, route, mine="canaryboth", **{"/gone": "/canaryboth"})
        assert status == 404, (method, route)
    leases = json.loads(world.ask("pool", "GET", "/pools/{pool}")[1])["leases"]
    assert leases == []


@pytest.mark.parametrize("binding", ["pool", "node"])
def test_its_own_can_be_reached(world: World, binding: str) -> None:
    own = {"w1@here%23aa": quoted(world.own)}
    for method, route in of_kind("job"):
        if method == "GET" and not route.endswith("/events"):
            status, told = world.ask(binding, method, route)
            assert status in (200, 409) or (status, "rating" in route) == (404, True), (route, told)
    assert world.ask(binding, "GET", "/pools/{pool}")[0] == 200
    for method, route in of_kind("node"):
        if method != "DELETE":
            status, told = world.ask(binding, method, route, **own)
            assert status == 200 and ("canary" not in told or binding == "node"), (route, told)
    status, told = world.ask(binding, "GET", "/status")
    pools = [pool["pool"] for pool in json.loads(told)["pools"]]
    assert pools == (["sim"] if binding == "pool" else ["canarypool", "sim"])
    assert json.loads(told)["unfinished_jobs"] == (1 if binding == "pool" else 3)


def test_a_jobs_pool_is_checked_for_every_deployment(world: World, tmp_path: Path) -> None:
    headers = {"Authorization": f"Bearer {world.tokens['pool']}"}
    for agent in (
        {"name": "a", "pool": "canarypool"},
        {"name": "a", "deployments": [{"pool": "sim"}, {"pool": "canarypool"}]},
        {"name": "a", "pool": "nil"},
    ):
        problem(world.http.post("/jobs", json={**JOB, "agents": [agent]}, headers=headers), 403, "not-allowed")


def test_a_token_for_a_pool_is_for_its_models_with_limits_of_their_own(tmp_path: Path, redis_url: str) -> None:
    dicast = installation(tmp_path, redis_url)
    prices = "price = { m = { input = 1, output = 1 }, simulated-judge = { input = 1, output = 1 } }"
    pools_file = POOLS.replace("price = { input = 1, output = 1 }", prices)
    (tmp_path / "pools.toml").write_text(f'{pools_file}limits_by_model = ["m"]\n')
    own, model = {"name": "a", "pool": "canarypool"}, {"name": "b", "pool": "canarypool", "model": "m"}
    scopes = {Scope.JOB_SUBMIT, Scope.JOB_READ, Scope.POOL_ADMIN}
    with served(dicast) as address:
        for pools, may in ((["canarypool"], True), (["sim"], False)):
            with client(address, dicast.tokens.issue("t", scopes, ttl_s=600, pools=pools)) as http:
                for agents in ([own], [model], [own, model], [{"name": "a", "pool": "canarypool:m"}]):
                    reply = http.post("/jobs", json=JOB | {"agents": agents})
                    assert (reply.status_code < 300) is may, reply.text
                    assert may or problem(reply, 403, "not-allowed")
                jobs = http.get("/jobs").json()["jobs"]
                assert [http.get(f"/jobs/{job['id']}").status_code for job in jobs] == [200] * (4 if may else 0)
                listed = {pool["pool"] for pool in http.get("/pools").json()["pools"]}
                assert listed == ({"canarypool", "canarypool:m"} if may else {"sim"})
                changed = http.patch("/pools/canarypool:m", json={"limit": 3})
                assert changed.status_code == (200 if may else 403), changed.text
