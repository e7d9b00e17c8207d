"""The eviction sub-resource: the only way a pod is ever removed (design section 3, rule 5)."""

from __future__ import annotations

from typing import Any

from defragd.kube.client import Client
from defragd.ports import Written

_TIMEOUT = 20.0


def evict(client: Client, namespace: str, name: str, *, uid: str, revision: str = "", dry_run: bool = False) -> Written:
    """Outcomes as `kube.errors.written`: 429 Blocked (with ``retry_after`` where the server gives one), several PDBs
    (500) Refused, 409 Conflict (another UID or revision), 404 Gone, no answer Unknown.

    A dry run meets the same budgets and answers, and changes nothing (hami-protocol section 11.5).
    """
    preconditions: dict[str, str] = {"uid": uid} if uid else {}
    if revision:
        preconditions["resourceVersion"] = revision
    options: dict[str, Any] = {"preconditions": preconditions} if preconditions else {}
    if dry_run:
        options["dryRun"] = ["All"]
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"namespace": namespace, "name": name},
        "deleteOptions": options,
    }
    return client.write("POST", f"/api/v1/namespaces/{namespace}/pods/{name}/eviction", body, timeout=_TIMEOUT)
