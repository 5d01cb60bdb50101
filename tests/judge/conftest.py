import pytest

from tests.judge.desk import Desk
from tests.ledger.bench import Bench


@pytest.fixture
async def bench(redis_url):
    bench = Bench(redis_url)
    yield bench
    await bench.asyncs.aclose()


@pytest.fixture
def desk(bench, tmp_path):
    """Makes a judge that asks this provider."""
    return lambda provider, **policy: Desk(bench, tmp_path, provider, **policy)
