"""What of an object goes into a snapshot file: the fields that decide something, and no text that people wrote for
other purposes (annotations of other tools, messages of containers, contents of volumes)."""

from __future__ import annotations

from typing import Any

_ANNOTATIONS = (
    "hami.io/",
    "defragd.io/",
    "scheduling.hami.placement.com/",
    "nvidia.com/",
    "hygon.com/",
    "cambricon.com/",
    "iluvatar.ai/",
    "huawei.com/",
    "metax-tech.com/",
    "mthreads.com/",
    "enflame.com/",
    "kunlunxin.com/",
    "baidu.com/",
    "aws.amazon.com/",
    "amd.com/",
    "vastaitech.com/",
    "birentech.com/",
    "volcano.sh/vgpu-",
    "scheduling.k8s.io/",
    "scheduling.volcano.sh/",
    "gang.scheduling.koordinator.sh/",
    "kubernetes.io/config.",
    "cluster-autoscaler.kubernetes.io/safe-to-evict",
    "controller.kubernetes.io/pod-deletion-cost",
    "descheduler.alpha.kubernetes.io/",
    "pod-group",
    "hami-vnpu-core",
    "predicate-time",
)
_VOLUME_KINDS = ("hostPath", "emptyDir", "ephemeral", "configMap", "secret", "projected", "downwardAPI", "csi")


def slim(title: str, api_version: str, obj: dict[str, Any]) -> dict[str, Any]:
    """The object with kind and version, without what a plan never reads. ``obj`` is changed and becomes part of it."""
    obj.pop("kind", None)
    obj.pop("apiVersion", None)
    meta = obj["metadata"]
    annotations = meta.get("annotations")
    if annotations:
        kept = {key: value for key, value in annotations.items() if key.startswith(_ANNOTATIONS)}
        if kept:
            meta["annotations"] = kept
        else:
            del meta["annotations"]
    if title == "Pod":
        _slim_pod(obj)
    return {"apiVersion": api_version, "kind": title, **obj}


def _slim_pod(obj: dict[str, Any]) -> None:
    for volume in obj.get("spec", {}).get("volumes") or ():
        for kind in _VOLUME_KINDS:
            if kind in volume:
                medium = (volume[kind] or {}).get("medium") if kind == "emptyDir" else None
                volume[kind] = {"medium": medium} if medium else {}
    status = obj.get("status") or {}
    status.pop("message", None)
    for name in ("containerStatuses", "initContainerStatuses"):
        for container in status.get(name) or ():
            waiting = (container.get("state") or {}).get("waiting")
            if waiting:
                waiting.pop("message", None)
