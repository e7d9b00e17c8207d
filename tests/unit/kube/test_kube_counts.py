"""Replica counts on the wire: who wrote one last, and how one is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from defragd.core.model import Workload
from defragd.hami.translate import translate_workload
from defragd.kube import wire
from defragd.kube.store import Hub, Store
from defragd.kube.writes import Fence, KubeWorkloads
from defragd.ports import Outcome
from tests.support.fake_api import FakeApi


def deployment(*managers: tuple[str, str], **spec: Any) -> Workload:
    fields = [{"manager": manager, "operation": "Update", "subresource": sub} for manager, sub in managers]
    meta = {"name": "web", "namespace": "ns", "uid": "u", "resourceVersion": "7", "managedFields": fields}
    return translate_workload(
        msgspec.convert({"metadata": meta, "spec": {"replicas": 2, **spec}}, wire.WorkloadObject), "Deployment"
    )


@pytest.mark.parametrize(
    ("managers", "surged"),
    [
        ((), ""),
        ((("kubectl", ""), ("kube-controller-manager", "status")), ""),
        ((("defragd-surge.abc-1", "scale"), ("kubectl", "")), "abc-1"),
        ((("defragd-surge.abc-1", ""),), ""),
        ((("defragd", "scale"),), ""),
    ],
)
def test_a_raised_count_is_known_by_its_writer(managers: Any, surged: str) -> None:
    assert deployment(*managers).surged_by == surged


def test_strategy_and_revision() -> None:
    assert deployment(strategy={"type": "Recreate"}).recreate
    assert not deployment(strategy={"type": "RollingUpdate"}).recreate
    assert not deployment().recreate
    assert deployment().revision == "7"


@pytest.mark.parametrize(
    ("status", "outcome"), [(200, Outcome.OK), (409, Outcome.CONFLICT), (403, Outcome.REFUSED), (404, Outcome.GONE)]
)
def test_scaling_is_a_patch_of_the_sub_resource(tmp_path: Path, status: int, outcome: Outcome) -> None:
    with FakeApi() as api:
        path = "/apis/apps/v1/namespaces/ns/deployments/web/scale"
        api.answer("PATCH", path, status, {"kind": "Scale", "metadata": {}, "message": "x"})
        client = api.client(tmp_path)
        answer = KubeWorkloads(client, Fence()).scale(deployment(), 3, manager="defragd-surge.abc")
        assert answer.outcome is outcome
        client.close()


def test_an_own_claim_says_nothing_of_what_others_wrote_before_it() -> None:
    """What a replica has seen is what its watch has shown: a claim of its own must not hide an older event."""
    store: Store[str] = Store(Hub())
    store.upsert("ns/a", "a", "5")
    assert store.upsert("ns/a", "claimed", "9", current=False)
    assert (store.get("ns/a"), store.latest) == ("claimed", 5)
    assert store.upsert("ns/b", "b", "7")
    assert (store.get("ns/b"), store.latest) == ("b", 7)
    assert not store.upsert("ns/a", "older", "8")
