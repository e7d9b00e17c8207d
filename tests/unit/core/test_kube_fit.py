"""kube-scheduler's filters, one table per rule."""

from __future__ import annotations

from dataclasses import replace

import pytest

from defragd.core.kube_fit import capacity, kube_fit, tolerates
from defragd.core.model import (
    Expression,
    HostPort,
    Node,
    NodeTerm,
    Pod,
    PodTerm,
    Resources,
    Scheduling,
    Selector,
    Spread,
    Taint,
    Toleration,
    Volume,
)
from defragd.core.reasons import Reason
from defragd.core.snapshot import Snapshot

ROOM = Resources(cpu_milli=8000, memory_bytes=8 << 30, pods=10, ephemeral_bytes=1000, extended={"x/y": 2})
WEB = Selector((Expression("app", "In", ("web",)),))


def node(name: str, **more) -> Node:
    labels = {"kubernetes.io/hostname": name, "zone": more.pop("zone", "z1"), **more.pop("labels", {})}
    return Node(name=name, labels=labels, allocatable=more.pop("allocatable", ROOM), **more)


def pod(name: str = "p", on: str = "", *, labels=None, namespace: str = "t", deleting: bool = False, **wishes) -> Pod:
    return Pod(
        namespace=namespace,
        name=name,
        uid=name,
        node=on,
        labels=labels or {},
        deleting=deleting,
        scheduling=Scheduling(**wishes),
    )


def world(nodes, pods=(), **more) -> Snapshot:
    return Snapshot(nodes={n.name: n for n in nodes}, pods={p.key: p for p in pods}, **more)


def fits(snapshot: Snapshot, newcomer: Pod, name: str = "n1", **more) -> bool:
    return kube_fit(snapshot, newcomer, name, **more).ok


# -- the node itself --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("here", "reason"),
    [
        (node("n1", ready=False), Reason.NODE_NOT_READY),
        (node("n1", schedulable=False), Reason.NODE_UNSCHEDULABLE),
        (node("n1", taints=(Taint("a", "b", "NoSchedule"),)), Reason.NODE_UNFIT),
        (node("n1", taints=(Taint("a", "b", "NoExecute"),)), Reason.NODE_UNFIT),
        (node("n1", taints=(Taint("a", "b", "PreferNoSchedule"),)), None),
        (node("n1"), None),
    ],
)
def test_node_state(here, reason) -> None:
    assert kube_fit(world([here]), pod(), "n1").reason == reason


def test_unknown_node_and_what_cannot_be_judged() -> None:
    assert kube_fit(world([]), pod(), "n1").reason == Reason.NODE_UNKNOWN
    verdict = kube_fit(world([node("n1")]), pod(unjudged=("resource claims",)), "n1")
    assert (verdict.ok, verdict.reason) == (False, Reason.UNJUDGED)


@pytest.mark.parametrize(
    ("toleration", "holds"),
    [
        (Toleration("a", "Equal", "b", "NoSchedule"), True),
        (Toleration("a", "Equal", "b"), True),
        (Toleration("a", "Equal", "c"), False),
        (Toleration("a", "Exists"), True),
        (Toleration("", "Exists"), True),
        (Toleration("", "Equal"), False),
        (Toleration("a", "Exists", "", "NoExecute"), False),
        (Toleration("other", "Exists"), False),
        (Toleration("a", "", "b"), True),
    ],
)
def test_tolerations(toleration, holds) -> None:
    assert tolerates([toleration], Taint("a", "b", "NoSchedule")) is holds


def test_cordon_can_be_tolerated() -> None:
    everything = pod(tolerations=(Toleration("", "Exists"),))
    assert fits(world([node("n1", schedulable=False)]), everything)


E_ZONE = Expression("zone", "In", ("z1",))


@pytest.mark.parametrize(
    ("terms", "holds"),
    [
        (None, True),
        ((), False),
        ((NodeTerm(),), False),
        ((NodeTerm((E_ZONE,)),), True),
        ((NodeTerm((replace(E_ZONE, operator="NotIn"),)),), False),
        ((NodeTerm((replace(E_ZONE, operator="NotIn"),)), NodeTerm((E_ZONE,))), True),
        ((NodeTerm((Expression("missing", "DoesNotExist"), Expression("zone", "Exists"))),), True),
        ((NodeTerm((Expression("size", "Gt", ("3",)),)),), True),
        ((NodeTerm((Expression("size", "Lt", ("4",)),)),), False),
        ((NodeTerm((Expression("size", "Gt", ("x",)),)),), False),
        ((NodeTerm((Expression("missing", "NotIn", ("a",)),)),), True),
        ((NodeTerm((), (Expression("metadata.name", "In", ("n1",)),)),), True),
        ((NodeTerm((E_ZONE,), (Expression("metadata.name", "In", ("n2",)),)),), False),
        ((NodeTerm((), (Expression("metadata.name", "NotIn", ("n2",)),)),), True),
        ((NodeTerm((Expression("zone", "Unheard", ("z1",)),)),), False),
    ],
)
def test_node_affinity(terms, holds) -> None:
    assert fits(world([node("n1", labels={"size": "4"})]), pod(node_terms=terms)) is holds


def test_node_selector() -> None:
    assert fits(world([node("n1")]), pod(node_selector={"zone": "z1"}))
    assert not fits(world([node("n1")]), pod(node_selector={"zone": "z1", "gpu": "on"}))


# -- resources --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("want", "used", "short"),
    [
        (Resources(cpu_milli=1000), Resources(cpu_milli=7000), ""),
        (Resources(cpu_milli=1001), Resources(cpu_milli=7000), "cpu"),
        (Resources(), Resources(cpu_milli=99999), ""),
        (Resources(memory_bytes=(8 << 30) + 1), Resources(pods=0), "memory"),
        (Resources(ephemeral_bytes=1), Resources(ephemeral_bytes=1000), "ephemeral-storage"),
        (Resources(), Resources(pods=10), "pods"),
        (Resources(extended={"x/y": 1}), Resources(extended={"x/y": 1}), ""),
        (Resources(extended={"x/y": 2}), Resources(extended={"x/y": 1}), "x/y"),
        (Resources(extended={"no/such": 1}), Resources(), "no/such"),
    ],
)
def test_capacity(want, used, short) -> None:
    found = capacity(want, ROOM, used)
    assert found.startswith(short) if short else found == ""


def test_pods_there_count_and_can_be_left_out() -> None:
    big = Resources(cpu_milli=6000)
    snapshot = world([node("n1")], [pod("a", "n1", resources=big)])
    assert kube_fit(snapshot, pod(resources=big), "n1").reason == Reason.NODE_FULL
    assert fits(snapshot, pod(resources=big), without=frozenset({"t/a"}))


@pytest.mark.parametrize(
    ("there", "wanted", "free"),
    [
        (HostPort(80), HostPort(80), False),
        (HostPort(80), HostPort(81), True),
        (HostPort(80, "UDP"), HostPort(80, "TCP"), True),
        (HostPort(80, "TCP", "10.0.0.1"), HostPort(80, "TCP", "10.0.0.2"), True),
        (HostPort(80, "TCP", "10.0.0.1"), HostPort(80), False),
    ],
)
def test_host_ports(there, wanted, free) -> None:
    snapshot = world([node("n1"), node("n2")], [pod("a", "n1", host_ports=(there,))])
    assert fits(snapshot, pod(host_ports=(wanted,))) is free
    assert fits(snapshot, pod(host_ports=(wanted,)), "n2")


# -- volumes ----------------------------------------------------------------------------------------------------------

RWO = ("ReadWriteOnce",)


@pytest.mark.parametrize(
    ("volume", "reason"),
    [
        (Volume("emptyDir"), None),
        (Volume("claim", "c", known=False), Reason.UNJUDGED),
        (Volume("ephemeral", known=False), Reason.UNJUDGED),
        (Volume("claim", "c", access_modes=RWO), Reason.VOLUME_BOUND),
        (Volume("claim", "c", access_modes=("ReadWriteOncePod",)), Reason.VOLUME_BOUND),
        (Volume("claim", "c", access_modes=("ReadWriteMany",)), None),
        (Volume("claim", "free", access_modes=RWO), None),
        (Volume("claim", "free", node_terms=(NodeTerm((E_ZONE,)),)), None),
        (Volume("claim", "free", node_terms=(NodeTerm((Expression("zone", "In", ("z9",)),)),)), Reason.VOLUME_BOUND),
        (Volume("claim", "free", zones=(("topology.kubernetes.io/zone", "a"),)), None),
        (Volume("claim", "free", zones=(("topology.kubernetes.io/zone", "b__c"),)), Reason.VOLUME_BOUND),
        (Volume("claim", "free", zones=(("failure-domain.beta.kubernetes.io/zone", "b__a"),)), None),
    ],
)
def test_volumes(volume, reason) -> None:
    here = node("n1", labels={"topology.kubernetes.io/zone": "a"})
    user = pod("a", "n2", volumes=(Volume("claim", "c", access_modes=RWO),))
    assert kube_fit(world([here, node("n2")], [user]), pod(volumes=(volume,)), "n1").reason == reason


def test_the_pod_itself_does_not_hold_its_claim_against_its_replacement() -> None:
    mine = pod("a", "n2", volumes=(Volume("claim", "c", access_modes=RWO),))
    assert fits(world([node("n1"), node("n2")], [mine]), mine)


def test_an_unknown_claim_may_stay_where_it_is() -> None:
    mine = pod("a", "n1", volumes=(Volume("claim", "c", known=False),))
    assert fits(world([node("n1")], [mine]), mine)


# -- topology spread --------------------------------------------------------------------------------------------------


def web(name: str, on: str = "", **more) -> Pod:
    return pod(name, on, labels={"app": "web"}, **more)


def zones() -> list[Node]:
    return [node("n1", zone="z1"), node("n2", zone="z2"), node("n3", zone="z3")]


@pytest.mark.parametrize(
    ("spread", "there", "holds"),
    [
        (Spread("zone", 1, WEB), [], True),
        (Spread("zone", 1, WEB), ["n1"], False),
        (Spread("zone", 2, WEB), ["n1"], True),
        (Spread("zone", 1, WEB), ["n1", "n2", "n3"], True),
        (Spread("zone", 1, Selector((Expression("app", "In", ("db",)),))), ["n1"], True),
        (Spread("nolabel", 1, WEB), [], False),
        (Spread("zone", 1, WEB, min_domains=4), ["n1", "n2", "n3"], False),
        (Spread("zone", 1, None), ["n1", "n1"], True),
    ],
)
def test_spread(spread, there, holds) -> None:
    pods = [web(f"w{i}", on) for i, on in enumerate(there)]
    assert fits(world(zones(), pods), web("new", spread=(spread,))) is holds


def test_spread_leaves_out_terminating_pods_other_namespaces_and_those_named() -> None:
    one = Spread("zone", 1, WEB)
    assert fits(world(zones(), [web("a", "n1", deleting=True)]), web("new", spread=(one,)))
    assert fits(world(zones(), [web("a", "n1", namespace="u")]), web("new", spread=(one,)))
    assert fits(world(zones(), [web("a", "n1")]), web("new", spread=(one,)), without=frozenset({"t/a"}))


def test_spread_counts_only_nodes_the_pod_may_use() -> None:
    only = (NodeTerm((Expression("zone", "In", ("z1", "z2")),)),)
    there = [web("a", "n1"), web("b", "n2")]
    strict = web("new", spread=(Spread("zone", 1, WEB),), node_terms=only)
    loose = web("new", spread=(Spread("zone", 1, WEB, honor_affinity=False),), node_terms=only)
    assert fits(world(zones(), there), strict)
    assert not fits(world(zones(), there), loose)
    tainted = [node("n1", zone="z1"), node("n2", zone="z2", taints=(Taint("a", "", "NoSchedule"),))]
    assert not fits(world(tainted, [web("a", "n1")]), web("new", spread=(Spread("zone", 1, WEB),)))
    honored = Spread("zone", 1, WEB, honor_taints=True)
    assert fits(world(tainted, [web("a", "n1")]), web("new", spread=(honored,)))


# -- inter-pod affinity -----------------------------------------------------------------------------------------------


def near(**more) -> PodTerm:
    return PodTerm(more.pop("key", "zone"), more.pop("selector", WEB), **more)


def test_anti_affinity_of_the_newcomer() -> None:
    snapshot = world(zones(), [web("a", "n1")])
    newcomer = web("new", anti_affinity=(near(),))
    assert not fits(snapshot, newcomer, "n1")
    assert fits(snapshot, newcomer, "n2")
    assert fits(snapshot, newcomer, "n1", without=frozenset({"t/a"}))
    assert fits(snapshot, web("new", anti_affinity=(near(key="nolabel"),)), "n1")


def test_anti_affinity_of_pods_there() -> None:
    snapshot = world(zones(), [pod("a", "n1", anti_affinity=(near(),))])
    assert not fits(snapshot, web("new"), "n1")
    assert fits(snapshot, web("new"), "n2")
    assert fits(snapshot, pod("new", labels={"app": "db"}), "n1")
    assert fits(snapshot, web("new", namespace="u"), "n1")


def test_affinity_needs_company_in_every_term() -> None:
    snapshot = world(zones(), [web("a", "n2")])
    newcomer = pod("new", labels={"app": "db"}, affinity=(near(),))
    assert fits(snapshot, newcomer, "n2")
    assert not fits(snapshot, newcomer, "n1")
    both = replace(newcomer, scheduling=Scheduling(affinity=(near(), near(key="kubernetes.io/hostname"))))
    assert fits(snapshot, both, "n2")
    twin = world([node("n1", zone="z2"), *zones()[1:]], [web("a", "n2")])
    assert not fits(twin, both, "n1")
    assert not fits(snapshot, pod("new", affinity=(near(key="nolabel"),)), "n2")


def test_the_first_of_a_group_may_start_anywhere() -> None:
    assert fits(world(zones()), web("new", affinity=(near(),)))
    assert not fits(world(zones()), pod("new", affinity=(near(),)))
    assert not fits(world(zones(), [web("a", "n2")]), web("new", affinity=(near(),)), "n1")


def test_namespaces_of_terms() -> None:
    snapshot = world(zones(), [web("a", "n1", namespace="u")], namespace_labels={"u": {"team": "x"}})
    assert fits(snapshot, web("new", anti_affinity=(near(),)))
    assert not fits(snapshot, web("new", anti_affinity=(near(namespaces=("u",)),)))
    assert not fits(snapshot, web("new", anti_affinity=(near(namespace_selector=Selector()),)))
    team = Selector((Expression("team", "In", ("x",)),))
    other = Selector((Expression("team", "In", ("y",)),))
    assert not fits(snapshot, web("new", anti_affinity=(near(namespace_selector=team),)))
    assert fits(snapshot, web("new", anti_affinity=(near(namespace_selector=other),)))
    unknown = replace(snapshot, namespace_labels={})
    assert not fits(unknown, web("new", anti_affinity=(near(namespace_selector=other),))), "not known: refused"
    assert not fits(unknown, web("new", affinity=(near(namespace_selector=team),))), "not known: refused"


def test_our_pin_binds_only_where_it_is_asked_for() -> None:
    pinned = pod()
    pinned = replace(pinned, selection=replace(pinned.selection, pinned_by_us=True, pin_node="n2"))
    snapshot = world(zones())
    assert fits(snapshot, pinned, "n1")
    assert not fits(snapshot, pinned, "n1", obey_pin=True)
    assert fits(snapshot, pinned, "n2", obey_pin=True)
