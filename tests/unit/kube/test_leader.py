"""One leader at any time, by our own clock; the lease is given back on stop; replicas know of each other."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta

import pytest

from defragd.kube.heartbeats import SEEN, KubeHeartbeats, lease_name
from defragd.kube.leader import AlwaysLeader, LeaderElector, decide
from defragd.kube.lease import Record, micro
from tests.support.fake_api import FakeApi

LEASES = "/apis/coordination.k8s.io/v1/leases"
FAST = {"lease_seconds": 1.0, "renew_deadline": 0.6, "retry_seconds": 0.05}


@pytest.fixture
def api():
    with FakeApi() as fake:
        yield fake


@pytest.mark.parametrize(
    ("record", "unchanged", "act"),
    [
        (Record(), 0.0, "take"),
        (Record(holder="", duration=1, revision="5"), 0.0, "take"),
        (Record(holder="me", duration=15, revision="5"), 99.0, "renew"),
        (Record(holder="you", duration=15, revision="5"), 14.9, "wait"),
        (Record(holder="you", duration=15, revision="5"), 15.1, "take"),
        (Record(holder="you", duration=0, revision="5"), 14.0, "wait"),
        # A renewal time far in the past or future says nothing: only what we watched counts.
        (Record(holder="you", duration=15, revision="5", renewed=datetime(2001, 1, 1, tzinfo=UTC)), 1.0, "wait"),
        (Record(holder="you", duration=15, revision="5", renewed=datetime(2101, 1, 1, tzinfo=UTC)), 16.0, "take"),
    ],
)
def test_decide(record, unchanged, act):
    assert decide(record, "me", unchanged).act == act


def elector(api, tmp_path, identity, **options):
    options = {**FAST, **options}
    return LeaderElector(api.client(tmp_path, timeout=0.3), namespace="gpu", identity=identity, **options)


def test_two_replicas_one_leader_and_a_quick_handover(api, tmp_path):
    told = []
    hook = lambda event, fields: told.append(fields["leader"]) if event == "leader.changed" else None
    both = [elector(api, tmp_path, name, hook=hook) for name in ("r1", "r2")]
    for one in both:
        one.start()
    api.wait(lambda: sum(e.is_leader() for e in both) == 1 and all(e.holder() for e in both))
    leader = next(e for e in both if e.is_leader())
    other = next(e for e in both if e is not leader)
    for _ in range(20):
        assert not other.is_leader()
        time.sleep(0.01)
    began = time.monotonic()
    leader.stop()
    assert not leader.is_leader()
    assert other.wait_leader(2.0)
    assert time.monotonic() - began < 0.9, "released, not waited out"
    assert other.holder() == other.identity and leader.identity in told
    assert api.objects[LEASES]["gpu/gpu-descheduler"]["spec"]["leaseTransitions"] >= 1
    other.stop()
    assert api.objects[LEASES]["gpu/gpu-descheduler"]["spec"]["holderIdentity"] == ""


def test_never_two_leaders_when_one_freezes(api, tmp_path):
    """The frozen one's fence falls before anybody else may take the lease."""
    first, second = elector(api, tmp_path, "r1"), elector(api, tmp_path, "r2")
    first.attempt()
    assert first.is_leader()
    end = time.monotonic() + 2.0
    while time.monotonic() < end and not second.is_leader():
        second.attempt()
        assert not (first.is_leader() and second.is_leader())
        time.sleep(0.02)
    assert second.is_leader() and not first.is_leader()
    first.attempt()
    assert not first.is_leader() and first.holder() == "r2"


def test_the_fence_falls_when_the_api_server_is_away_and_the_lease_is_taken_up_again(api, tmp_path):
    one = elector(api, tmp_path, "r1")
    one.start()
    try:
        assert one.wait_leader(2.0)
        api.forbidden.add(LEASES)
        api.wait(lambda: not one.is_leader(), 3)
        api.forbidden.clear()
        assert one.wait_leader(3.0)
    finally:
        one.stop()


def test_a_conflict_on_renewal_is_a_lost_lease(api, tmp_path):
    one = elector(api, tmp_path, "r1")
    one.attempt()
    lease = api.objects[LEASES]["gpu/gpu-descheduler"]
    api.put(LEASES, {**lease, "spec": {**lease["spec"], "holderIdentity": "thief", "leaseDurationSeconds": 15}})
    one.attempt()
    assert not one.is_leader() and one.holder() == "thief"


def test_a_renewal_costs_one_request(api, tmp_path):
    one = elector(api, tmp_path, "r1")
    one.attempt()
    before = len(api.requests)
    for _ in range(5):
        one.attempt()
    assert [r[0] for r in api.requests[before:]] == ["PUT"] * 5


def test_without_election():
    assert AlwaysLeader("me").is_leader() and AlwaysLeader("me").holder() == "me"


# -- heartbeats -----------------------------------------------------------------------------------------------------


def beats(api, tmp_path, identity, **options):
    made = KubeHeartbeats(api.client(tmp_path), namespace="gpu", identity=identity, **options)
    made.start()
    return made


def test_what_one_has_seen_the_other_knows_at_once(api, tmp_path):
    one, two = beats(api, tmp_path, "pod-1"), beats(api, tmp_path, "pod-2")
    try:
        two.set_serving(True)
        api.wait(lambda: [b.serving for b in one.others()] == [True])
        began = time.monotonic()
        two.publish(17)
        api.wait(lambda: [b.seen for b in one.others()] == [17])
        assert time.monotonic() - began < 1.0
        two.publish(5)
        time.sleep(0.1)
        assert [b.seen for b in one.others()] == [17], "seen never goes back"
        assert [b.identity for b in two.others()] == ["pod-1"]
        assert two.others()[0].serving is False
    finally:
        two.stop()
        api.wait(lambda: list(one.others()) == [])
        one.stop()
    assert api.objects[LEASES] == {}


def test_a_burst_is_written_four_times_a_second_at_most(api, tmp_path):
    one = beats(api, tmp_path, "pod-1")
    try:
        api.wait(lambda: api.objects.get(LEASES))
        before = sum(r[0] == "PUT" for r in api.requests)
        end = time.monotonic() + 0.6
        number = 0
        while time.monotonic() < end:
            number += 1
            one.publish(number)
            time.sleep(0.005)
        key = f"gpu/{lease_name('pod-1')}"
        api.wait(lambda: api.objects[LEASES][key]["metadata"]["annotations"][SEEN] == str(number), 2)
        assert sum(r[0] == "PUT" for r in api.requests) - before <= 5
    finally:
        one.stop()


def lease(identity: str, renewed: datetime, *, lasts: int = 1) -> dict:
    return {
        "metadata": {
            "namespace": "gpu",
            "name": lease_name(identity),
            "labels": {"app.kubernetes.io/component": "heartbeat", "app.kubernetes.io/name": "gpu-descheduler"},
            "annotations": {SEEN: "9"},
        },
        "spec": {"holderIdentity": identity, "leaseDurationSeconds": lasts, "renewTime": micro(renewed)},
    }


def test_the_dead_are_not_waited_for_and_buried(api, tmp_path):
    now = datetime.now(UTC)
    api.put(LEASES, lease("killed", now))
    api.put(LEASES, lease("long-dead", now - timedelta(hours=1)))
    one = beats(api, tmp_path, "pod-1", renew_seconds=0.1, forget_seconds=2.0)
    try:
        api.wait(one.synced)
        assert [b.identity for b in one.others()] == ["killed"], "it may have been alive a moment ago"
        api.wait(lambda: list(one.others()) == [], 3)
        api.wait(lambda: set(api.objects[LEASES]) == {f"gpu/{lease_name('pod-1')}"}, 5)
    finally:
        one.stop()


def test_a_clock_that_is_a_minute_off_does_not_make_a_replica_dead(api, tmp_path):
    one = beats(api, tmp_path, "pod-1")
    try:
        for offset in (-60, 60, -600):
            api.put(LEASES, lease("odd-clock", datetime.now(UTC) + timedelta(seconds=offset), lasts=20))
            api.wait(lambda: one.wait(-1, 0) and [b.identity for b in one.others()] == ["odd-clock"])
    finally:
        one.stop()


def test_without_the_right_to_delete_a_lease_is_emptied(api, tmp_path):
    told = []
    one = beats(api, tmp_path, "pod-1")
    two = beats(api, tmp_path, "pod-2", hook=lambda e, f: told.append(e))
    try:
        api.wait(lambda: [b.identity for b in one.others()] == ["pod-2"])
        api.answer("DELETE", f"/apis/coordination.k8s.io/v1/namespaces/gpu/leases/{lease_name('pod-2')}", 403, {})
        two.stop()
        assert api.objects[LEASES][f"gpu/{lease_name('pod-2')}"]["spec"]["holderIdentity"] == ""
        api.wait(lambda: list(one.others()) == [])
    finally:
        one.stop()


def test_names_of_leases():
    assert lease_name("Pod_A.1") == "gpu-descheduler-pod-a.1"
    assert len(lease_name("x" * 300)) <= 253


def test_no_thread_is_left(api, tmp_path):
    before = set(threading.enumerate())
    one, beat = elector(api, tmp_path, "r1"), beats(api, tmp_path, "pod-1")
    one.start()
    one.stop()
    beat.stop()
    left = [t for t in set(threading.enumerate()) - before if t.name.startswith(("leader", "heartbeat", "watch"))]
    assert left == []


def test_a_heartbeat_is_collected_with_its_pod(api, tmp_path):
    """The role may not delete leases, so that of a dead replica must go with its pod."""
    one = beats(api, tmp_path, "defragd-0", pod=("defragd-0", "uid-0"))
    try:
        api.wait(lambda: api.objects.get(LEASES))
        (lease,) = api.objects[LEASES].values()
        assert lease["metadata"]["name"] == lease_name("defragd-0")
        assert lease["metadata"]["ownerReferences"] == [
            {"apiVersion": "v1", "kind": "Pod", "name": "defragd-0", "uid": "uid-0"}
        ]
    finally:
        one.stop()
