"""Parameters put in force by hand, for tests that are about enforcing and not about deciding."""

from __future__ import annotations

import orjson

from dicast.workers.policy.parameters import Parameters


def parameters(limit=1000, version=1, **more):
    return Parameters(
        **{
            "version": version,
            "decided_at": 0.0,
            "limit": limit,
            "limit_if_refused": limit,
            "counts_after": -1e9,
            "stale_after_s": 1e12,
            **more,
        }
    )


async def obey(client, keys, pool, params):
    """Put `params` in force as a decision would."""
    await client.hsetnx(keys.epoch, "number", 1)  # a store that is in use already
    await client.hset(keys.governor(pool), mapping={"parameters": orjson.dumps(params), "version": params.version})
