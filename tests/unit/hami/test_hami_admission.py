"""What admission makes of pods of other backends and odd pods (NVIDIA's cases are in the recorded decisions)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from defragd.core.model import Quota
from defragd.hami.admission import HOOK, Denial, admit_pod
from defragd.hami.config import HamiConfig, parse_device_config
from defragd.hami.translate import assemble
from tests.unit.hami.worlds import CONFIG

EMPTY = assemble(nodes={}, pods={})


def raw(limits: dict[str, str], *, annotations=None, labels=None, **spec):
    return {
        "metadata": {"name": "q", "namespace": "t", "annotations": annotations or {}, "labels": labels or {}},
        "spec": {"containers": [{"name": "c0", "resources": {"limits": limits}}], **spec},
    }


def admit(obj, config: HamiConfig = CONFIG, snapshot=EMPTY, **more):
    return admit_pod(obj, config, snapshot, **more)


def limits_of(answer) -> dict[str, str]:
    assert not isinstance(answer, Denial), answer
    return answer["spec"]["containers"][0]["resources"]["limits"]


NPU = "huawei.com/Ascend910B4"


@pytest.mark.parametrize(
    ("limits", "says"),
    [
        ({NPU: "2", f"{NPU}-memory": "8192"}, "vNPU not supported for multiple devices"),
        ({NPU: "1", f"{NPU}-memory": "40000"}, f"{NPU}-memory 40000 is invalid"),
        ({"huawei.com/Ascend910C": "3"}, "Ascend910C device request must be 1 or 2*n, got 3"),
        ({"mthreads.com/vgpu": "0"}, "mthreads.com/vgpu must be greater than 0"),
        ({"mthreads.com/vgpu": "1", "mthreads.com/sgpu-memory": "5"}, "sGPU memory request value is invalid"),
        ({"amd.com/gpu": "1", "amd.com/gpucores": "0"}, "amd.com/gpucores must be an integer percentage"),
        ({"enflame.com/gcu-core": "101"}, "enflame.com/gcu-core must be in range (0,100]"),
        ({"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "101"}, "must be an integer between 0 and 100"),
    ],
)
def test_refused(limits, says) -> None:
    answer = admit(raw(limits))
    assert isinstance(answer, Denial)
    assert answer.code == 500
    assert answer.message.startswith(HOOK)
    assert says in answer.message


@pytest.mark.parametrize(
    ("limits", "changed"),
    [
        ({NPU: "1", f"{NPU}-memory": "9000"}, {f"{NPU}-memory": "16384"}),
        ({NPU: "1"}, {f"{NPU}-memory": "32768"}),
        ({"huawei.com/Ascend910C": "1"}, {"huawei.com/Ascend910C": "2", "huawei.com/Ascend910C-memory": "65536"}),
        ({"mthreads.com/vgpu": "1"}, {"mthreads.com/sgpu-core": "16", "mthreads.com/sgpu-memory": "96"}),
        ({"mthreads.com/vgpu": "2"}, {"mthreads.com/sgpu-core": "32", "mthreads.com/sgpu-memory": "192"}),
        ({"iluvatar.ai/MR-V100-vgpu": "2"}, {"iluvatar.ai/MR-V100.vCore": "200"}),
        ({"kunlunxin.com/vxpu": "1", "kunlunxin.com/vxpu-memory": "1"}, {"kunlunxin.com/vxpu-memory": "24576"}),
        ({"nvidia.com/gpucores": "30"}, {"nvidia.com/gpu": "1"}),
        ({"hygon.com/dcunum": "1"}, {}),
        ({"birentech.com/gpu": "1"}, {}),
    ],
)
def test_resources_are_completed(limits, changed) -> None:
    answer = admit(raw(limits))
    assert limits_of(answer) == {**limits, **changed}
    assert answer["spec"]["schedulerName"] == "hami-scheduler"


def test_annotations_that_admission_adds() -> None:
    many = admit(raw({"mthreads.com/vgpu": "2"}))
    assert many["metadata"]["annotations"] == {"mthreads.com/request-gpu-num": "2"}
    sliced = admit(raw({"metax-tech.com/sgpu": "1"}))
    assert sliced["metadata"]["annotations"] == {"metax-tech.com/sgpu-qos-policy": "best-effort"}


def test_soft_slicing_keeps_what_is_asked() -> None:
    limits = {NPU: "1", f"{NPU}-memory": "9000", f"{NPU}-core": "30"}
    assert limits_of(admit(raw(limits, annotations={"huawei.com/vnpu-mode": "hami-core"}))) == {
        NPU: "1",
        f"{NPU}-memory": "9k",
        f"{NPU}-core": "30",
    }


@pytest.mark.parametrize(
    "obj",
    [
        raw({"nvidia.com/gpumem": "1000"}, schedulerName="other"),
        raw({"nvidia.com/gpumem": "1000"}, labels={"hami.io/webhook": "ignore"}),
    ],
)
def test_pods_that_the_webhook_leaves_alone(obj) -> None:
    assert limits_of(admit(obj)) == {"nvidia.com/gpumem": "1k"}


def test_a_namespace_can_be_left_alone() -> None:
    answer = admit(raw({"nvidia.com/gpumem": "1000"}), namespace_labels={"hami.io/webhook": "ignore"})
    assert limits_of(answer) == {"nvidia.com/gpumem": "1k"}


def test_node_name_containers_and_privileges() -> None:
    gpu = {"nvidia.com/gpu": "1"}
    assert admit(raw(gpu, nodeName="n1")) == Denial(403, f"{HOOK}pod has node assigned")
    assert admit(raw(gpu, containers=[])) == Denial(403, f"{HOOK}pod has no containers")
    init = {"name": "i", "securityContext": {"privileged": True}}
    assert admit(raw(gpu, initContainers=[init])) == Denial(403, f"{HOOK}container i is privileged")


def test_installation_settings() -> None:
    config = HamiConfig(core_policy="force", runtime_class="nvidia", overwrite_env=True)
    answer = admit(raw({"nvidia.com/gpu": "1"}), config)
    assert answer["spec"]["runtimeClassName"] == "nvidia"
    assert answer["spec"]["containers"][0]["env"] == [{"name": "GPU_CORE_UTILIZATION_POLICY", "value": "force"}]
    plain = admit(raw({"cpu": "1"}), config)
    assert {"name": "NVIDIA_VISIBLE_DEVICES", "value": "none"} in plain["spec"]["containers"][0]["env"]
    keep = HamiConfig(overwrite_default_scheduler=False)
    assert limits_of(admit(raw({"nvidia.com/gpumem": "1000"}), keep)) == {"nvidia.com/gpumem": "1k"}


def test_quota_is_checked_with_what_is_asked_in_numbers_only() -> None:
    tight = replace(EMPTY, quotas=(Quota("t", "q", "NVIDIA", 1000, None),))
    assert admit(raw({"nvidia.com/gpumem": "1001"}), snapshot=tight) == Denial(403, f"{HOOK}exceeding resource quota")
    assert not isinstance(admit(raw({"nvidia.com/gpumem": "1000"}), snapshot=tight), Denial)
    assert not isinstance(admit(raw({"nvidia.com/gpumem-percentage": "50"}), snapshot=tight), Denial)
    assert not isinstance(admit(raw({"cpu": "1"}), snapshot=tight), Denial)


@pytest.mark.parametrize(
    ("limit", "limits", "denied"),
    [
        ((3000, None), {"nvidia.com/gpu": "1"}, False),
        ((2999, None), {"nvidia.com/gpu": "1"}, True),
        ((2999, None), {"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "50"}, False),
        ((5999, None), {"nvidia.com/gpu": "2"}, True),
        ((None, 19), {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "10"}, True),
        ((None, 20), {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "10"}, False),
    ],
)
def test_configured_defaults_count_in_the_quota(limit, limits, denied) -> None:
    """HAMi asks its backend for the request, defaults included; a default memory is not multiplied by the factor."""
    config = parse_device_config({"nvidia": {"defaultMemory": 3000, "defaultCores": 20, "memoryFactor": 10}})
    tight = replace(EMPTY, quotas=(Quota("t", "q", "NVIDIA", *limit),))
    answer = admit(raw(limits), config, snapshot=tight)
    assert isinstance(answer, Denial) is denied, answer


def test_the_api_server_names_app_containers_first() -> None:
    """HAMi's webhook raises the limit but not the request that the API server had defaulted before."""
    limits = {"mthreads.com/vgpu": "1", "mthreads.com/sgpu-core": "4"}
    answer = admit(raw(limits, initContainers=[{"name": "i0", "resources": {"limits": dict(limits)}}]))
    assert isinstance(answer, Denial)
    assert 0 < answer.message.find("spec.containers[0]") < answer.message.find("spec.initContainers[0]")
