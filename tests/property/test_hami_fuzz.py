"""Whatever stands in annotations and resources: no crash, a named reason, and no device ever given twice."""

from __future__ import annotations

import json

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from defragd.core.fit import FitConfig, fit_pod
from defragd.core.kube_fit import kube_fit
from defragd.core.snapshot import collapse
from defragd.errors import CodecError
from defragd.hami.admission import Denial, admit_pod
from defragd.hami.codec import read_lock, read_mig, read_pair_scores, read_register, read_slots, write_slots
from defragd.hami.config import parse_device_config
from defragd.hami.translate import assemble, translate_node, translate_pod
from defragd.hami.vendors import VENDORS, backends
from defragd.kube import wire
from tests.support.effort import examples
from tests.unit.hami.worlds import CONFIG

PROFILE = settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.too_slow])

words = st.sampled_from(
    [
        "GPU-a",
        "GPU-b",
        "NVIDIA",
        "1",
        "-1",
        "4096",
        "99999999999",
        "true",
        "",
        " ",
        ",",
        ":",
        ";",
        "[1-0]",
        "null",
        "{}",
    ]
)
noise = st.one_of(
    st.text(max_size=60),
    st.lists(words, max_size=12).map("".join),
    st.lists(words, max_size=12).map(",".join),
    st.lists(words, max_size=12).map(":".join),
)
scalars = st.one_of(st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=8))
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=6), inner, max_size=3)),
)
field_names = st.sampled_from(
    ["id", "index", "count", "devmem", "devcore", "type", "numa", "mode", "health", "migProfiles", "custominfo", "ID"]
)
odd_register = st.lists(st.dictionaries(field_names, values, max_size=8), max_size=3).map(
    lambda v: json.dumps(v, allow_nan=True)
)
register_keys = [b.register for b in backends(CONFIG).values() if b.register]
other_keys = [
    "hami.io/device-cordon",
    "hami.io/mutex.lock",
    "hami.io/node-nvidia-score",
    "hami.io/node-handshake",
    "hami.io/node-future-register",
    "enflame.com/gcu-drs-capacity",
    "metax-tech.com/node-gpu-devices",
]
node_resources = sorted({n for b in backends(CONFIG).values() for n in b.names.all()} | {"cpu", "memory", "pods"})
quantities = st.one_of(
    st.sampled_from(["0", "1", "2", "100", "4k", "16Gi", "500m", "-1", "1e30", "abc", "", "9E"]),
    st.integers(-5, 10**6).map(str),
    st.integers(-(2**80), 2**80),
    st.floats(allow_nan=False),
)
amounts = st.dictionaries(st.sampled_from(node_resources), quantities, max_size=6)


@PROFILE
@given(noise | odd_register)
def test_decoders_give_values_or_one_error(text) -> None:
    for read in (
        lambda: read_register("k", text),
        lambda: read_slots("k", text),
        lambda: read_mig(text),
        lambda: read_pair_scores(text),
    ):
        said = ""
        try:
            read()
        except CodecError as error:
            said = str(error)
        assert "\n" not in said
        assert len(said) < 400
    read_lock(text)


@PROFILE
@given(
    st.dictionaries(st.sampled_from(register_keys + other_keys), noise | odd_register | values.map(str), max_size=5),
    amounts,
)
def test_any_node_is_translated(annotations, allocatable) -> None:
    raw = {"metadata": {"name": "n", "annotations": annotations}, "status": {"allocatable": allocatable}}
    node, problems = translate_node(msgspec.convert(raw, wire.Node), CONFIG)
    assert node.name == "n"
    assert all(p.object == "Node/n" and p.reason and p.detail for p in problems)
    unreadable = [d for d in node.devices if not d.uuid]
    assert unreadable == []


container = st.fixed_dictionaries(
    {"name": st.sampled_from(["a", "b"])},
    optional={
        "resources": st.fixed_dictionaries({}, optional={"limits": amounts, "requests": amounts}),
        "restartPolicy": st.sampled_from(["Always", "x"]),
        "securityContext": st.fixed_dictionaries({"privileged": st.booleans()}),
    },
)
pod_keys = [
    "hami.io/vgpu-node",
    "hami.io/vgpu-mig-allocations",
    "hami.io/gpu-scheduler-policy",
    "hami.io/node-scheduler-policy",
    "hami.io/device-scoring-weights",
    "nvidia.com/numa-bind",
    "nvidia.com/vgpu-mode",
    "nvidia.com/use-gpuuuid",
    "nvidia.com/nouse-gputype",
    "scheduling.hami.placement.com/pinned",
    "scheduling.hami.placement.com/steered",
    *[b.allocated for b in backends(CONFIG).values()],
]
raw_pods = st.fixed_dictionaries(
    {
        "metadata": st.fixed_dictionaries(
            {"name": st.sampled_from(["p", "q"]), "namespace": st.just("t")},
            optional={
                "annotations": st.dictionaries(st.sampled_from(pod_keys), noise, max_size=6),
                "creationTimestamp": noise,
                "deletionTimestamp": noise,
            },
        ),
        "spec": st.fixed_dictionaries(
            {"containers": st.lists(container, min_size=1, max_size=3)},
            optional={"initContainers": st.lists(container, max_size=2)},
        ),
    }
)

REGISTER = json.dumps(
    [
        {
            "id": "GPU-a",
            "count": 4,
            "devmem": 10000,
            "devcore": 100,
            "type": "NVIDIA A",
            "mode": "hami-core",
            "health": True,
        },
        {"id": "GPU-b", "count": 4, "devmem": 10000, "devcore": 100, "type": "NVIDIA B", "mode": "mig", "health": True},
    ]
)
NODE = {
    "metadata": {"name": "n", "annotations": {"hami.io/node-nvidia-register": REGISTER}},
    "status": {"allocatable": {"cpu": "8", "memory": "8Gi", "pods": "10", "nvidia.com/gpu": "8"}},
}


@PROFILE
@given(raw_pods)
def test_any_pod_is_translated_and_judged(raw) -> None:
    pod = translate_pod(msgspec.convert(raw, wire.Pod), CONFIG)
    node, problems = translate_node(msgspec.convert(NODE, wire.Node), CONFIG)
    snapshot = assemble(nodes={"n": node}, pods={pod.key: pod}, problems=problems)
    for config in (FitConfig(), FitConfig(as_hami=True, obey_pin=True)):
        fit = fit_pod(snapshot, pod, "n", vendors=VENDORS, config=config)
        assert fit.ok or (fit.reason is not None and fit.text)
    verdict = kube_fit(snapshot, pod, "n")
    assert verdict.ok or (verdict.reason is not None and verdict.detail)


@PROFILE
@given(raw_pods, st.booleans())
def test_admission_gives_a_pod_or_a_denial(raw, webhook) -> None:
    snapshot = assemble(nodes={}, pods={})
    answer = admit_pod(raw, CONFIG, snapshot, webhook=webhook)
    if isinstance(answer, Denial):
        assert answer.code in (403, 422, 500)
        assert answer.message
    else:
        assert answer["spec"]["schedulerName"]
        msgspec.convert(answer, wire.Pod)


good_amounts = st.fixed_dictionaries(
    {"nvidia.com/gpu": st.sampled_from(["1", "2"])},
    optional={
        "nvidia.com/gpumem": st.sampled_from(["1k", "2500", "5000"]),
        "nvidia.com/gpucores": st.sampled_from(["0", "10", "50", "100"]),
        "nvidia.com/gpumem-percentage": st.sampled_from(["10", "50", "100"]),
    },
)


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(
        st.tuples(
            st.lists(good_amounts, min_size=1, max_size=2), st.sampled_from(["binpack", "spread", "mutex", "numa"])
        ),
        min_size=1,
        max_size=12,
    )
)
def test_placing_pods_one_after_another_never_overbooks(asked) -> None:
    """What fit allows, the books can hold: slots, memory, cores, and nobody beside an exclusive pod."""
    node, _ = translate_node(msgspec.convert(NODE, wire.Node), CONFIG)
    pods: dict = {}
    for number, (limits, policy) in enumerate(asked):
        raw = {
            "metadata": {
                "name": f"p{number}",
                "namespace": "t",
                "annotations": {"hami.io/gpu-scheduler-policy": policy, "nvidia.com/use-gpuuuid": "GPU-a"},
            },
            "spec": {"containers": [{"name": f"c{i}", "resources": {"limits": one}} for i, one in enumerate(limits)]},
        }
        pod = translate_pod(msgspec.convert(raw, wire.Pod), CONFIG)
        fit = fit_pod(assemble(nodes={"n": node}, pods=pods), pod, "n", vendors=VENDORS)
        if not fit.ok:
            continue
        slots: dict[int, list] = {}
        for a in fit.allocations:
            slots.setdefault(a.slot, []).append(a)
        raw["metadata"]["annotations"] |= {
            "hami.io/vgpu-node": "n",
            "hami.io/vgpu-devices-allocated": "".join(
                "".join(f"{a.uuid},NVIDIA,{a.memory_mib},{a.cores}:" for a in slot) + ";" for slot in slots.values()
            ),
        }
        booked = translate_pod(msgspec.convert(raw, wire.Pod), CONFIG)
        assert booked.allocations == fit.allocations
        pods[booked.key] = booked
    use = assemble(nodes={"n": node}, pods=pods).usage("n")["GPU-a"]
    assert use.slots <= 4
    assert use.memory_mib <= 10000
    assert use.cores <= 100
    holders = [collapse(pods[key].allocations)["GPU-a"] for key in use.holders]
    assert len(holders) == 1 or all(cores < 100 for _, _, cores in holders)


@PROFILE
@given(values)
def test_any_device_config_is_read_or_refused(document) -> None:
    if isinstance(document, dict):
        parse_device_config(document)
        parse_device_config({"nvidia": document, "vnpus": {"configs": [document]}, "iluvatars": [document]})


@PROFILE
@given(noise)
def test_slots_survive_a_round_trip(text) -> None:
    try:
        slots = read_slots("k", text)
    except CodecError:
        return
    assert read_slots("k", write_slots(slots, packed=False)) == slots
