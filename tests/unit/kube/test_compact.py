"""Compaction saves memory and nothing else: what is decided on stays the same, and shared parts are really shared."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from defragd.hami.config import HamiConfig
from defragd.hami.translate import translate_pod
from defragd.kube import kinds, wire
from defragd.kube.decode import ListDecoder
from tests.support.effort import examples

words = st.sampled_from(["a", "b", "node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"])
tolerations = st.lists(
    st.fixed_dictionaries(
        {"key": words, "operator": st.sampled_from(["Exists", "Equal"]), "effect": st.sampled_from(["NoExecute", ""])},
        optional={"value": words, "tolerationSeconds": st.sampled_from([0, 300])},
    ),
    max_size=3,
)
amounts = st.dictionaries(
    st.sampled_from(["cpu", "memory", "nvidia.com/gpu", "nvidia.com/gpumem"]),
    st.sampled_from(["1", "2", "4k"]),
    max_size=3,
)
containers = st.lists(
    st.fixed_dictionaries(
        {"name": words},
        optional={"resources": st.fixed_dictionaries({}, optional={"limits": amounts, "requests": amounts})},
    ),
    min_size=1,
    max_size=2,
)
conditions = st.lists(
    st.fixed_dictionaries(
        {
            "type": st.sampled_from(["Ready", "PodScheduled", "Initialized", "ContainersReady"]),
            "status": st.sampled_from(["True", "False"]),
        },
        optional={"message": words, "lastTransitionTime": st.just("2026-09-01T02:00:00Z")},
    ),
    max_size=4,
    unique_by=lambda c: c["type"],
)
pods = st.builds(
    lambda spec, found, owner, node: {
        "metadata": {
            "namespace": "ns",
            "name": "x",
            "ownerReferences": [{"kind": "ReplicaSet", "name": owner, "uid": f"uid-{owner}", "controller": True}],
        },
        "spec": {"schedulerName": "hami-scheduler", "nodeName": node, **spec},
        "status": {"phase": "Running", "conditions": found},
    },
    st.fixed_dictionaries({"containers": containers, "tolerations": tolerations}),
    conditions,
    st.sampled_from(["o1", "o2"]),
    st.sampled_from(["n1", "n2", ""]),
)


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(pods, min_size=1, max_size=6))
def test_what_is_decided_on_stays_the_same(found: list[dict[str, Any]]) -> None:
    plain, compact = ListDecoder(wire.Pod, "Pod"), kinds.PODS.decoder()
    for obj in found:
        data = json.dumps(obj).encode()
        assert translate_pod(compact.item(data), HamiConfig()) == translate_pod(plain.item(data), HamiConfig())


def test_replicas_share_what_they_have_in_common() -> None:
    decoder = kinds.PODS.decoder()
    obj = {
        "metadata": {"namespace": "ns", "name": "x", "ownerReferences": [{"kind": "ReplicaSet", "uid": "u"}]},
        "spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": "1"}}}]},
        "status": {"conditions": [{"type": "Initialized"}, {"type": "Ready"}]},
    }
    one, two = decoder.page(json.dumps({"items": [obj, obj]}).encode()).items
    assert one.spec.containers[0].resources is two.spec.containers[0].resources
    assert one.metadata.owner_references is two.metadata.owner_references
    assert [c.type for c in one.status.conditions or ()] == ["Ready"]
