"""What an operator's order over HTTP hands on, and what it answers."""

from __future__ import annotations

from types import SimpleNamespace

import httpx2
import pytest

from dicast.app.application import Dicast
from dicast.app.server.interface import create_server
from tests.server.serving import installation


def test_who_takes_from_whom_is_told_and_who_asks_is_handed_on(
    http: httpx2.Client, dicast: Dicast, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def steal(**options):
        asked.append(options)
        return SimpleNamespace(moves=[("w1", "w2", 3), ("w1", "w3", 4)], total=7)

    monkeypatch.setattr(dicast.cluster, "steal", steal)
    told = http.post("/cluster/steal", json={"queue_depths": {"w1": 9}}).json()
    assert told == {
        "moves": [
            {"donor": "w1", "receiver": "w2", "units": 3},
            {"donor": "w1", "receiver": "w3", "units": 4},
        ],
        "total": 7,
    }
    http.post("/cluster/steal")
    assert asked == [{"by": "tester", "queue_depths": {"w1": 9}}, {"by": "tester", "queue_depths": None}]


def test_a_drain_is_given_its_deadline(http: httpx2.Client, dicast: Dicast, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, drain = [], dicast.cluster.drain
    monkeypatch.setattr(dicast.cluster, "drain", lambda *a, **k: (asked.append((a, k)), drain(*a, **k))[1])
    for given in ({"deadline_s": 3}, {}):
        http.post("/cluster/nodes/w@h/drain", json=given)
    assert asked == [(("w@h",), {"by": "tester", "deadline_s": 3.0}), (("w@h",), {"by": "tester", "deadline_s": 60.0})]


def test_the_description_says_how_to_show_a_token_and_who_may(tmp_path, redis_url) -> None:
    described = create_server(installation(tmp_path, redis_url)).openapi()
    scheme = described["components"]["securitySchemes"]["token"]
    assert (scheme["type"], scheme["scheme"]) == ("http", "bearer")
    assert {"EvaluationJob", "Problem"} <= described["components"]["schemas"].keys()
    guarded = {path for path, methods in described["paths"].items() if any(m.get("security") for m in methods.values())}
    assert {"/jobs", "/pools/{pool}", "/cluster/steal"} <= guarded and "/healthz" not in guarded
    open_to_all = create_server(installation(tmp_path, redis_url, DICAST_REQUIRE_AUTH="false")).openapi()
    assert "securitySchemes" not in open_to_all["components"]
