import pytest

from tests.e2e.cluster import Cluster, Simulated

POOL = """
default = "sim"
[pools.sim]
provider = "simulated"
base_url = "{url}/v1"
dialect = "openai"
[pools.claude]
provider = "simulated"
base_url = "{url}"
dialect = "anthropic"
"""


@pytest.fixture
def cluster(tmp_path, redis_url):
    """Starts clusters; everything is stopped at the end, whatever happened."""
    running = []

    def start(*provider_options, pools=POOL, **settings):
        provider = Simulated("--log", str(tmp_path / "provider.jsonl"), *provider_options)
        running.append(provider)
        cluster = Cluster(tmp_path, redis_url, pools.format(url=provider.base_url), **settings)
        running.append(cluster)
        cluster.vouch()
        cluster.provider = provider
        return cluster

    yield start
    for part in reversed(running):
        part.stop()
