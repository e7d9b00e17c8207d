"""Our reading of kube-scheduler's filters against the real kube-scheduler, in random worlds, node by node.

Each question is one pod whose node affinity names one node: bound or Unschedulable is the real verdict. On purpose we
are stricter in one of the things asked here: a volume of one node at a time is not used from a second node.
KUBE_FIT_WORLDS and KUBE_FIT_SEED widen the run by hand (12 verdicts a world).
"""

from __future__ import annotations

import json
import os
from random import Random
from typing import Any

import msgspec
import pytest

from defragd.core.kube_fit import Verdict, kube_fit
from defragd.core.reasons import Reason
from defragd.core.snapshot import Snapshot
from defragd.hami.config import HamiConfig
from defragd.hami.translate import assemble, claim_table, translate_node, translate_pod
from defragd.kube import wire
from tests.ground import objects
from tests.ground.cluster import Cluster

CONFIG = HamiConfig()
NODES = ("n0", "n1", "n2")
WORLDS = int(os.environ.get("KUBE_FIT_WORLDS", "8"))
FIRST = int(os.environ.get("KUBE_FIT_SEED", "0"))
PODS = "/api/v1/namespaces/default/pods"
CLAIMS, VOLUMES = "/api/v1/namespaces/default/persistentvolumeclaims", "/api/v1/persistentvolumes"
CLASSES = "/apis/node.k8s.io/v1/runtimeclasses"
WIDGET = "example.com/widget"
STRICTER = "on another node"

pytestmark = [pytest.mark.controlplane, pytest.mark.slow, pytest.mark.timeout(1800)]


def _selector(random: Random) -> dict[str, Any]:
    app = random.choice(("a", "b"))
    if random.random() < 0.5:
        return {"matchLabels": {"app": app}}
    return {"matchExpressions": [{"key": "app", "operator": random.choice(("In", "NotIn")), "values": [app]}]}


def _pod_term(random: Random) -> dict[str, Any]:
    term: dict[str, Any] = {
        "topologyKey": random.choice(("zone", "kubernetes.io/hostname", "rack")),
        "labelSelector": _selector(random),
    }
    if random.random() < 0.2:
        term["namespaceSelector"] = {}
    elif random.random() < 0.2:
        term["namespaces"] = random.choice((["kube-public"], ["kube-public", "default"]))
    if random.random() < 0.2:
        term[random.choice(("matchLabelKeys", "mismatchLabelKeys"))] = ["track"]
    return term


def _expression(random: Random) -> dict[str, Any]:
    kind = random.choice(("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"))
    key = random.choice(("zone", "rack", "size"))
    values = {"Gt": ["3"], "Lt": ["3"]}.get(kind, [random.choice(("z0", "z1", "r0", "2"))])
    return {"key": key, "operator": kind} | ({"values": values} if kind not in ("Exists", "DoesNotExist") else {})


def _node(random: Random, name: str) -> dict[str, Any]:
    labels = {"zone": random.choice(("z0", "z1")), "size": str(random.randint(1, 5))}
    if random.random() < 0.5:
        labels["rack"] = random.choice(("r0", "r1"))
    taints = []
    if random.random() < 0.4:
        taints.append(
            {"key": "k", "value": "v", "effect": random.choice(("NoSchedule", "PreferNoSchedule", "NoExecute"))}
        )
    body = objects.node(
        name, 0, labels=labels, taints=taints, cpu="2", memory="4Gi", unschedulable=random.random() < 0.1
    )
    amounts = {"ephemeral-storage": "10Gi", WIDGET: str(random.randint(0, 3)), "pods": random.choice(("250", "4"))}
    for part in ("capacity", "allocatable"):
        body["status"][part] = {**body["status"][part], **amounts}
    return body


def _volume(random: Random, number: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """A volume and the claim bound to it (no controller binds here): of some nodes, of a zone, or of any place."""
    meta: dict[str, Any] = {"name": f"v{number}"}
    modes = [random.choice(("ReadWriteOnce", "ReadWriteOncePod", "ReadWriteMany", "ReadOnlyMany"))]
    spec: dict[str, Any] = {
        "capacity": {"storage": "1Gi"}, "accessModes": modes, "storageClassName": "none",
        "hostPath": {"path": "/x"}, "claimRef": {"namespace": "default", "name": f"v{number}"},
    }  # fmt: skip
    where = random.choice(("nodes", "zone", "labels", "any"))
    if where == "labels":
        meta["labels"] = {"topology.kubernetes.io/zone": random.choice(("z0", "z1", "z0__z1"))}
    elif where != "any":
        picked = ("kubernetes.io/hostname", random.sample(NODES, 2)) if where == "nodes" else ("zone", ["z0"])
        term = {"matchExpressions": [{"key": picked[0], "operator": "In", "values": picked[1]}]}
        spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": [term]}}
    claim = {
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": f"v{number}", "annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
        "spec": {"accessModes": modes, "storageClassName": "none", "volumeName": f"v{number}",
                 "resources": {"requests": {"storage": "1Gi"}}},
    }  # fmt: skip
    return {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": meta, "spec": spec}, claim


def _volumes(cluster: Cluster, random: Random) -> None:
    """Drops the volumes of the world before and makes new ones."""
    for path in (CLAIMS, VOLUMES):
        for old in cluster.api.items(path):
            where = f"{path}/{old['metadata']['name']}"
            cluster.api.patch(where, {"metadata": {"finalizers": None}})
            cluster.api.delete(where)
            cluster.wait(lambda where=where: cluster.api.find(where) is None, 10, f"{where} gone")
    for number in range(3):
        volume, claim = _volume(random, number)
        for path, body in ((VOLUMES, volume), (CLAIMS, claim)):
            cluster.api.create(path, body)
            cluster.api.patch(f"{path}/v{number}/status", {"status": {"phase": "Bound"}})


def _spec(random: Random, name: str) -> tuple[dict[str, Any], dict[str, str]]:
    """(what the pod's spec adds, labels)."""
    extra: dict[str, Any] = {}
    affinity: dict[str, Any] = {}
    if random.random() < 0.3:
        extra["nodeSelector"] = {"zone": random.choice(("z0", "z1"))}
    if random.random() < 0.3:
        affinity["podAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": [_pod_term(random)]}
    if random.random() < 0.4:
        affinity["podAntiAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": [_pod_term(random)]}
    if affinity:
        extra["affinity"] = affinity
    if random.random() < 0.5:
        toleration = {"key": "k", "operator": "Exists"} if random.random() < 0.5 else {"key": "k", "value": "v"}
        extra["tolerations"] = [toleration | ({"effect": "NoSchedule"} if random.random() < 0.3 else {})]
    if random.random() < 0.4:
        spread = {
            "topologyKey": random.choice(("zone", "kubernetes.io/hostname", "rack")),
            "maxSkew": random.randint(1, 2),
            "whenUnsatisfiable": random.choice(("DoNotSchedule", "DoNotSchedule", "ScheduleAnyway")),
            "labelSelector": _selector(random),
            "nodeAffinityPolicy": random.choice(("Honor", "Ignore")),
            "nodeTaintsPolicy": random.choice(("Honor", "Ignore")),
        }
        if random.random() < 0.3:
            spread["matchLabelKeys"] = ["track"]
        if random.random() < 0.3 and spread["whenUnsatisfiable"] == "DoNotSchedule":
            spread["minDomains"] = random.randint(1, 3)
        extra["topologySpreadConstraints"] = [spread]
    cpu = random.choice(("100m", "600m", "900m"))
    box: dict[str, Any] = {"name": "main", "image": "pause", "resources": {"requests": {"cpu": cpu, "memory": "256Mi"}}}
    if random.random() < 0.3:
        box["ports"] = [{"containerPort": 80, "hostPort": random.choice((8080, 8081))}]
    if random.random() < 0.3:
        box["resources"]["limits"] = {WIDGET: random.choice(("1", "2"))}
    if random.random() < 0.3:
        box["resources"]["requests"]["ephemeral-storage"] = random.choice(("1Gi", "6Gi"))
    extra["containers"] = [box]
    if random.random() < 0.2:
        extra["runtimeClassName"] = "heavy"
    if random.random() < 0.3:
        claim = {"name": "data", "persistentVolumeClaim": {"claimName": f"v{random.randrange(3)}"}}
        extra["volumes"] = [claim, {"name": "tmp", "emptyDir": {}}]
    if random.random() < 0.2:
        init = {"name": "i", "image": "pause", "resources": {"requests": {"cpu": "1200m"}}}
        extra["initContainers"] = [init | ({"restartPolicy": "Always"} if random.random() < 0.5 else {})]
    return extra, {"app": random.choice(("a", "b")), "track": random.choice(("1", "2"))}


def _only(spec: dict[str, Any], random: Random, node: str) -> dict[str, Any]:
    """The pod may go to ``node`` alone; sometimes by a further condition too."""
    copy: dict[str, Any] = json.loads(json.dumps(spec))
    term: dict[str, Any] = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    if random.random() < 0.4:
        term["matchExpressions"] = [_expression(random)]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    copy.setdefault("affinity", {})["nodeAffinity"] = required
    return copy


def _snapshot(cluster: Cluster) -> Snapshot:
    nodes = [translate_node(msgspec.convert(n, wire.Node), CONFIG)[0] for n in cluster.api.items("/api/v1/nodes")]
    claims = claim_table(
        [msgspec.convert(c, wire.PersistentVolumeClaim) for c in cluster.api.items(CLAIMS)],
        [msgspec.convert(v, wire.PersistentVolume) for v in cluster.api.items(VOLUMES)],
    )
    raw = cluster.api.items("/api/v1/pods")
    pods = [translate_pod(msgspec.convert(p, wire.Pod), CONFIG, claims=claims) for p in raw]
    spaces = {n["metadata"]["name"]: n["metadata"].get("labels") or {} for n in cluster.api.items("/api/v1/namespaces")}
    return assemble(nodes={n.name: n for n in nodes}, pods={p.key: p for p in pods}, namespace_labels=spaces)


def _verdict(cluster: Cluster, name: str) -> tuple[bool, str] | None:
    """(bound, what kube-scheduler says) once there is one."""
    pod = cluster.pod(name)
    if pod["spec"].get("nodeName"):
        return True, ""
    for condition in (pod.get("status") or {}).get("conditions") or []:
        if condition["type"] == "PodScheduled" and condition.get("reason") == "Unschedulable":
            return False, condition["message"]
    return None


def _stricter(mine: Verdict) -> bool:
    """A refusal of ours that kube-scheduler does not share, on purpose."""
    return mine.reason == Reason.VOLUME_BOUND and mine.detail.endswith(STRICTER)


def _ask(cluster: Cluster, name: str, spec: dict[str, Any], labels: dict[str, str], node: str) -> str:
    """ "" when the verdicts agree, else the difference."""
    cluster.create(objects.pod(name, labels=labels, extra=spec))
    snapshot = _snapshot(cluster)
    # it may be bound already, and must not stand in its own way
    mine = kube_fit(snapshot, snapshot.pods[f"default/{name}"], node, without=frozenset({f"default/{name}"}))
    bound, says = cluster.wait(lambda: _verdict(cluster, name), 15, f"a verdict on {name}")
    if mine.ok and not bound:
        # its view of the last question's deletion may have lagged: it tries again by itself
        try:
            bound = bool(cluster.wait(lambda: (_verdict(cluster, name) or (False, ""))[0], 3))
        except TimeoutError:
            bound = False
    cluster.api.delete(f"{PODS}/{name}?gracePeriodSeconds=0")
    cluster.wait(lambda: cluster.api.find(f"{PODS}/{name}") is None, 15, f"{name} gone")
    if mine.ok == bound or (bound and _stricter(mine)):
        return ""
    return f"{name} on {node}: we {mine}, kube-scheduler {'binds' if bound else says}: {json.dumps(spec)}"


def test_verdicts_are_those_of_the_real_kube_scheduler(cluster: Cluster) -> None:
    asked, wrong = 0, []
    heavy = {"metadata": {"name": "heavy"}, "handler": "runc", "overhead": {"podFixed": {"cpu": "300m"}}}
    if cluster.api.find(f"{CLASSES}/heavy") is None:
        cluster.api.create(CLASSES, {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", **heavy})
    for seed in range(FIRST, FIRST + WORLDS):
        random = Random(seed)
        cluster.reset()
        _volumes(cluster, random)
        cluster.create(*(_node(random, name) for name in NODES))
        for number in range(random.randint(2, 6)):
            spec, labels = _spec(random, f"e{number}")
            for part in ("topologySpreadConstraints", "initContainers"):
                spec.pop(part, None)
            spec["nodeName"] = random.choice(NODES)
            spec["tolerations"] = [{"operator": "Exists"}]
            body = objects.pod(f"e{number}", labels=labels, extra=spec)
            if "volumes" not in spec and random.random() < 0.3:
                body["metadata"]["namespace"] = "kube-public"
            cluster.create(body)
        for number in range(4):
            spec, labels = _spec(random, f"q{number}")
            for node in NODES:
                name = f"q{seed}-{number}-{node}"
                difference = _ask(cluster, name, _only(spec, random, node), labels, node)
                asked += 1
                if difference:
                    wrong.append(difference)
    assert asked == WORLDS * 4 * len(NODES)
    assert not wrong, "\n".join(wrong)
