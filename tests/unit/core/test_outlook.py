"""The bound on what could still be placed: it may miss hopeless cases, but never calls a possible one hopeless."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from defragd.core.desk import Desk
from defragd.core.outlook import Outlook
from defragd.core.plan import PlanRequest
from defragd.core.planner import make_scene
from defragd.core.relocate import Relocator
from defragd.hami.vendors import VENDORS
from tests.support.effort import examples
from tests.support.plan_world import NOW, UNLIMITED, world

PODS = ("a 10G/40c", "b whole", "c 12G", "d 2G/10c", "e 2xwhole")


def desk_of(text: str, cpu: int = 0) -> Desk:
    snapshot = world(text)
    if cpu:
        wants = {
            key: replace(
                pod, scheduling=replace(pod.scheduling, resources=replace(pod.scheduling.resources, cpu_milli=1000))
            )
            for key, pod in snapshot.pods.items()
        }
        nodes = {
            name: replace(node, allocatable=replace(node.allocatable, cpu_milli=cpu))
            for name, node in snapshot.nodes.items()
        }
        snapshot = replace(snapshot, pods=wants, nodes=nodes)
    request = PlanRequest(snapshot, "p", "node-drain", {}, UNLIMITED, NOW, vendors=VENDORS)
    return Desk(make_scene(request, None, drain=True, should_stop=lambda: False), use_idle_nodes=True)


def missing(desk: Desk, node: int = 0) -> int:
    fleet = desk.world.fleet
    return Outlook(desk.world).missing(sorted(desk.world.on_node[node]), set(fleet.devices_of(node)))


def test_whole_pods_are_counted_together():
    two = "n1 { g0 24G: a whole; g1 24G: b whole } n2 { g0 24G: -; g1 24G: c 2G/10c }"
    assert missing(desk_of(two)) == 1
    assert missing(desk_of(two.replace("c 2G/10c", "-"))) == 0


def test_host_room_counts():
    text = "n1 { g0 24G: a 2G/10c, b 2G/10c } n2 { g0 24G: - }"
    assert missing(desk_of(text)) == 0
    assert missing(desk_of(text, cpu=2000)) == 0
    assert missing(desk_of(text.replace("-", "c 2G/10c"), cpu=2000)) == 1


@st.composite
def drawn(draw) -> str:
    nodes = []
    for n in range(2 + draw(st.integers(0, 1))):
        parts = []
        for g in range(draw(st.integers(1, 2))):
            on = draw(st.sampled_from(["-", "whole", "10G/40c", "12G", "2G/10c", "10G/40c+2G/10c"]))
            names = ", ".join(f"p{n}{g}{i} {size}" for i, size in enumerate(on.split("+"))) if on != "-" else "-"
            parts.append(f"g{g} 24G: {names}")
        nodes.append(f"n{n} {{ {'; '.join(parts)} }}")
    return " ".join(nodes)


@settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))
@given(drawn(), st.sampled_from([0, 1000, 2000]))
def test_what_can_be_relocated_is_never_called_hopeless(text, cpu):
    desk = desk_of(text, cpu)
    world = desk.world
    pods = sorted(world.on_node[0])
    if not pods:
        return
    short = missing(desk)
    world.open_node[0] = False
    for pod in pods:
        world.lift(pod)
    found = Relocator(world, verify=desk.verify, should_stop=lambda: False, fixed=pods).relocate(pods, extra=0)
    assert found.stuck is not None or short <= 0
