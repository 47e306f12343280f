"""A little of `make chaos`, on a plane of its own: the other stories' one must not lose its programs."""

from pathlib import Path

from e2e.chaos import Options, run


async def test_gates_the_api_server_and_etcd_die_under_load_and_nothing_goes_wrong(tmp_path: Path) -> None:
    options = Options(
        gate_kills=6, plane_kills=("etcd", "kube-apiserver"), seed=1, pause=1.0, lose_a_node_every=1000, jobs=10
    )

    report = await run(options, tmp_path)

    assert report.violations == []
    assert (report.kills.total(), report.kills["etcd"], report.kills["kube-apiserver"]) == (8, 1, 1)
    assert report.whole_gangs > 0
