from dicast.workers.admission.concurrency import Suspension


def test_three_reports_in_a_row_that_fail_bench_a_worker_for_good(caplog):
    bench, told = Suspension(), []
    bench.suspended = lambda: told.append(1)
    for _ in range(2):
        bench.failed(ValueError("odd"))
    bench.reported()
    for _ in range(2):
        bench.failed(ValueError("odd"))
    assert (bench.reason, told) == ("", [])
    bench.failed(ValueError("odd"))
    bench.failed(ValueError("odder"))
    bench.reported()
    assert (bench.reason, told) == ("no report arrives: odd", [1])
    assert [record.event for record in caplog.records] == ["suspended"]
