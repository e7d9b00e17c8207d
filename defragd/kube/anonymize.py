"""Replaces every name by a made-up one, the same name always by the same one, so that a snapshot can be shown around.

Kept are numbers, models, resource names, well-known label keys and everything HAMi computes with. A word is replaced
wherever it stands: in names, references, selectors, HAMi's annotations and the scheduler's messages.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from typing import Any

_KEPT_NAMESPACES = frozenset({"default", "kube-system", "kube-public", "kube-node-lease"})
_KEPT_DOMAINS = (
    "kubernetes.io", "k8s.io", "x-k8s.io", "hami.io", "defragd.io", "hami.placement.com", "nvidia.com", "volcano.sh",
    "koordinator.sh", "kubeflow.org", "ray.io", "hygon.com", "cambricon.com", "iluvatar.ai", "huawei.com",
    "metax-tech.com", "mthreads.com", "enflame.com", "kunlunxin.com", "baidu.com", "aws.amazon.com", "amd.com",
)  # fmt: skip
"""Label and taint keys of these domains keep their key (the value is replaced unless it is a fact of hardware)."""
_KEPT_KEYS = frozenset(
    {"pod-template-hash", "controller-revision-hash", "pod-group-name", "app", "gpu", "hami-vnpu-core"}
)
_FACTS = (
    "kubernetes.io/arch", "kubernetes.io/os", "nvidia.com/gpu", "nvidia.com/cuda", "nvidia.com/mig", "hami.io/webhook",
    "node-role.kubernetes.io/", "node.kubernetes.io/", "beta.kubernetes.io/", "hami.io/",
)  # fmt: skip
"""Keys whose values describe hardware or roles and compare by meaning."""
_PLAIN = re.compile(r"(?:-?\d+|true|false|on|off|yes|no|)")
_TOKEN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*[A-Za-z0-9]|[A-Za-z0-9]")
_UUID_KEYS = ("id", "uuid", "UUID", "deviceuuid")
_SHORT = {"ReplicaSet": "rs", "StatefulSet": "sts", "Deployment": "deploy", "PodDisruptionBudget": "pdb",
          "PersistentVolumeClaim": "claim", "PersistentVolume": "volume", "ResourceQuota": "quota",
          "HamiPodPlacement": "placement"}  # fmt: skip


_PARTS = ("containers", "initContainers", "containerStatuses", "initContainerStatuses", "volumes")


class Anonymizer:
    """One run over the objects of one file. The order of the made-up names says nothing about the real ones."""

    def __init__(self, items: list[dict[str, Any]]) -> None:
        self._items = items
        self._salt = hashlib.sha256(repr(sorted(self._uids())).encode()).digest()
        self._words: dict[str, str] = {}
        self._labels: dict[str, str] = {}
        self._counts: dict[str, int] = {}

    def run(self) -> list[dict[str, Any]]:
        self._collect()
        return [self._walk(item, "") for item in self._items]

    # -- what is replaced -----------------------------------------------------------------------------------------

    def _uids(self) -> Iterable[str]:
        return (item["metadata"].get("uid", "") for item in self._items)

    def _collect(self) -> None:
        """Names of objects first (shuffled by a salted hash), then what only occurs as a reference."""
        named = sorted(self._items, key=lambda item: self._hash(item["kind"] + item["metadata"]["name"]))
        for item in named:
            meta = item["metadata"]
            kind = item["kind"]
            if kind == "Namespace":
                self._namespace(meta["name"])
            else:
                self._name(meta["name"], _SHORT.get(kind, kind.lower()))
            self._namespace(meta.get("namespace", ""))
            for owner in meta.get("ownerReferences") or ():
                self._name(owner["name"], _SHORT.get(owner.get("kind", ""), str(owner.get("kind", "owner")).lower()))
            if kind == "Node":
                for uuid in _registered(meta.get("annotations") or {}):
                    self._words.setdefault(uuid, self._uuid(uuid))

    def _hash(self, text: str) -> str:
        return hashlib.blake2b(text.encode(), key=self._salt, digest_size=16).hexdigest()

    def _name(self, text: str, kind: str) -> str:
        if not text:
            return text
        if text not in self._words:
            self._counts[kind] = self._counts.get(kind, 0) + 1
            self._words[text] = f"{kind}-{self._counts[kind]:04d}"
        return self._words[text]

    def _namespace(self, text: str) -> str:
        return text if text in _KEPT_NAMESPACES else self._name(text, "ns")

    def _uuid(self, text: str) -> str:
        """Vendor prefix kept (HAMi and people read it), the rest replaced."""
        head, dash, _ = text.partition("-")
        prefix = f"{head}-" if dash and len(head) <= 12 and not head.isdigit() else ""
        return prefix + self._uid(text)

    def _uid(self, text: str) -> str:
        digest = self._hash(text)
        return f"{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:32]}"

    def _text(self, text: str) -> str:
        """Free text and HAMi's annotations: every known word is replaced, everything else is kept."""
        return _TOKEN.sub(lambda match: self._token(match[0]), text)

    def _token(self, token: str) -> str:
        known = self._words.get(token)
        if known is not None:
            return known
        # Synthetic UUIDs are made of the node's name: "<node>-cambricon-mlu-0".
        head = token
        while "-" in head:
            head = head.rpartition("-")[0]
            if head in self._words:
                return self._words[head] + token[len(head) :]
        return token

    def _label_key(self, key: str) -> str:
        domain = key.partition("/")[0] if "/" in key else ""
        if key in _KEPT_KEYS or any(domain == kept or domain.endswith("." + kept) for kept in _KEPT_DOMAINS):
            return key
        return f"label-{self._hash('key ' + key)[:10]}"

    def _label_value(self, key: str, value: str) -> str:
        if _PLAIN.fullmatch(value) or key.startswith(_FACTS):
            return self._text(value)
        if value in self._words:
            return self._words[value]
        return self._labels.setdefault(value, f"v-{self._hash('value ' + value)[:10]}")

    # -- where ----------------------------------------------------------------------------------------------------

    def _walk(self, value: Any, key: str) -> Any:
        if isinstance(value, dict):
            if key in ("labels", "matchLabels", "nodeSelector"):
                return {self._label_key(k): self._label_value(k, v) for k, v in value.items()}
            if key == "annotations":
                return {k: self._text(v) for k, v in value.items()}
            if "key" in value and ("operator" in value or "effect" in value):
                return self._requirement(value)
            out = {k: self._walk(v, k) for k, v in value.items()}
            if key in _PARTS and value.get("name"):
                out["name"] = self._name(value["name"], "part")
            return out
        if isinstance(value, list):
            if key in ("matchLabelKeys", "mismatchLabelKeys"):
                return [self._label_key(item) for item in value]
            return [self._walk(item, key) for item in value]
        return self._word(value, key) if isinstance(value, str) else value

    def _requirement(self, value: dict[str, Any]) -> dict[str, Any]:
        """A label or field requirement, a taint or a toleration."""
        key = value["key"]
        out = {**value, "key": self._label_key(key) if not key.startswith("metadata.") else key}
        if "values" in value:
            out["values"] = [self._label_value(key, item) for item in value["values"] or ()]
        if "value" in value:
            out["value"] = self._label_value(key, value["value"])
        return out

    def _word(self, text: str, key: str) -> str:
        if key in ("namespace", "namespaces"):
            return self._namespace(text)
        if key in ("uid", "podUID", "ownerUID", "evictedUID", "evictPodUID"):
            return self._uid(text) if text else text
        if key in ("claimName", "volumeName"):
            return self._name(text, "claim" if key == "claimName" else "volume")
        if key in ("storageClassName", "runtimeClassName", "reqID", "group"):
            return self._name(text, "word")
        if key == "topologyKey":
            return self._label_key(text)
        if key in ("name", "nodeName", "podName", "evictPod", "message", "gpuDevices", "devices", "uuid", "gpuDevice"):
            return self._text(text)
        return text


def _registered(annotations: dict[str, str]) -> Iterable[str]:
    """UUIDs in register annotations: JSON lists of objects, or HAMi's older comma-separated text."""
    for key, text in annotations.items():
        if not key.startswith(("hami.io/node-", "huawei.com/")) or "handshake" in key:
            continue
        if text.lstrip()[:1] in ("[", "{"):
            try:
                found = json.loads(text)
            except ValueError:
                continue
            for entry in found if isinstance(found, list) else []:
                if isinstance(entry, dict):
                    yield from (str(entry[name]) for name in _UUID_KEYS if entry.get(name))
        else:
            yield from (part.partition(",")[0].strip() for part in text.split(":") if "," in part)
