"""Pools and nodes on the page while a real worker judges a real job."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dicast.app.application import create_app
from tests.e2e.cluster import Cluster, a_job, one_worker, until
from tests.page.conftest import Watched
from tests.server.serving import client, served

POOL = """
default = "sim"
[pools.sim]
provider = "simulated"
base_url = "{url}/v1"
"""


@pytest.fixture
def live(tmp_path: Path, redis_url: str) -> Iterator[tuple[Cluster, str]]:
    uploads = str(tmp_path / "uploads")
    with one_worker(
        tmp_path, redis_url, POOL, "--latency", "0.3", DICAST_REQUIRE_AUTH="false", DICAST_UPLOAD_DIR=uploads
    ) as cluster:
        settings = {name: value for name, value in cluster.environ.items() if name not in os.environ}
        with served(create_app(settings)) as address:
            yield cluster, address


@pytest.mark.slow
def test_means_pools_and_nodes_are_seen_at_work(live: tuple[Cluster, str], open_page: Callable[..., Watched]) -> None:
    cluster, address = live
    name = cluster.submit({**a_job(agents=2, dimensions=3, items=400), "id": "busy"})
    seen = open_page(address, viewport={"width": 1280, "height": 900})
    seen.go("#/jobs/busy")
    until(lambda: cluster.done(name) > 5, "units are judged")
    until(lambda: seen.page.get_by_role("progressbar").get_attribute("value") != "0", "the bar moves")
    seen.page.wait_for_selector("h2:has-text('Scores so far')")
    with client(address) as http:
        told = http.get("/jobs/busy/so-far").json()
    assert 0 < told["items"] <= told["of"] == 400 and told["kind"] == "certain" and len(told["charts"]) == 3
    seen.go("#/pools")
    seen.page.wait_for_selector("figure.lines path.line.green", state="attached")  # one that is flat has no height
    assert "Why:" in seen.page.inner_text("main") and seen.axe() == []
    seen.page.get_by_role("link", name="sim").click()
    seen.page.wait_for_selector("text=What the provider answered")
    assert seen.axe() == []
    seen.go("#/nodes")
    seen.page.wait_for_selector("text=online")
    assert seen.axe() == []
    seen.page.get_by_role("button", name="Cordon").first.click()
    seen.page.wait_for_selector("span.badge.cordoned")
    seen.page.get_by_role("button", name="Uncordon").click()
    seen.page.wait_for_selector("span.badge.online")
    with client(address) as http:
        assert http.delete(f"/jobs/{name}").status_code == 200
