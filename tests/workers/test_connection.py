"""Clients of the store say one thing of every lost connection."""

import pytest
import redis
import uvloop

from dicast.workers.store.connection import connect_async


@pytest.mark.parametrize("retried", [True, False])
def test_a_connection_found_closed_on_uvloop_is_a_lost_one(redis_url, retried):
    """uvloop raises RuntimeError when a closed transport is written to; nobody who waits for the store expects that."""

    async def main():
        async with connect_async(redis_url) as client:
            await client.ping()
            (connection,) = client.connection_pool._available_connections
            connection._writer.transport.abort()
            if retried:
                assert await client.ping()
            else:
                with pytest.raises(redis.ConnectionError, match=r"closed|lost"):
                    await connection.send_command("PING")

    uvloop.run(main())
