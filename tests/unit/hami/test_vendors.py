"""Backends beside NVIDIA: inventory, requests, selection, fit and what is written, one small world each."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import pytest

import defragd.core
from defragd.core.fit import FitConfig, choose_node, fit_pod
from defragd.core.fit_wings import bubbles, choose
from defragd.hami.config import HamiConfig, parse_device_config
from defragd.hami.translate import assemble, translate_node, translate_pod
from defragd.hami.vendors import VENDORS, backends, managed_resources, nouse_annotation, pin_annotations, vendors_for
from defragd.hami.written import predict_annotations
from defragd.kube import wire
from tests.unit.hami.worlds import CONFIG, pod


def node(name: str = "n1", annotations: dict[str, str] | None = None, **capacity: str):
    raw = {
        "metadata": {"name": name, "annotations": annotations or {}},
        "status": {"capacity": capacity, "allocatable": capacity},
    }
    return translate_node(msgspec.convert(raw, wire.Node), CONFIG)[0]


def running(name: str, key: str, value: str, on: str = "n1", **notes: str):
    return pod(name, node=on, annotations={key: value, "hami.io/vgpu-node": on, **notes})


def ask(here, limits: dict[str, str], others=(), annotations=None, *, devices=None, soft=False):
    nodes = {n.name: n for n in (here if isinstance(here, list) else [here])}
    pods = [translate_pod(p, CONFIG) for p in others]
    snapshot = assemble(nodes=nodes, pods={p.key: p for p in pods})
    value = translate_pod(pod("new", [limits], annotations=annotations), CONFIG)
    config = FitConfig(as_hami=True, soft_slicing=soft)
    fit = fit_pod(snapshot, value, next(iter(nodes)), vendors=VENDORS, devices=devices, config=config)
    return fit, snapshot, value


def got(fit) -> list[tuple[str, int, int]]:
    return [(a.uuid, a.memory_mib, a.cores) for a in fit.allocations]


# -- the table --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("word", sorted(VENDORS))
def test_every_backend_can_be_pinned_or_says_that_it_cannot(word) -> None:
    facts = VENDORS[word]
    if facts.pinnable:
        (key,) = pin_annotations([word], ["a", "b", "a"]).items()
        assert key[1] == "a,b"
        assert nouse_annotation(word)
    else:
        with pytest.raises(ValueError, match="cannot be pinned"):
            pin_annotations([word], ["a"])


def test_pins_need_devices_and_known_vendors() -> None:
    with pytest.raises(ValueError, match="at least one"):
        pin_annotations(["NVIDIA"], [])
    with pytest.raises(ValueError, match="cannot be pinned"):
        pin_annotations(["Nobody"], ["a"])
    assert nouse_annotation("Nobody") == ""


def test_keys_are_unique() -> None:
    table = backends(CONFIG).values()
    for field in ("allocated", "register"):
        found = [getattr(b, field) for b in table if getattr(b, field)]
        assert len(found) == len(set(found))


def test_the_core_knows_no_vendor_by_name() -> None:
    words = {"nvidia", "huawei", "ascend", "metax", "kunlun", "hygon", "cambricon", "mthreads", "iluvatar", "enflame"}
    for path in Path(defragd.core.__path__[0]).glob("fit*.py"):
        code = re.sub(r'""".*?"""|#[^\n]*', "", path.read_text(), flags=re.S)
        assert not [w for w in words if w in code.lower()], path.name


def test_names_follow_the_configuration() -> None:
    config = parse_device_config(
        {
            "nvidia": {"resourceCountName": "corp.com/gpu", "defaultMemory": "2000", "memoryFactor": 2},
            "iluvatars": [{"commonWord": "BI-V200", "resourceCountName": "iluvatar.ai/BI-V200-vgpu"}],
            "vnpus": {"hamiVnpuCore": True, "configs": [{"commonWord": "Ascend999", "memoryAllocatable": "8"}]},
            "unheard": {"x": 1},
        }
    )
    assert "corp.com/gpu" in managed_resources(config)
    assert config.nvidia.memory == "nvidia.com/gpumem"
    assert (config.default_memory, config.memory_factor, config.ascend_soft_slicing) == (2000, 2, True)
    assert {"BI-V200", "Ascend999"} <= set(vendors_for(config))
    assert "BI-V100" not in vendors_for(config)
    asked = translate_pod(pod(limits=[{"corp.com/gpu": "1", "nvidia.com/gpumem": "3k"}]), config).requests
    assert asked[0].memory_mib == 6000


def test_a_wrong_type_in_the_configuration_keeps_the_default_and_is_noted() -> None:
    config = parse_device_config({"nvidia": {"defaultMemory": "many", "resourceCountName": 3}})
    assert config.default_memory == HamiConfig().default_memory
    assert len(config.notes) == 2


# -- requests ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({"nvidia.com/gpu": "1"}, ("NVIDIA", 1, 0, 100, 0)),
        (
            {"nvidia.com/gpu": "2", "nvidia.com/gpumem": "4k", "nvidia.com/gpumem-percentage": "50"},
            ("NVIDIA", 2, 4000, 0, 0),
        ),
        ({"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "150"}, ("NVIDIA", 1, 0, 100, 0)),
        ({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "0", "nvidia.com/gpucores": "1k"}, ("NVIDIA", 1, 0, 100, 1000)),
        ({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "16Gi"}, None),
        ({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1.5"}, None),
        ({"nvidia.com/gpu": "0"}, None),
        ({"hygon.com/dcunum": "1"}, ("DCU", 1, 0, 100, 100)),
        ({"hygon.com/dcunum": "1", "hygon.com/dcumem": "0.5"}, ("DCU", 1, 0, 100, 100)),
        ({"hygon.com/dcunum": "1", "hygon.com/dcumem": "-1"}, None),
        ({"iluvatar.ai/MR-V100-vgpu": "1", "iluvatar.ai/MR-V100.vMem": "4"}, ("MR-V100", 1, 1024, 0, 0)),
        ({"iluvatar.ai/MR-V100-vgpu": "1", "iluvatar.ai/MR-V100.vMem": "0.5"}, None),
        ({"cambricon.com/vmlu": "1", "cambricon.com/mlu.smlu.vmemory": "4"}, ("MLU", 1, 1024, 0, 100)),
        (
            {"mthreads.com/vgpu": "2", "mthreads.com/sgpu-memory": "192", "mthreads.com/sgpu-core": "32"},
            ("Mthreads", 2, 49152, 0, 16),
        ),
        ({"huawei.com/Ascend910B4": "1", "huawei.com/Ascend910B4-memory": "16384"}, ("Ascend910B4", 1, 16384, 0, 0)),
        ({"metax-tech.com/sgpu": "1", "metax-tech.com/vmemory": "4"}, ("Metax-SGPU", 1, 4096, 0, 100)),
        ({"metax-tech.com/sgpu": "1", "metax-tech.com/vmemory": "512Mi"}, ("Metax-SGPU", 1, 512, 0, 100)),
        ({"kunlunxin.com/vxpu": "1", "kunlunxin.com/vxpu-memory": "30000"}, ("XPU", 1, 49152, 0, 50)),
        ({"kunlunxin.com/vxpu": "1"}, ("XPU", 1, 98304, 0, 100)),
        ({"amd.com/gpu": "1", "amd.com/gpucores": "101"}, None),
        ({"enflame.com/drs-gcu": "3"}, ("Enflame", 1, 3, 0, -1)),
        ({"enflame.com/gcu-memory": "6"}, ("Enflame", 1, 6, 0, 0)),
        ({"birentech.com/gpu": "2"}, ("Biren", 2, 0, 100, 0)),
    ],
)
def test_requests(limits, expected) -> None:
    found = translate_pod(pod(limits=[limits]), CONFIG).requests
    assert [(r.vendor, r.count, r.memory_mib, r.memory_pct, r.cores) for r in found] == ([expected] if expected else [])


def test_requests_count_where_there_is_no_limit() -> None:
    obj = pod()
    obj.spec.containers[0].resources.requests = {"nvidia.com/gpu": "1"}
    assert translate_pod(obj, CONFIG).requests[0].count == 1


# -- one device for the whole pod -------------------------------------------------------------------------------------


def test_all_containers_on_one_device() -> None:
    here = node(**{"mthreads.com/sgpu-core": "32", "mthreads.com/sgpu-memory": "192"})
    one = {"mthreads.com/vgpu": "1", "mthreads.com/sgpu-memory": "64", "mthreads.com/sgpu-core": "8"}
    snapshot = assemble(nodes={"n1": here}, pods={})
    both = translate_pod(pod(limits=[one, one]), CONFIG)
    fit = fit_pod(snapshot, both, "n1", vendors=VENDORS)
    assert fit.text == "1/2 CardInsufficientMemory, 1/2 CardNotFoundCustomFilterRule"
    small = {**one, "mthreads.com/sgpu-memory": "32"}
    fit = fit_pod(snapshot, translate_pod(pod(limits=[small, small]), CONFIG), "n1", vendors=VENDORS)
    assert len({a.uuid for a in fit.allocations}) == 1


def test_places_of_containers_without_a_request_are_written_where_the_model_is_the_word() -> None:
    here = node(**{"cambricon.com/mlu.smlu.vcore": "100", "cambricon.com/mlu.smlu.vmemory": "64"})
    snapshot = assemble(nodes={"n1": here}, pods={})
    value = translate_pod(pod(limits=[{"cpu": "1"}, {"cambricon.com/vmlu": "1"}]), CONFIG)
    fit = fit_pod(snapshot, value, "n1", vendors=VENDORS)
    written = predict_annotations(value, here, fit, CONFIG)
    text = ";n1-cambricon-mlu-0,MLU,16384,100:;"
    assert written["hami.io/cambricon-mlu-devices-allocated"] == text
    again = translate_pod(
        pod(
            limits=[{"cpu": "1"}, {"cambricon.com/vmlu": "1"}],
            node="n1",
            annotations={"hami.io/cambricon-mlu-devices-allocated": text, "hami.io/vgpu-node": "n1"},
        ),
        CONFIG,
    )
    assert again.allocations == fit.allocations


# -- Ascend -----------------------------------------------------------------------------------------------------------


def ascend(word: str = "Ascend910B4", networks=None, count: int = 4):
    devices = [
        {"id": f"NPU-{i}", "index": i, "count": 4, "devmem": 32768, "devcore": 20, "type": word, "health": True}
        | ({"custominfo": {"NetworkID": networks[i]}} if networks else {})
        for i in range(count)
    ]
    return node(annotations={f"hami.io/node-register-{word}": json.dumps(devices)})


def npus(count: int, word: str = "Ascend910B4") -> dict[str, str]:
    return {f"huawei.com/{word}": str(count), f"huawei.com/{word}-memory": "32768"}


def test_devices_of_the_larger_network_group_first() -> None:
    fit, *_ = ask(ascend(networks=[0, 1, 1, 1]), npus(2))
    assert {u for u, *_ in got(fit)} <= {"NPU-1", "NPU-2", "NPU-3"}
    assert fit.score == 10.0


def test_groups_of_one_size_are_not_predicted_but_a_pin_is() -> None:
    here = ascend(networks=[0, 0, 1, 1])
    fit, *_ = ask(here, npus(2))
    assert (fit.ok, fit.text, fit.reason) == (False, "1/4 Unpredictable", "Unjudged")
    pinned, *_ = ask(here, npus(2), devices=("NPU-0", "NPU-1"))
    assert pinned.ok
    assert ask(here, npus(4))[0].ok


def test_soft_slicing_needs_the_nodes_consent() -> None:
    wish = {"huawei.com/vnpu-mode": "hami-core"}
    limits = {
        "huawei.com/Ascend910B4": "1",
        "huawei.com/Ascend910B4-memory": "1000",
        "huawei.com/Ascend910B4-core": "50",
    }
    assert ask(ascend(), limits, annotations=wish)[0].text == "1/4 ModeNotFit"
    assert ask(ascend(), limits, annotations=wish, soft=True)[0].ok
    assert ask(ascend(), limits)[0].text == "4/4 CardInsufficientCore"


def test_whole_modules_of_two() -> None:
    here = ascend("Ascend910C")
    used = running("a", "hami.io/Ascend910C-devices-allocated", "NPU-0,Ascend910C,32768,0:;")
    fit, *_ = ask(here, npus(2, "Ascend910C"), [used])
    assert [u for u, *_ in got(fit)] == ["NPU-3", "NPU-2"]
    assert ask(here, npus(2, "Ascend910C"))[0].text == "1/4 Unpredictable"


# -- two wings --------------------------------------------------------------------------------------------------------


class _Spot:
    def __init__(self, index: int) -> None:
        self.device = type("D", (), {"index": index})()


@pytest.mark.parametrize(
    ("free", "count", "taken"),
    [
        ("11111111", 8, [0, 1, 2, 3, 4, 5, 6, 7]),
        ("01111111", 8, []),
        ("11111111", 1, [0]),
        ("11111000", 1, [4]),
        ("11101100", 1, [0]),
        ("11001110", 2, [0, 1]),
        ("11101100", 2, [4, 5]),
        ("11101111", 4, [4, 5, 6, 7]),
        ("10001000", 2, [0, 4]),
        ("10000100", 2, []),
        ("11001100", 4, [0, 1, 4, 5]),
        ("11101110", 4, [0, 1, 4, 5]),
        ("10000000", 2, []),
        ("11111111", 3, []),
    ],
)
def test_sets_in_two_wings(free, count, taken) -> None:
    spots = [_Spot(i) for i in range(8)]
    assert choose(spots, lambda s: free[s.device.index] == "1", count) == taken  # type: ignore[arg-type]


def test_broken_wings() -> None:
    assert [bubbles(x) for x in ([], [0], [0, 1], [0, 1, 2, 3], [0, 4], [0, 1, 2, 3, 4])] == [1, 3, 2, 1, 4, 2]


def test_whole_devices_in_wings() -> None:
    here = node(**{"kunlunxin.com/xpu": "8"})
    used = running("a", "hami.io/kunlun-allocated", "n1-kunlun-0,kunlun,98304,100:;")
    fit, *_ = ask(here, {"kunlunxin.com/xpu": "1"}, [used])
    (one,) = got(fit)
    assert one[1:] == (98304, 100)
    assert one[0] != "n1-kunlun-0"
    pinned, *_ = ask(here, {"kunlunxin.com/xpu": "1"}, [used], {"baidu.com/use-gpuuuid": "n1-kunlun-0"})
    assert pinned.text == "7/8 CardUuidMismatch"


def test_equal_slices_only() -> None:
    register = [
        {"id": f"XPU-{i}", "index": i, "count": 4, "devmem": 98304, "devcore": 100, "type": "XPU-P800", "health": True}
        for i in range(8)
    ]
    here = node(annotations={"hami.io/node-register-xpu": json.dumps(register)})
    used = [running(f"a{i}", "hami.io/xpu-devices-allocated", f"XPU-{i},XPU,49152,50:;") for i in range(8)]
    quarter = {"kunlunxin.com/vxpu": "1", "kunlunxin.com/vxpu-memory": "24576"}
    half = {**quarter, "kunlunxin.com/vxpu-memory": "49152"}
    assert ask(here, quarter, used)[0].text == "1/8 NumaNotFit"
    assert ask(here, half, used)[0].ok
    assert (
        ask(here, half, used, {"hami.io/gpu-scheduler-policy": "mutex"})[0].text
        == "8/8 ExclusiveDeviceAllocateConflict"
    )


# -- others -----------------------------------------------------------------------------------------------------------


def test_whole_devices_without_pins() -> None:
    here = node(**{"enflame.com/gcu": "2"})
    used = running("a", "hami.io/enflame-gcu-devices-allocated", "n1-GCU-0,GCU,100,100:;")
    assert got(ask(here, {"enflame.com/gcu": "1"}, [used])[0]) == [("n1-GCU-1", 100, 100)]
    both = ask(here, {"enflame.com/gcu": "2"}, [used])[0]
    assert both.text == "1/2 AllocatedCardsInsufficientRequest, 1/2 ExclusiveDeviceAllocateConflict"


def test_slices_by_profile() -> None:
    drs = {
        "devices": [{"index": "0", "minor": "0", "capacity": "6"}],
        "profiles": {"1g.6gb": "1", "3g.18gb": "3", "6g.36gb": "6"},
    }
    here = node(annotations={"enflame.com/gcu-drs-capacity": json.dumps(drs)})
    assert got(ask(here, {"enflame.com/drs-gcu": "3"})[0]) == [("n1-enflame-drs-0", 18432, 50)]
    assert got(ask(here, {"enflame.com/gcu-memory": "7"})[0]) == [("n1-enflame-drs-0", 18432, 50)]
    assert ask(here, {"enflame.com/drs-gcu": "2"})[0].text == "1/1 ModeNotFit"
    used = running("a", "hami.io/enflame-vgpu-devices-allocated", "n1-enflame-drs-0,Enflame,36864,100:;")
    assert ask(here, {"enflame.com/drs-gcu": "1"}, [used])[0].text == "1/1 CardInsufficientMemory"


def test_compute_units_and_models_in_the_annotation() -> None:
    register = [
        {"id": "A-0", "count": 4, "devmem": 65536, "devcore": 110, "type": "AMD Instinct MI210", "health": True}
    ]
    here = node(annotations={"hami.io/node-amd-register": json.dumps(register)}, **{"amd.com/gpu": "4"})
    fit, _, value = ask(here, {"amd.com/gpu": "1", "amd.com/gpumem": "1k", "amd.com/gpucores": "50"})
    assert got(fit) == [("A-0", 1000, 55)]
    written = predict_annotations(value, here, fit, CONFIG)
    assert written["hami.io/amd-devices-allocated"] == "A-0,AMD Instinct MI210,1000,55:;"


def test_dies_of_one_board() -> None:
    register = [
        {
            "id": f"V-{i}",
            "index": i,
            "count": 1,
            "devmem": 1,
            "type": "Vastai VA16",
            "health": True,
            "custominfo": {"DeviceStrategy": "die", "AIC": aic},
        }
        for i, aic in enumerate(["a", "b", "b", "b"])
    ]
    here = node(annotations={"hami.io/node-va-register": json.dumps(register)}, **{"vastaitech.com/va": "4"})
    fit, *_ = ask(here, {"vastaitech.com/va": "2"})
    assert {u for u, *_ in got(fit)} <= {"V-1", "V-2", "V-3"}
    assert {x[1:] for x in got(fit)} == {(0, 0)}
    used = running("a", "hami.io/Vastai-devices-allocated", "V-1,Vastai,0,0:;")
    mutex = ask(here, {"vastaitech.com/va": "2"}, [used], {"hami.io/gpu-scheduler-policy": "mutex"})[0]
    assert "2/4 ExclusiveDeviceAllocateConflict" in mutex.text


def zones(**more):
    devices = [
        {
            "uuid": f"M-{i}",
            "model": "C500",
            "totalDevCount": 4,
            "totalCompute": 100,
            "totalVRam": 65536,
            "healthy": True,
            **more,
        }
        for i in range(2)
    ]
    return node(annotations={"metax-tech.com/node-gpu-devices": json.dumps(devices)})


SGPU = {"metax-tech.com/sgpu": "1", "metax-tech.com/vmemory": "4", "metax-tech.com/vcore": "10"}


def test_quality_of_service_and_classes() -> None:
    here = zones(qosPolicy="fixed-share")
    key, quality = "hami.io/metax-sgpu-devices-allocated", {"metax-tech.com/sgpu-qos-policy": "fixed-share"}
    used = [running(f"a{i}", key, f"M-{i},Metax-SGPU,4096,10:;", **quality) for i in range(2)]
    mixed = ask(here, SGPU, used, {"metax-tech.com/sgpu-qos-policy": "best-effort"})[0]
    assert mixed.text == "2/2 CardQosPolicyMismatch"
    assert ask(here, SGPU, used, {"metax-tech.com/sgpu-qos-policy": "fixed-share"})[0].ok
    assert ask(here, SGPU, used, {"metax-tech.com/sgpu-app-class": "online"})[0].text == "2/2 CardAppClassMismatch"
    whole = {**SGPU, "metax-tech.com/vcore": "100"}
    assert ask(here, whole)[0].text == "1/2 Unpredictable"
    assert ask(here, whole, devices=("M-1",))[0].ok


def test_a_second_container_joins_the_first_one() -> None:
    """HAMi takes the device for the pod's quality of service as soon as its first container has it."""
    here = zones(qosPolicy="fixed-share")
    value = translate_pod(
        pod("new", [SGPU, SGPU], annotations={"metax-tech.com/sgpu-qos-policy": "best-effort"}), CONFIG
    )
    snapshot = assemble(nodes={here.name: here}, pods={})
    fit = fit_pod(snapshot, value, here.name, vendors=VENDORS, devices=("M-0",), config=FitConfig(as_hami=True))
    assert fit.ok, fit.text


@pytest.mark.parametrize(
    ("reported", "holds", "cores", "asks", "text"),
    [
        ("fixed-share", "best-effort", 10, "best-effort", "Unpredictable"),
        ("fixed-share", "best-effort", 10, "fixed-share", "Unpredictable"),
        ("", "best-effort", 10, "fixed-share", "Unpredictable"),
        ("fixed-share", "fixed-share", 100, "fixed-share", "Unpredictable"),
        ("best-effort", "best-effort", 10, "best-effort", ""),
        ("", "fixed-share", 100, "best-effort", "CardInsufficientCore"),
        ("best-effort", "best-effort", 10, "fixed-share", "CardQosPolicyMismatch"),
    ],
)
def test_a_quality_of_service_that_is_about_to_change(reported, holds, cores, asks, text) -> None:
    """HAMi goes by what it remembers of its last decision until the plugin reports that; nobody else knows it."""
    qos = "metax-tech.com/sgpu-qos-policy"
    here = zones(qosPolicy=reported)
    used = [
        running(f"a{i}", "hami.io/metax-sgpu-devices-allocated", f"M-{i},Metax-SGPU,4096,{cores}:;", **{qos: holds})
        for i in range(2)
    ]
    fit = ask(here, SGPU, used, {qos: asks})[0]
    assert (text in fit.text) if text else fit.ok
    assert fit.ok is not bool(text)


def test_node_ratings_dominate_the_choice() -> None:
    key = "metax-tech.com/gpu.topology.losses"
    good = node("n1", {key: '{"1": 3}'}, **{"metax-tech.com/gpu": "2"})
    bad = node("n2", {key: '{"1": 30}'}, **{"metax-tech.com/gpu": "2"})
    _, snapshot, value = ask([good, bad], {"metax-tech.com/gpu": "1"})
    choice = choose_node(snapshot, value, ["n1", "n2"], vendors=VENDORS)
    assert choice.tied == ("n1",)
    assert {n: f.score for n, f in choice.fits.items()} == {"n1": 1997.0, "n2": 1970.0}


def test_chips_with_a_core_mask_are_shown_but_never_a_target() -> None:
    here = node(**{"aws.amazon.com/neuron": "2", "aws.amazon.com/neuroncore": "4"})
    assert [(d.uuid, d.slots, d.cores) for d in here.devices] == [("n1-AWSNeuron-0", 2, 3), ("n1-AWSNeuron-1", 2, 3)]
    fit, *_ = ask(here, {"aws.amazon.com/neuron": "1"})
    assert (fit.ok, fit.reason) == (False, "Unjudged")


def test_a_pod_that_asks_two_vendors_has_a_selection_each() -> None:
    notes = {"nvidia.com/use-gpuuuid": "g0", "hygon.com/nouse-gpuuuid": "d0"}
    found = translate_pod(pod(limits=[{"nvidia.com/gpu": "1", "hygon.com/dcunum": "1"}], annotations=notes), CONFIG)
    assert found.selections["NVIDIA"].use_uuids == {"g0"}
    assert found.selections["DCU"].use_uuids is None
    assert found.selections["DCU"].nouse_uuids == {"d0"}
