"""Pools over HTTP: what `dicast governor` shows and sets."""

from __future__ import annotations

from dataclasses import fields

import httpx2
import pytest

from dicast.app.application import Dicast
from dicast.app.server.routes.pools import PoolChange
from dicast.workers.admission.overrides import Overrides
from tests.server.serving import problem


def test_every_override_can_be_set() -> None:
    assert set(PoolChange.model_fields) == {spec.name for spec in fields(Overrides)}


def test_overrides_are_set_merged_and_taken_back(http: httpx2.Client, dicast: Dicast) -> None:
    assert [pool["pool"] for pool in http.get("/pools").json()["pools"]] == ["other", "sim"]
    assert http.get("/pools/sim").json()["live"] is False
    told = http.patch("/pools/sim", json={"limit": 40, "ceiling": 80, "weights": {"a": 3, "b": 2}})
    assert told.json() == {"pool": "sim", "overrides": {"limit": 40, "ceiling": 80, "weights": {"a": 3.0, "b": 2.0}}}
    change = {"ceiling": None, "weights": {"b": None, "c": 1}, "project_max": {"a": 7, "*": 0.5}}
    assert http.patch("/pools/sim", json=change).json()["overrides"] == {
        "limit": 40, "weights": {"a": 3.0, "c": 1.0}, "project_max": {"a": 7, "*": 0.5},
    }  # fmt: skip
    seen = http.get("/pools/sim").json()
    assert seen["live"] is True and seen["override"]["limit"] == 40
    assert http.get("/status").json()["pools"][0]["pool"] == "sim"
    assert http.patch("/pools/sim", json=dict.fromkeys(("limit", "weights", "project_max"))).json()["overrides"] == {}
    line = next(line for line in dicast.audit.lines() if line.action == "pool.change")
    assert (line.actor, line.object, line.details["limit"]) == ("tester", "sim", 40)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ({"limit": 0}, "override-refused"),
        ({"limit": 9, "ceiling": 8}, "override-refused"),
        ({"floor": None, "profile": "nothing"}, "override-refused"),
        ({"settle_s": 3.0}, "override-refused"),
        ({"latency_target_s": 0}, "override-refused"),
        ({"project_max": {"a": 1.5}}, "override-refused"),
        ({"limit": "40"}, "request-refused"),
        ({"limit": True}, "request-refused"),
        ({"limit": 1.5}, "request-refused"),
        ({"limits": 4}, "request-refused"),
        ({}, "request-refused"),
        ([], "request-refused"),
        (None, "request-refused"),
    ],
)
def test_what_is_no_override_changes_nothing(http: httpx2.Client, dicast: Dicast, body: object, kind: str) -> None:
    problem(http.patch("/pools/sim", json=body), 422, kind)
    assert dicast.store.hgetall(dicast.keys.overrides) == {}


def test_one_cap_holds_for_all(http: httpx2.Client) -> None:
    assert http.patch("/pools/sim", json={"slo_target": 0.99}).status_code == 200
    assert http.patch("/pools", json={"slo": 7}).json() == {"slo": 7}
    told = http.get("/slo").json()
    assert told["slo"] == 7
    assert [(pool["pool"], pool["slo_target"]) for pool in told["pools"]] == [("other", None), ("sim", 0.99)]
    assert http.get("/pools").json()["slo"] == 7
    assert http.patch("/pools", json={"slo": None}).json() == {"slo": None}
    assert http.get("/slo").json()["slo"] is None
    for wrong in ({"slo": 0}, {"slo": "7"}, {}, {"slo": 1, "limit": 2}):
        problem(http.patch("/pools", json=wrong), 422, "request-refused")


def test_a_pool_that_is_not_there_is_not_found(http: httpx2.Client) -> None:
    problem(http.get("/pools/nothing"), 404, "unknown-pool")
    problem(http.patch("/pools/nothing", json={"limit": 1}), 404, "unknown-pool")
    problem(http.get("/pools/a%20b"), 422, "request-refused")


def test_what_monitors_ask_for_is_served(http: httpx2.Client) -> None:
    told = http.get("/metrics")
    assert told.headers["content-type"].startswith("text/plain") and "dicast_store_up 1.0" in told.text
    assert http.get("/readyz").json() == {"ready": True}
    assert http.get("/status").json()["installation"] == "dicast"
