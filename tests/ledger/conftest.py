import pytest

from tests.ledger.bench import Bench


@pytest.fixture
async def bench(redis_url):
    bench = Bench(redis_url)
    yield bench
    await bench.asyncs.aclose()
