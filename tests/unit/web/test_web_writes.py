"""Changes through the API: who may, what is written, what is refused and why."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from defragd.core.reasons import Reason
from defragd.core.run import RunPhase
from defragd.errors import ConfigError, NotLeader, Unreachable
from defragd.ports import Outcome, Written
from defragd.web.app import MAX_BODY
from defragd.web.deps import User
from tests.support.web_client import ROOT, RUN, check, client, problem
from tests.support.web_world import WebWorld, build_world


@pytest.fixture
def world() -> WebWorld:
    return build_world()


@pytest.mark.parametrize(
    ("run", "action", "desired"),
    [("weekly-drain-1", "approve", "Approved"), ("nightly-consolidation-3", "pause", "Paused"),
     ("nightly-consolidation-3", "cancel", "Cancelled")],
)  # fmt: skip
def test_steering_writes_what_was_asked_with_the_user_and_leaves_a_trace(run, action, desired) -> None:
    notes: list = []

    class Sink:
        def emit(self, note):
            notes.append(note)

    world = build_world(events=Sink())
    answer = client(world).post(f"/api/v1/runs/{run}:{action}", headers=ROOT)
    assert answer.status_code == 200 and json.loads(answer.data)["desired"] == desired
    assert world.runs.writes == [(run, desired, "alice@example.com")]
    assert notes[0].kind == "DefragRun" and notes[0].name == run and "alice@example.com" in notes[0].message
    assert ("api.write", {"verb": action, "run": run, "policy": world.runs.get(run).policy,
                          "user": "alice@example.com"}) in world.events  # fmt: skip


def test_pause_then_resume(world: WebWorld) -> None:
    c = client(world)
    c.post("/api/v1/runs/nightly-consolidation-3:pause", headers=ROOT)
    c.post("/api/v1/runs/nightly-consolidation-3:resume", headers=ROOT)
    assert [w[1] for w in world.runs.writes] == ["Paused", ""]


def test_asking_twice_writes_once(world: WebWorld) -> None:
    c = client(world)
    assert [c.post(f"{RUN}:approve", headers=ROOT).status_code for _ in range(2)] == [200, 200]
    assert len(world.runs.writes) == 1


@pytest.mark.parametrize(
    ("path", "status", "reason"),
    [
        ("/api/v1/runs/nightly-consolidation-3:approve", 409, "NotAwaitingApproval"),
        ("/api/v1/runs/nightly-consolidation-3:resume", 409, "NotPaused"),
        ("/api/v1/runs/nightly-consolidation-1:cancel", 409, "RunEnded"),
        ("/api/v1/runs/nope:cancel", 404, "RunUnknown"),
        ("/api/v1/runs/weekly-drain-1:explode", 404, "UnknownAction"),
        ("/api/v1/policies/nope:run", 404, "PolicyUnknown"),
        ("/api/v1/policies/make-room:run", 409, "BreakerOpen"),
    ],
)
def test_what_cannot_be_done_is_refused_with_its_reason(world: WebWorld, path: str, status: int, reason: str) -> None:
    problem(client(world).post(path, headers=ROOT), status, reason)
    assert world.runs.writes == []


def test_cancelling_is_final(world: WebWorld) -> None:
    world.runs.items = [replace(r, desired="Cancelled") for r in world.runs.items]
    problem(client(world).post(f"{RUN}:approve", headers=ROOT), 409, "Cancelled")


@pytest.mark.parametrize(
    ("headers", "status", "reason"),
    [({}, 401, "Unauthorized"), ({"Authorization": "Bearer guest"}, 403, "Forbidden")],
)
def test_writes_need_a_user_who_may(world: WebWorld, headers, status: int, reason: str) -> None:
    answer = client(world).post(f"{RUN}:approve", headers=headers)
    problem(answer, status, reason)
    assert world.runs.writes == []
    assert (status == 401) == ("WWW-Authenticate" in answer.headers)


def test_writes_are_off_unless_enabled() -> None:
    world = build_world(writes_enabled=False)
    problem(client(world).post(f"{RUN}:approve", headers=ROOT), 403, "WritesDisabled")
    problem(client(world).post("/api/v1/policies/weekly-drain:run", headers=ROOT), 403, "WritesDisabled")
    assert world.runs.writes == []


def test_an_authority_that_cannot_be_asked_allows_nothing() -> None:
    def unreachable(request):
        raise Unreachable("the API server does not answer")

    world = build_world(authorize=unreachable)
    problem(client(world).post(f"{RUN}:approve", headers=ROOT), 503, "NotReady")
    assert world.runs.writes == []


@pytest.mark.parametrize(
    ("answer", "status"),
    [(Written(Outcome.CONFLICT, "changed meanwhile"), 409), (Written(Outcome.GONE), 404),
     (Written(Outcome.REFUSED, "no rights"), 422), (Written(Outcome.UNKNOWN), 502),
     (Written(Outcome.BLOCKED, retry_after=3.2), 429)],
)  # fmt: skip
def test_what_the_api_server_refuses_is_handed_on(world: WebWorld, answer: Written, status: int) -> None:
    world.runs.answer = answer
    got = client(world).post(f"{RUN}:approve", headers=ROOT)
    problem(got, status, str(answer.outcome))
    assert got.headers.get("Retry-After") == ("4" if status == 429 else None)


def test_only_the_leader_may(world: WebWorld) -> None:
    world.runs.raises = NotLeader("lost")
    body = problem(client(world).post(f"{RUN}:approve", headers=ROOT), 503, "NotLeader")
    assert world.leader.identity in body["detail"]


def test_running_a_policy_gives_the_run() -> None:
    asked = []

    def plan_now(policy: str, user: User):
        asked.append((policy, user.name))
        return replace(world.runs.items[0], name="fresh", phase=RunPhase.PLANNED)

    world = build_world(plan_now=plan_now)
    answer = client(world).post("/api/v1/policies/weekly-drain:run", headers=ROOT, json={})
    assert answer.status_code == 202 and json.loads(answer.data)["id"] == "fresh"
    assert asked == [("weekly-drain", "alice@example.com")]
    check(json.loads(answer.data), "RunDetail")
    problem(
        client(build_world(plan_now=None)).post("/api/v1/policies/weekly-drain:run", headers=ROOT), 501, "NotOffered"
    )


def test_a_refusal_by_exception_keeps_its_reason() -> None:
    class Refused(ConfigError):
        reason, detail = Reason.STALE_DATA, "no fresh data"

    def plan_now(policy, user):
        raise Refused("x")

    world = build_world(plan_now=plan_now)
    body = problem(client(world).post("/api/v1/policies/weekly-drain:run", headers=ROOT), 409, "StaleData")
    assert body["detail"] == "no fresh data"


@pytest.mark.parametrize(
    ("more", "status", "reason"),
    [
        ({"data": "a=b", "content_type": "application/x-www-form-urlencoded"}, 415, "UnsupportedMediaType"),
        ({"data": "x", "content_type": "text/plain"}, 415, "UnsupportedMediaType"),
        ({"data": "[1]", "content_type": "application/json"}, 400, "BadBody"),
        ({"data": "{", "content_type": "application/json"}, 400, "BadBody"),
        ({"data": b"{" + b" " * MAX_BODY, "content_type": "application/json"}, 413, "TooLarge"),
    ],
)
def test_bodies(world: WebWorld, more, status: int, reason: str) -> None:
    problem(client(world).post(f"{RUN}:approve", headers=ROOT, **more), status, reason)
    assert world.runs.writes == []


@pytest.mark.parametrize(
    "headers",
    [{"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}, {"Origin": "https://evil.example"},
     {"Origin": "null"}],
)  # fmt: skip
def test_other_sites_may_not_write(world: WebWorld, headers) -> None:
    problem(client(world).post(f"{RUN}:approve", headers={**ROOT, **headers}), 403, "CrossSite")
    assert world.runs.writes == []


def test_writes_are_limited_in_rate(world: WebWorld) -> None:
    c = client(world)
    codes = [c.post("/api/v1/runs/nope:cancel", headers=ROOT).status_code for _ in range(30)]
    assert codes.count(404) == 20 and codes[-1] == 429
    world.clock.advance(5)
    assert c.post("/api/v1/runs/nope:cancel", headers=ROOT).status_code == 404


PLACEMENT = {
    "apiVersion": "scheduling.hami.placement.com/v1", "kind": "HamiPodPlacement",
    "metadata": {"namespace": "ads", "name": "pin-1"}, "spec": {"reqID": "r1"},
}  # fmt: skip


def test_a_placement_is_created_as_written_with_a_trace() -> None:
    notes: list = []
    asked: list = []

    class Sink:
        def emit(self, note):
            notes.append(note)

    def create(body, user):
        asked.append((body, user.name))
        return Written(Outcome.OK, body={**body, "metadata": {**body["metadata"], "uid": "u-1"}})

    world = build_world(events=Sink(), create_placement=create)
    answer = client(world).post("/api/v1/placements", headers=ROOT, json=PLACEMENT)
    assert answer.status_code == 201 and answer.json["metadata"]["uid"] == "u-1"
    assert asked == [(PLACEMENT, "alice@example.com")]
    note = notes[0]
    assert (note.kind, note.namespace, note.name, note.uid) == ("HamiPodPlacement", "ads", "pin-1", "u-1")
    assert "alice@example.com" in note.message


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        ({}, 400, "BadBody"),
        ({**PLACEMENT, "kind": "Pod"}, 400, "BadBody"),
        ({**PLACEMENT, "metadata": {"name": "x"}}, 400, "BadBody"),
        ({**PLACEMENT, "metadata": {"namespace": "a/../b", "name": "x"}}, 400, "BadBody"),
        ({**PLACEMENT, "metadata": {"namespace": "a", "name": "x", "annotations": "no"}}, 400, "BadBody"),
    ],
)
def test_what_is_no_placement_is_refused_before_anything_is_asked(body, status: int, reason: str) -> None:
    def never(*_):
        raise AssertionError("not to be reached")

    world = build_world(create_placement=never, authorize=never)
    problem(client(world).post("/api/v1/placements", headers=ROOT, json=body), status, reason)


def test_what_the_api_server_thinks_of_a_placement_is_handed_on() -> None:
    world = build_world(create_placement=lambda body, user: Written(Outcome.REFUSED, "spec.nodeName: Required value"))
    body = problem(client(world).post("/api/v1/placements", headers=ROOT, json=PLACEMENT), 422, "Refused")
    assert "nodeName" in body["detail"]
    problem(client(build_world()).post("/api/v1/placements", headers=ROOT, json=PLACEMENT), 501, "NotOffered")
    problem(client(build_world()).post("/api/v1/placements", json=PLACEMENT), 401, "Unauthorized")
