"""What calls have cost: by keys, from the store and from reports, and where budgets stand."""

import csv
import io
from decimal import Decimal

import orjson
import pytest

from dicast.app.application import create_app
from dicast.app.cluster.metrics import purse_metrics
from dicast.app.domain.cost import purse_fields
from dicast.app.domain.plan import lanes
from dicast.app.domain.price import Place, Price, TokenRates
from dicast.app.ledger.work import read_purses
from dicast.app.operator.spending import WrongSpendKey, budget_standings, spend_csv, spend_keys, spend_lines, summed
from dicast.config.pools import Pools
from tests.ledger.bench import a_job

PLACE, FREE = Place("p", "m", Price(TokenRates(2, 3, 2, 2))), Place("q", "n")
POOLS = """
[pools.p]
provider = "simulated"
price = { input = 1, output = 1 }
budget = { day = 2, total = 50 }
[projects."*"]
budget = { month = 10 }
"""


@pytest.fixture
def dicast(redis_url, tmp_path):
    environ = {"REDIS_URL": redis_url, "DICAST_RESULTS_DIR": str(tmp_path), "DICAST_NAMESPACE": "test"}
    app = create_app(environ)
    app.__dict__["pools"] = Pools.parse(POOLS)
    return app


@pytest.fixture
def books(dicast):
    """A job with two judges in the store, and an earlier one that is only in its report."""
    job, places = a_job(project="red", agents=2), [[PLACE], [FREE]]
    extra = {"places": orjson.dumps([[place.as_dict() for place in own] for own in places]).decode()}
    plan = lanes([("p",), ("q",)], 2, 1, [False, False])
    dicast.ledger.submit(job, plan, 8, extra | purse_fields("red", places))
    key = dicast.keys.at("job", "j")
    day = {"calls": 3, "in": 100, "out": 10, "spent": 10**12, "unknown_calls": 1, "unknown": 5 * 10**11}
    fields = {f"b:0.0.20781:{name}": value for name, value in day.items()}
    dicast.store.hset(
        key, mapping=fields | {"b:0.0.20782:calls": 1, "b:0.0.20782:spent": 10**11, "b:1.0.20781:calls": 7}
    )
    return dicast


def earlier(dicast, folder, job="old", incarnation="abc", **more):
    line = {
        "judge": "a0", "pool": "p", "model": "m", "day": "2026-01-01", "calls": 2, "input_tokens": 5,
        "cached_input_tokens": 0, "cache_write_tokens": 0, "output_tokens": 1, "reasoning_tokens": 0, "spent": "0.25",
        "unknown_calls": 0, "unknown": "0", "currency": "USD",
    }  # fmt: skip
    (folder / job).mkdir()
    report = {"job_id": job, "project": "=blue", "agents": [{"pool": "p"}], "cost": {"lines": [line | more]}}
    (folder / job / "report.json").write_bytes(orjson.dumps(report))
    (folder / job / "incarnation").write_text(incarnation)


def test_sums_have_what_is_priced_unknown_and_unpriced(books):
    first, second = summed(spend_lines(books), ["pool"])
    assert (first.pool, first.spent, first.unknown, first.calls, first.currency) == (
        "p", Decimal("1.1"), Decimal("0.5"), 4, "USD",
    )  # fmt: skip
    assert (second.pool, second.spent, second.unpriced_calls, second.currency) == ("q", 0, 7, "")
    by_day = summed(spend_lines(books), ["judge", "day"])
    assert [(total.judge, total.day, total.calls) for total in by_day] == [
        ("a0", "2026-11-24", 3), ("a0", "2026-11-25", 1), ("a1", "2026-11-24", 7),
    ]  # fmt: skip
    assert [total.calls for total in summed(spend_lines(books, "2026-11-25"), ["job"])] == [1]


def test_jobs_that_the_store_holds_no_more_are_told_by_their_reports(books, tmp_path):
    earlier(books, tmp_path)
    incarnation = books.store.hget(books.keys.at("job", "j"), "incarnation")
    earlier(books, tmp_path, "j", incarnation)  # the store's own job counts once
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "report.json").write_text("{")
    totals = {total.project: total.spent for total in summed(spend_lines(books), ["project"]) if total.currency}
    assert totals == {"red": Decimal("1.1"), "=blue": Decimal("0.25")}


def test_csv_is_exact_and_computes_nothing(books, tmp_path):
    earlier(books, tmp_path, spent="0.000000000001")
    keys = spend_keys("project,day")
    rows = list(csv.DictReader(io.StringIO(spend_csv(summed(spend_lines(books), keys), keys))))
    assert rows[0]["project"] == "'=blue" and rows[0]["spent"] == "0.000000000001"
    assert [row["day"] for row in rows] == ["2026-01-01", "2026-11-24", "2026-11-24", "2026-11-25"]


def test_an_unknown_key_is_refused():
    with pytest.raises(WrongSpendKey, match="'jobs'; did you mean 'job'"):
        spend_keys("day,jobs")
    assert spend_keys("day, project") == ("project", "day")


def test_where_budgets_stand(dicast):
    seconds = dicast.store.time()[0]
    purse = {f"d:{seconds // 86400}": "1500000000000,100000000000", "t": "3000000000000,0", "r": 200000000000}
    dicast.store.hset(dicast.keys.at("purse") + ":pool:p:USD", mapping=purse)
    dicast.store.hset(dicast.keys.at("purse") + ":project:red:USD", mapping={"t": "1,0"})
    dicast.store.sadd(dicast.keys.at("purses"), "pool:p:USD", "project:red:USD")
    told = {(s.kind, s.name, s.period): s for s in budget_standings(dicast)}
    assert set(told) == {("pool", "p", "day"), ("pool", "p", "total"), ("project", "red", "month")}
    sentence = told["pool", "p", "day"].sentence()
    assert sentence.startswith("budget of pool p for today: 1.50 USD spent, 0.20 USD reserved, at most 0.10 USD of ")
    assert "of 2.00 USD; resets at " in sentence
    assert told["pool", "p", "total"].resets is None
    samples = [s for metric in purse_metrics(read_purses(dicast.store, dicast.keys)) for s in metric.samples]
    values = {(s.name, *s.labels.values()): s.value for s in samples}
    assert values["dicast_pool_spent_total", "p", "USD"] == 3.0
    assert values["dicast_pool_spent_today", "p", "USD"] == 1.5
    assert values["dicast_project_spent_total", "red", "USD"] == 1e-12
