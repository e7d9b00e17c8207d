"""Our two kinds: values -> object -> values without loss, and nothing that the CRD's schema would drop or refuse."""

from __future__ import annotations

import functools
import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from defragd.core.model import Allocation, Expression, Resources, Selector
from defragd.core.placement import Assignment, Condition, Phase, Placement, PlacementSpec, PlacementStatus, Step
from defragd.core.plan import Move, Place, PlanReply, Refusal, Score
from defragd.core.plan_json import plan_to_json
from defragd.core.rules import Timeouts
from defragd.core.run import MoveState, Run, RunMove, RunPhase
from defragd.kube.errors import BrokenObject
from defragd.kube.placements import placement_from_wire, placement_to_object, status_to_object
from defragd.kube.runs import run_from_wire, run_status_to_object, run_to_object
from defragd.kube.times import format_span, format_time, parse_span, parse_time
from defragd.kube.wire_custom import PlacementWire, RunWire
from tests.support.effort import examples

CRDS = Path(__file__).parents[3] / "crds"
names = st.from_regex(r"[a-z][a-z0-9-]{0,10}[a-z0-9]", fullmatch=True)
spans = st.integers(1, 10**8).map(lambda ms: timedelta(milliseconds=ms))
times = st.datetimes(datetime(2020, 1, 1), datetime(2100, 1, 1)).map(lambda t: t.replace(tzinfo=UTC))
uuids = st.from_regex(r"GPU-[0-9a-f]{8}", fullmatch=True)


@functools.cache
def schema(plural: str) -> dict:
    crd = yaml.safe_load((CRDS / f"{plural}.yaml").read_text())
    return crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


def unfit(value, model: dict, place: str = "") -> list[str]:
    """What the API server would drop (unknown fields) or refuse (types, enums, bounds); CEL is judged by the server."""
    if model.get("x-kubernetes-preserve-unknown-fields"):
        return []
    kind = model.get("type")
    want = {"object": dict, "array": list, "string": str, "boolean": bool, "integer": int, "number": (int, float)}[kind]
    if not isinstance(value, want) or (kind == "integer" and isinstance(value, bool)):
        return [f"{place}: {value!r} is no {kind}"]
    out: list[str] = []
    if kind == "object":
        known = model.get("properties")
        if known is None and "additionalProperties" in model:
            for key, item in value.items():
                out += unfit(item, model["additionalProperties"], f"{place}.{key}")
        elif place == ".metadata":
            return []
        else:
            for key, item in value.items():
                out += unfit(item, known[key], f"{place}.{key}") if key in known else [f"{place}.{key}: unknown"]
        out += [f"{place}.{key}: missing" for key in model.get("required", []) if key not in value]
    elif kind == "array":
        if not model.get("minItems", 0) <= len(value) <= model.get("maxItems", 10**9):
            out.append(f"{place}: {len(value)} items")
        for n, item in enumerate(value):
            out += unfit(item, model["items"], f"{place}[{n}]")
    elif kind == "string":
        if "enum" in model and value not in model["enum"]:
            out.append(f"{place}: {value!r} not in enum")
        if not model.get("minLength", 0) <= len(value) <= model.get("maxLength", 10**9):
            out.append(f"{place}: length {len(value)}")
        if model.get("format") == "date-time" and not re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", value):
            out.append(f"{place}: {value!r} is no date-time")
    return out


selectors = st.builds(
    Selector,
    st.lists(
        st.one_of(
            st.builds(Expression, names, st.just("In"), st.tuples(names)),
            st.builds(Expression, names, st.sampled_from(["In", "NotIn"]), st.tuples(names, names)),
            st.builds(Expression, names, st.sampled_from(["Exists", "DoesNotExist"])),
        ),
        min_size=1,
        max_size=4,
        unique_by=lambda e: e.key,
    ).map(tuple),
)
specs = st.builds(
    PlacementSpec,
    req_id=names,
    pod_selector=selectors,
    node_name=names,
    gpu_devices=st.lists(uuids, min_size=1, max_size=8, unique=True).map(tuple),
    evict_pod=st.one_of(st.just(""), names),
    timeouts=st.builds(Timeouts, spans, spans, spans, spans),
    settle=spans,
    ttl=spans,
    suspend=st.booleans(),
    handover=st.sampled_from(["EvictFirst", "SurgeFirst"]),
    alternatives=st.sampled_from([(), ("gpu-2", "GPU-abc")]),
)
moments = st.one_of(st.none(), times)
statuses = st.builds(
    PlacementStatus,
    phase=st.sampled_from(Phase),
    step=st.sampled_from(Step),
    observed_generation=st.integers(0, 9),
    reason=names,
    message=st.text(max_size=50),
    devices=st.lists(uuids, max_size=3).map(tuple),
    owner_uid=names,
    evicted_uid=names,
    eviction_accepted=st.booleans(),
    pod_name=names,
    pod_uid=names,
    held_at=moments,
    evicting_at=moments,
    evicted_at=moments,
    pinned_at=moments,
    consumed_at=moments,
    ready_at=moments,
    ended_at=moments,
    recycled=st.booleans(),
    claim=st.sampled_from(["", "c0ffee"]),
    conditions=st.lists(
        st.builds(
            Condition, names, st.sampled_from(["True", "False", "Unknown"]), names, names, times, st.integers(0, 9)
        ),
        max_size=3,
    ).map(tuple),
    assignments=st.lists(st.builds(Assignment, names, names, names, uuids), max_size=2).map(tuple),
    hold=st.lists(
        st.builds(
            Allocation, st.integers(0, 3), uuids, st.integers(0, 10**5), st.integers(0, 400), names, st.booleans()
        ),
        max_size=3,
    ).map(tuple),
    hold_resources=st.one_of(
        st.none(),
        st.builds(
            Resources,
            st.integers(0, 10**6),
            st.integers(0, 10**13),
            st.integers(0, 9),
            st.integers(0, 10**13),
            st.dictionaries(names, st.integers(0, 99), max_size=2),
        ),
    ),
    grace_seconds=st.integers(0, 10**5),
)


def canonical(selector: Selector) -> set[Expression]:
    return set(selector.expressions)


@settings(max_examples=examples(40), deadline=None)
@given(specs, statuses)
def test_placements_survive_the_round_trip_and_fit_the_schema(spec, status):
    placement = Placement("ns", "p", spec, labels={"a": "b"}, finalizers=("x/y",))
    obj = placement_to_object(placement)
    assert "status" not in obj
    obj["status"] = status_to_object(status)
    assert unfit(obj, schema("hamipodplacements")) == []
    back = placement_from_wire(msgspec.json.decode(json.dumps(obj), type=PlacementWire))
    assert canonical(back.spec.pod_selector) == canonical(spec.pod_selector)
    same = PlacementSpec(**{**_fields(back.spec), "pod_selector": spec.pod_selector})
    assert same == spec
    assert back.status == status
    assert (back.labels, back.finalizers, back.key) == ({"a": "b"}, ("x/y",), "ns/p")


def _fields(value) -> dict:
    return {name: getattr(value, name) for name in value.__dataclass_fields__}


def test_only_the_five_fields_are_written_for_a_plain_placement():
    spec = PlacementSpec("r", Selector((Expression("app", "In", ("x",)),)), "n1", ("gpu-0",), evict_pod="x-1")
    assert placement_to_object(Placement("ns", "p", spec))["spec"] == {
        "reqID": "r",
        "podSelector": {"matchLabels": {"app": "x"}},
        "nodeName": "n1",
        "gpuDevices": ["gpu-0"],
        "evictPod": "x-1",
    }


def test_a_placement_without_status_is_new_and_groups_are_read():
    text = '{"metadata":{"name":"p","namespace":"ns"},"spec":{"reqID":"r","group":"g","groupSize":3,"evictPodUID":"u"}}'
    placement = placement_from_wire(msgspec.json.decode(text, type=PlacementWire))
    assert placement.open and placement.status == PlacementStatus()
    assert (placement.spec.group, placement.spec.group_size, placement.spec.evict_pod_uid) == ("g", 3, "u")
    assert placement.spec.timeouts == Timeouts()


@pytest.mark.parametrize(
    "spec", [{"settle": "soon"}, {"ttl": "-5m"}, {"timeouts": {"hold": "2 m"}}, {"timeouts": {"pod": "1d"}}]
)
def test_what_an_old_server_lets_in_is_named(spec):
    obj = msgspec.json.decode(
        json.dumps({"metadata": {"name": "p", "namespace": "ns"}, "spec": spec}), type=PlacementWire
    )
    with pytest.raises(BrokenObject, match=r"HamiPodPlacement ns/p: .*time span"):
        placement_from_wire(obj)


def test_a_status_of_another_version_is_named():
    obj = msgspec.json.decode(
        '{"metadata":{"name":"p","namespace":"ns"},"status":{"phase":"Dreaming"}}', type=PlacementWire
    )
    with pytest.raises(BrokenObject, match="another version"):
        placement_from_wire(obj)


score = Score(0.5, 0.4, 1, 2, 3.5, {"host": 0.5}, ())
reply = PlanReply(
    "nightly",
    "best-fit",
    "loss",
    score,
    score,
    moves=(
        Move("m1", "a/b", "u", Place("n1", ("g1",)), Place("n2", ("g2",)), 1, ("m0",), "c1", 0.1, 1.0, "why", "D/a/b"),
    ),
    waves=(("m1",),),
    refused=(Refusal("a/c", "TooYoung", "2 minutes old"),),
    warnings=(Refusal("Node/n", "DeviceDistrusted", "twice"),),
    notes=("note",),
)
run_moves = st.builds(RunMove, names, st.sampled_from(MoveState), names, names, names, moments, moments)
runs = st.builds(
    Run,
    namespace=names,
    name=names,
    policy=names,
    mode=st.sampled_from(["DryRun", "Approve", "Auto"]),
    strategy=names,
    plan=st.just(plan_to_json(reply)),
    trigger=names,
    scheduled_for=moments,
    settings=st.just({"spec": {"x": [1]}}),
    desired=st.sampled_from(["", "Approved", "Paused", "Cancelled"]),
    desired_by=names,
    phase=st.sampled_from(RunPhase),
    reason=names,
    message=names,
    wave=st.integers(0, 9),
    moves=st.lists(run_moves, max_size=3, unique_by=lambda m: m.id).map(tuple),
    started=moments,
    finished=moments,
    annotations=st.just({"a": "b"}),
)


@settings(max_examples=examples(40), deadline=None)
@given(runs)
def test_runs_survive_the_round_trip_and_fit_the_schema(run):
    obj = run_to_object(run)
    obj["status"] = run_status_to_object(run)
    assert unfit(obj, schema("defragruns")) == []
    assert run_from_wire(msgspec.json.decode(json.dumps(obj), type=RunWire)) == run
    counts = obj["status"]["counts"]
    assert counts["planned"] == (len(run.moves) or 1)
    assert counts["done"] == sum(m.state is MoveState.DONE for m in run.moves)


@pytest.mark.parametrize(
    ("mode", "phase"),
    [("Approve", RunPhase.AWAITING_APPROVAL), ("DryRun", RunPhase.PLANNED), ("Auto", RunPhase.PLANNED)],
)
def test_a_run_whose_status_was_never_written_has_not_begun(mode, phase):
    obj = msgspec.json.decode(json.dumps({"metadata": {"name": "r"}, "spec": {"mode": mode}}), type=RunWire)
    assert run_from_wire(obj).phase is phase


@settings(deadline=None)
@given(spans)
def test_spans(span):
    text = format_span(span)
    assert parse_span(text, timedelta()) == span
    assert re.fullmatch(r"([0-9]+([.][0-9]+)?(ms|s|m|h))+", text)


@settings(deadline=None)
@given(times)
def test_times(value):
    assert parse_time(format_time(value)) == value


@pytest.mark.parametrize("text", ["yesterday", "2026-09-01", "2026-09-01T02:00:00", "12"])
def test_what_is_no_time(text):
    with pytest.raises(BrokenObject):
        parse_time(text)


def test_zones_become_utc():
    assert parse_time("2026-09-01T04:00:00+02:00") == datetime(2026, 9, 1, 2, tzinfo=UTC)
    assert parse_time("") is None and format_time(None) is None
    assert format_span(timedelta()) == "0s"


@pytest.mark.parametrize(
    ("spec", "annotation", "desired"),
    [
        ("", "Approved", "Approved"),
        ("", " Paused ", "Paused"),
        ("", "Cancelled", "Cancelled"),
        ("", "approved", ""),
        ("", "rm -rf", ""),
        ("Paused", "Approved", "Paused"),
        ("Approved", "Paused", "Paused"),
        ("Paused", "Cancelled", "Cancelled"),
        ("Paused", "", "Paused"),
    ],
)
def test_a_wish_may_be_an_annotation_on_the_run(spec, annotation, desired):
    body = {
        "metadata": {"namespace": "kube-system", "name": "r", "annotations": {"defragd.io/desired": annotation}},
        "spec": {"policy": "p", "mode": "Approve", "strategy": "best-fit", "desired": spec},
    }
    run = run_from_wire(msgspec.convert(body, RunWire))
    assert run.desired == desired
    assert bool(run.desired_by) is (desired != spec)
