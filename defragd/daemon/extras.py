"""What a daemon does only where it is asked for or allowed: the cross-check with HAMi's metrics, the device cordon."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from defragd.controllers.cordons import Cordons
from defragd.core.vendor import Vendor
from defragd.daemon.books import BookLoop
from defragd.daemon.loops import Loops
from defragd.errors import ClusterError
from defragd.hami.version import shortcomings
from defragd.kube.authz import Access, Reviews
from defragd.kube.client import Client
from defragd.kube.cluster import KubeCluster
from defragd.kube.nodes import KubeNodes
from defragd.obs.cluster import Reading
from defragd.obs.hami_metrics import read
from defragd.ports import Clock, Hook, Leadership
from defragd.settings import HamiSettings

NODES = Access("patch", "", "nodes")
"""The right that the device cordon needs; the chart grants it with rbac.cordonDevices."""


@dataclass(frozen=True, slots=True)
class Extras:
    cluster: KubeCluster
    hook: Hook
    books: BookLoop | None = None
    cordons: Cordons | None = None

    def start(self, loops: Loops) -> None:
        """When the caches are filled."""
        version = self.cluster.snapshot().hami_version
        missing = shortcomings(version)
        level = {"level": "warning"} if missing else {}
        self.hook("hami", {"version": version or "unknown", "shortcomings": list(missing), **level})
        if (books := self.books) is not None:
            loops.start("books", books.run, beat=lambda: books.beat, limit=300.0)
        if (cordons := self.cordons) is not None:
            loops.start("cordons", cordons.run, beat=lambda: cordons.beat)

    def reading(self, found: Reading | None) -> Reading | None:
        """One scrape of the metrics, completed."""
        return found if found is None or self.books is None else replace(found, hami_metrics=self.books.up)


def build_extras(
    client: Client,
    cluster: KubeCluster,
    hami: HamiSettings,
    *,
    leadership: Leadership,
    clock: Clock,
    hook: Hook,
    vendors: Mapping[str, Vendor],
) -> Extras:
    source = hami.metrics
    books = None
    if source:
        books = BookLoop(
            read=lambda: read(source), reader=cluster, doubt=cluster.doubt, clock=clock, hook=hook,
            every=hami.metrics_every, grace=hami.metrics_grace,
        )  # fmt: skip
    cordons = None
    if _may_write_nodes(client):
        cordons = Cordons(
            reader=cluster, runs=cluster.runs, nodes=KubeNodes(client, cluster.fence), leadership=leadership,
            clock=clock, hook=hook, vendors=vendors,
        )  # fmt: skip
    return Extras(cluster, hook, books, cordons)


def _may_write_nodes(client: Client) -> bool:
    try:
        return Reviews(client).myself(NODES)
    except ClusterError:
        return False
