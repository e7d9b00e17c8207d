"""HAMi's fit on small worlds: exact pins, our own safety on top of HAMi's rules, and the choice of a node.

The rules themselves are judged by HAMi's recorded decisions (tests/unit/hami/test_traces.py).
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from defragd.core.fit import FitConfig, choose_node, fit_pod
from defragd.core.model import Allocation, Hold, Quota
from defragd.core.reasons import Reason
from defragd.hami.translate import translate_pod
from defragd.hami.vendors import VENDORS
from tests.unit.hami.worlds import CONFIG, device, node, pod, world

SLICE = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "4000", "nvidia.com/gpucores": "30"}
WHOLE = {"nvidia.com/gpu": "1", "nvidia.com/gpucores": "100"}
PAIR = {"nvidia.com/gpu": "2", "nvidia.com/gpumem": "4000"}


def two_devices(*pods):
    return world([node("n1", [device("g0"), device("g1", index=1)])], list(pods))


def held(name: str, uuid: str, memory: int, cores: int, **more):
    return pod(name, [SLICE], node="n1", held=f"{uuid},NVIDIA,{memory},{cores}:;", **more)


def fit(snapshot, obj, *, config: FitConfig | None = None, **more):
    value = translate_pod(obj, CONFIG)
    return fit_pod(snapshot, value, "n1", vendors=VENDORS, config=config or FitConfig(), **more)


def test_an_exact_pin_is_taken() -> None:
    found = fit(two_devices(), pod(limits=[SLICE]), devices=("g0",))
    assert found.ok
    assert found.allocations == (Allocation(0, "g0", 4000, 30),)


@pytest.mark.parametrize(
    ("limits", "devices", "reason"),
    [
        (SLICE, ("missing",), Reason.DEVICE_TYPE),
        (SLICE, ("g0", "g1"), Reason.DEVICE_COUNT),
        (PAIR, ("g0",), Reason.DEVICE_FULL),
        (SLICE, ("g0",), None),
        (PAIR, ("g1", "g0"), None),
    ],
)
def test_a_pin_must_be_met_exactly(limits, devices, reason) -> None:
    found = fit(two_devices(), pod(limits=[limits]), devices=devices)
    assert (found.ok, found.reason) == (reason is None, reason)


def test_reason_text_counts_devices() -> None:
    snapshot = two_devices(held("a", "g0", 40000, 10))
    found = fit(snapshot, pod(limits=[SLICE]), devices=("g0",))
    assert found.text == "1/2 CardInsufficientMemory, 1/2 CardUuidMismatch"
    assert found.reason == Reason.DEVICE_FULL


def test_exclusive_works_both_ways() -> None:
    shared = two_devices(held("a", "g0", 1000, 10))
    assert fit(shared, pod(limits=[WHOLE]), devices=("g0",)).text.startswith("1/2 CardInsufficientMemory")
    tight = {**WHOLE, "nvidia.com/gpumem": "100"}
    assert "CardInsufficientCore" in fit(shared, pod(limits=[tight]), devices=("g0",)).text
    idle_cores = two_devices(held("a", "g0", 1000, 0))
    assert "ExclusiveDeviceAllocateConflict" in fit(idle_cores, pod(limits=[tight]), devices=("g0",)).text
    full = two_devices(held("a", "g0", 1000, 100))
    no_cores = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "100"}
    assert "CardComputeUnitsExhausted" in fit(full, pod(limits=[no_cores]), devices=("g0",)).text


def test_a_bound_pod_counts_against_its_own_replacement_unless_left_out() -> None:
    whole = pod("a", [WHOLE], node="n1", held="g0,NVIDIA,40960,100:;")
    snapshot = two_devices(whole)
    assert not fit(snapshot, whole, devices=("g0",)).ok
    assert fit(snapshot, whole, devices=("g0",), without=frozenset({"t/a"})).ok


def test_a_pending_pod_never_counts_against_itself() -> None:
    stale = pod(
        "a", [WHOLE], annotations={"hami.io/vgpu-devices-allocated": "g0,NVIDIA,40960,100:;", "hami.io/vgpu-node": "n1"}
    )
    snapshot = two_devices(stale)
    assert snapshot.usage("n1")["g0"].slots == 1
    assert fit(snapshot, stale, devices=("g0",)).ok
    assert not fit(snapshot, pod("b", [WHOLE]), devices=("g0",)).ok, "others see the stale booking"


def test_holds_count_and_can_be_left_out() -> None:
    hold = Hold("mv-1", "n1", (Allocation(0, "g0", 40960, 100),))
    snapshot = two_devices().with_holds([hold])
    assert not fit(snapshot, pod(limits=[SLICE]), devices=("g0",)).ok
    assert fit(snapshot, pod(limits=[SLICE]), devices=("g0",), without=frozenset({"hold:mv-1"})).ok
    assert fit(snapshot, pod(limits=[SLICE]), devices=("g0",), config=FitConfig(as_hami=True)).ok


def test_distrusted_devices_are_refused_by_name_and_avoided() -> None:
    snapshot = two_devices()
    n1 = snapshot.nodes["n1"]
    doubtful = tuple(replace(d, distrusted="books differ") if d.uuid == "g1" else d for d in n1.devices)
    snapshot = replace(snapshot, nodes={"n1": replace(n1, devices=doubtful)})
    named = fit(snapshot, pod(limits=[SLICE]), devices=("g1",))
    assert (named.reason, named.text) == (Reason.DEVICE_DISTRUSTED, "device g1: books differ")
    assert fit(snapshot, pod(limits=[SLICE])).allocations[0].uuid == "g0"
    assert fit(snapshot, pod(limits=[SLICE]), config=FitConfig(as_hami=True)).allocations[0].uuid == "g1"


def test_the_users_lists_apply_beside_the_pin() -> None:
    snapshot = two_devices()
    banned = pod(limits=[SLICE], annotations={"nvidia.com/nouse-gpuuuid": "g0"})
    assert not fit(snapshot, banned, devices=("g0",)).ok
    typed = pod(limits=[SLICE], annotations={"nvidia.com/use-gputype": "H100"})
    assert fit(snapshot, typed, devices=("g0",)).reason == Reason.DEVICE_TYPE


def test_our_own_pin_and_steering_do_not_bind_planning_but_bind_hami() -> None:
    snapshot = two_devices()
    ours = pod(
        limits=[SLICE],
        annotations={"nvidia.com/use-gpuuuid": "g0", "scheduling.hami.placement.com/pinned": "mv-1"},
    )
    assert fit(snapshot, ours, devices=("g1",)).ok
    obeyed = fit(snapshot, ours, config=FitConfig(as_hami=True, obey_pin=True))
    assert obeyed.allocations[0].uuid == "g0"
    steered = pod(
        limits=[SLICE],
        annotations={"nvidia.com/nouse-gpuuuid": "g1", "scheduling.hami.placement.com/steered": "g1"},
    )
    assert fit(snapshot, steered, devices=("g1",)).ok
    assert fit(snapshot, steered, config=FitConfig(as_hami=True, obey_pin=True)).allocations[0].uuid == "g0"


def test_a_pod_without_requests_passes_through() -> None:
    found = fit(two_devices(), pod(limits=[{"cpu": "1"}]))
    assert (found.ok, found.allocations) == (True, ())


@pytest.mark.parametrize(
    ("obj", "reason"),
    [
        (pod(limits=[SLICE], annotations={"hami.io/device-scoring-weights": "slot=1"}), Reason.MALFORMED_ANNOTATION),
        (pod(limits=[SLICE], annotations={"hami.io/new-devices-allocated": "x"}), Reason.UNREADABLE_ALLOCATION),
        (pod(limits=[{"nvidia.com/gpu": "3"}]), Reason.DEVICE_COUNT),
        (pod(limits=[{"hygon.com/dcunum": "1"}]), Reason.DEVICE_COUNT),
    ],
)
def test_refusals_have_reasons(obj, reason) -> None:
    assert fit(two_devices(), obj).reason == reason


def test_unknown_node() -> None:
    value = translate_pod(pod(limits=[SLICE]), CONFIG)
    found = fit_pod(two_devices(), value, "nowhere", vendors=VENDORS)
    assert (found.reason, found.text) == (Reason.NODE_UNKNOWN, "node unregistered")


def test_quota_of_the_namespace() -> None:
    snapshot = two_devices(held("a", "g0", 4000, 30))
    snapshot = replace(snapshot, quotas=(Quota("t", "q", "NVIDIA", 7000, None),))
    refused = fit(snapshot, pod(limits=[SLICE]), devices=("g1",))
    assert refused.reason == Reason.QUOTA_EXCEEDED
    assert fit(snapshot, pod(limits=[SLICE]), devices=("g1",), without=frozenset({"t/a"})).ok


def test_a_sidecar_must_fit_beside_the_app() -> None:
    side = {"name": "s", "restartPolicy": "Always", "resources": {"limits": {**SLICE, "nvidia.com/gpumem": "30000"}}}
    big = {**SLICE, "nvidia.com/gpumem": "30000"}
    both = pod(limits=[big], init=[side])
    assert fit(two_devices(), both, devices=("g0",)).reason == Reason.DEVICE_FULL
    assert fit(two_devices(), both, devices=("g0",), config=FitConfig(as_hami=True)).ok, "HAMi overbooks here"


def test_init_containers_take_turns_with_the_app() -> None:
    first = {"name": "i", "resources": {"limits": {**SLICE, "nvidia.com/gpumem": "30000"}}}
    found = fit(two_devices(), pod(limits=[{**SLICE, "nvidia.com/gpumem": "30000"}], init=[first]), devices=("g0",))
    assert found.ok
    assert [(a.slot, a.init) for a in found.allocations] == [(0, True), (1, False)]


def test_hamis_own_books_forget_a_packed_slot() -> None:
    """Once an init container without devices has ended, HAMi takes the app's packed slot for its own and drops it."""
    ended = {"phase": "Running", "initContainerStatuses": [{"name": "i", "state": {"terminated": {"exitCode": 0}}}]}
    init = [{"name": "i", "resources": {}}]
    busy = held("a", "g0", 40000, 90, init=init, status=ended)
    snapshot = two_devices(busy)
    assert not fit(snapshot, pod("b", [SLICE]), devices=("g0",)).ok, "the truth"
    assert fit(snapshot, pod("b", [SLICE]), devices=("g0",), config=FitConfig(as_hami=True)).ok, "HAMi's belief"


def test_node_choice_by_policy_and_ties() -> None:
    nodes = [node(name, [device(f"{name}-g0")]) for name in ("n1", "n2", "n3")]
    busy = pod("a", [SLICE], node="n2", held="n2-g0,NVIDIA,4000,30:;")
    snapshot = world(nodes, [busy])
    value = translate_pod(pod("b", [SLICE]), CONFIG)
    assert choose_node(snapshot, value, snapshot.nodes, vendors=VENDORS).tied == ("n2",)
    spread = replace(value, selection=replace(value.selection, node_policy="spread"))
    assert choose_node(snapshot, spread, snapshot.nodes, vendors=VENDORS).tied == ("n1", "n3")
    huge = translate_pod(pod("c", [{"nvidia.com/gpu": "2"}]), CONFIG)
    refused = choose_node(snapshot, huge, snapshot.nodes, vendors=VENDORS)
    assert refused.tied == ()
    assert {f.text for f in refused.fits.values()} == {"NodeInsufficientDevice"}


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        ("mutex", "1/2 ExclusiveDeviceAllocateConflict, 1/2 NumaNotFit"),
        (" mutex ", "1/2 AllocatedCardsInsufficientRequest, 1/2 ExclusiveDeviceAllocateConflict"),
        ("mutex,binpack", "1/2 AllocatedCardsInsufficientRequest, 1/2 ExclusiveDeviceAllocateConflict"),
    ],
)
def test_mutex_alone_orders_by_use_even_with_a_numa_bind(policy, says) -> None:
    """HAMi tries the free device (NUMA 0) first, then the used one of NUMA 1; with a chain NUMA goes first."""
    notes = {"hami.io/gpu-scheduler-policy": policy, "nvidia.com/numa-bind": "true"}
    snapshot = world([node("n1", [device("free"), device("used", numa=1, index=1)])], [held("e", "used", 1000, 10)])
    asking = pod("p", [{"nvidia.com/gpu": "2", "nvidia.com/gpumem": "100"}], annotations=notes)
    assert fit(snapshot, asking, config=FitConfig(as_hami=True)).text == says


def test_a_policy_by_flag_counts_where_the_pod_names_none() -> None:
    """The snapshot carries HAMi's flags; a pod's own annotation goes before them."""
    snapshot = two_devices(held("e", "g0", 1000, 10))
    packed = replace(snapshot, device_policy="binpack")
    assert fit(snapshot, pod("p", [SLICE])).allocations[0].uuid == "g1"
    assert fit(packed, pod("p", [SLICE])).allocations[0].uuid == "g0"
    notes = {"hami.io/gpu-scheduler-policy": "spread"}
    assert fit(packed, pod("p", [SLICE], annotations=notes)).allocations[0].uuid == "g1"
    assert fit(packed, pod("p", [SLICE]), config=FitConfig(device_policy="spread")).allocations[0].uuid == "g1"
