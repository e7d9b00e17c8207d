"""HAMi's books against the pods' annotations on a running cluster: a leak is named, kept away from, and heals."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.ground import objects
from tests.ground.cluster import Cluster, devices_of
from tests.ground.daemon import Daemon
from tests.system.faults import clean, ended, move, pair, status_of

pytestmark = [pytest.mark.controlplane, pytest.mark.timeout(240)]


def test_a_device_that_hami_books_for_a_pod_long_gone(cluster: Cluster, start_daemon: Callable[..., Daemon]) -> None:
    pod = pair(cluster)
    leaked = objects.pod("leaked", mem=4000, extra={"nodeSelector": {"kubernetes.io/hostname": "n1"}})
    cluster.create(leaked)
    cluster.wait_ready(1, app="leaked")
    (uuid,) = devices_of(cluster.pod("leaked"))
    # annotations stripped before the deletion: HAMi never lets go of the booking
    cluster.annotate("Pod", "leaked", {"hami.io/vgpu-node": None, "hami.io/vgpu-devices-allocated": None})
    cluster.api.delete("/api/v1/namespaces/default/pods/leaked?gracePeriodSeconds=0")
    cluster.wait(lambda: len(cluster.pods()) == 1, 10, "the pod is gone")
    metrics = f"http://127.0.0.1:{cluster.plane.ports['metrics']}/metrics"
    config = {"hami": {"metrics": metrics, "metricsEvery": "500ms", "metricsGrace": "1s"}}
    daemon = start_daemon(replicas=1, config=config)
    replica = daemon.replicas[0]
    since = daemon.plane.audit.mark()

    def doubted() -> float:
        return replica.metric("defragd_devices", state="distrusted")

    cluster.wait(lambda: doubted() == 1, 20, "the device is distrusted")
    assert replica.metric("defragd_hami_metrics_up") == 1
    assert replica.metric("defragd_problems", reason="BooksDiffer") == 1
    _, why = replica.get(f"/api/v1/explain/device/{uuid}")
    assert "default/leaked (4000 MiB)" in str(why) and "restart of HAMi's scheduler" in str(why)

    move(cluster, pod, "kept-away", devices=[uuid], timeouts={"hold": "3s"})
    (status,) = ended(cluster, "kept-away")
    assert (status["phase"], status["reason"]) == ("Failed", "DeviceDistrusted"), status
    assert cluster.pod(pod["metadata"]["name"])["metadata"]["uid"] == pod["metadata"]["uid"], "nobody was evicted"

    cluster.plane.restart("hami")
    cluster.wait(lambda: doubted() == 0, 30, "trusted again")
    move(cluster, pod, "healed", devices=[uuid])
    ended(cluster, "healed")
    assert status_of(cluster, "healed")["phase"] == "Completed"
    assert replica.metric("defragd_devices", state="distrusted") == 0
    clean(cluster, daemon, since)
