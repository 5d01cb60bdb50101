"""A ledger on a real server, with two living nodes."""

from dicast.app.domain.job import EvaluationJob
from dicast.app.domain.plan import lanes
from dicast.app.ledger.client import LedgerClient
from dicast.app.ledger.keys import PageRef
from dicast.app.ledger.ledger import Ledger
from dicast.app.ledger.records import MessageId, UnitResult
from dicast.workers.nodes.registry import Node, Registry
from dicast.workers.store.connection import connect, connect_async
from dicast.workers.store.keys import Keys

KEYS = Keys("test")


def a_job(job_id="j", items=2, agents=1, dimensions=2, **more):
    return EvaluationJob.model_validate(
        {
            "id": job_id,
            "items": [{"id": f"i{n}", "text": f"text {n}"} for n in range(items)],
            "agents": [{"name": f"a{n}"} for n in range(agents)],
            "dimensions": [{"id": f"d{n}", "instructions": "how good?"} for n in range(dimensions)],
            **more,
        }
    )


class Bench:
    """A ledger with two living nodes, and a job whose first page is open."""

    def __init__(self, redis_url):
        self.redis = connect(redis_url)
        self.client = LedgerClient(self.redis, KEYS)
        self.registry = Registry(self.redis, KEYS)
        self.asyncs = connect_async(redis_url)
        self.nodes = [Node.for_this_process(f"w{n}@h", limit=5, slots=5) for n in range(2)]
        for node in self.nodes:
            self.registry.announce(node)
            self.redis.persist(KEYS.node(node.id))  # nobody renews it, however slow the machine is
        self.one, self.two = (Ledger(self.asyncs, KEYS, node.id, claim_ms=60_000, calls_max=9) for node in self.nodes)

    def submit(self, job, batched=False, extra=None, answers=1):
        judges = len(job.agents)
        most = [answers] * judges
        plan = lanes([("p",)] * judges, len(job.dimensions), job.rounds, [batched] * judges, answers=most)
        units = len(job.items) * len(job.agents) * len(job.dimensions) * job.rounds
        return self.client.submit(job, plan, units, extra or {})

    async def started(self, job=None, batched=False, units=4, cursor="", sent=True, extra=None, answers=1):
        job = job or a_job()
        self.submit(job, batched, extra, answers)
        await self.one.start(job.id, 5)
        ref = PageRef(job.id, self.incarnation(job.id), 0, 0)
        items = dict(enumerate(await self.one.items(job.id, range(len(job.items)))))
        assert await self.one.open_page(ref, 0, units, cursor, 1, items, capped=job.is_capped) == units
        if sent:
            await self.one.published(ref)
        return ref

    def incarnation(self, job_id):
        return self.redis.hget(self.one.keys.job(job_id), "incarnation")

    def kill(self, n):
        self.registry.deregister(self.nodes[n])


async def claim(ledger, ref, position, token=None, item=0):
    _, _, claims = await ledger.claim(ref, token or MessageId(position), [position], item)
    return claims[0]


async def record(ledger, ref, *claims, scored=True):
    return await ledger.record(
        ref, {"calls": 1}, [UnitResult(c.position, c.fence, b'{"opinion":{}}', scored) for c in claims]
    )
