"""What a job will take is told before it is run: by a pilot whose opinions are the job's, and beside its bill."""

import json

import pytest
import yaml

from tests import processes
from tests.e2e.cluster import ROOT, a_job

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
POOL = """
[pools.sim]
provider = "simulated"
base_url = "{url}/v1"
price = {{ input = 4, output = 16, batch = 0.5 }}
"""


def test_a_pilots_opinions_are_the_jobs_own_and_its_quote_stands_beside_the_bill(cluster, tmp_path):
    c = cluster(pools=POOL)
    c.worker()

    def command(*arguments):
        environ = {**c.environ, "PYTHONPATH": str(ROOT)}
        return processes.run(["dicast", *arguments], environ, tmp_path, timeout=120)

    job = a_job(agents=2, dimensions=2, items=40, cache="use")
    for number, item in enumerate(job["items"]):
        item["text"] = f"text {number}: " + "a word " * (1 + number % 7)
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    before = json.loads(command("quote", "job.yaml", "--json").stdout)
    assert (before["source"], before["calls_most"], before["confidence"]) == ("texts", 160, None)
    assert c.provider.stats()["calls"] == 0, "nothing is called without a pilot"

    told = command("quote", "job.yaml", "--pilot", "30", "--json")
    assert told.returncode == 0, told.stderr
    quote = json.loads(told.stdout)
    assert c.provider.stats()["calls"] == 28, "seven items, about which two judges are asked in two dimensions"
    assert (quote["source"], quote["sampled"], quote["from_cache"], quote["calls_most"]) == ("pilot", 7, 28, 132)
    assert quote["time"]["pool"] == "sim"

    again = command("quote", "job.yaml", "--pilot", "30", "--json")
    assert c.provider.stats()["calls"] == 28, "the same pilot is not made twice"
    assert json.loads(again.stdout)["sums"] == quote["sums"]

    ran = command("run", "job.yaml", "--json")
    assert ran.returncode == 0, ran.stderr
    report = json.loads(ran.stdout)
    assert (report["calls"], report["cached"]) == (132, 28)
    assert report["quote"]["source"] == "pilot" and report["quote"]["lines"] == []
    (bill,), (total,) = report["cost"]["sums"], report["quote"]["sums"]
    assert float(total["low"]) <= float(bill["spent"]) <= float(total["high"])
    assert float(total["high"]) < 2 * float(total["low"])
    assert float(total["batch"]) == pytest.approx(float(total["expected"]) / 2, abs=2e-6)
    assert abs(report["quote"]["input_tokens"] / report["input_tokens"] - 1) < 0.02, "inputs follow from the texts"
    shown = command("jobs", "show", report["job_id"])
    assert f"(quoted: {float(total['expected']):.2f}"[:12] in shown.stdout.replace("\n", " "), shown.stdout

    later = {**job, "items": [{"id": f"n{n}", "text": f"another text, {n}"} for n in range(50)]}
    (tmp_path / "later.yaml").write_text(yaml.safe_dump(later))
    quote = json.loads(command("quote", "later.yaml", "--json").stdout)
    assert (quote["source"], quote["job"], quote["calls_most"]) == ("earlier", report["job_id"], 200)
    dear = command("run", "later.yaml", "--json")
    assert dear.returncode == 0, "no script is blocked"
