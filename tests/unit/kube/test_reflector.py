"""List and watch against an API that breaks in every way; the store must end up equal to the server's objects."""

from __future__ import annotations

import random
import threading
import time

import pytest

from defragd.kube import kinds, wire
from defragd.kube.reflector import Backoff, Kind, Reflector
from defragd.kube.store import Hub, Store
from tests.support.fake_api import FakeApi

PODS = "/api/v1/pods"


def pod(name: str, **labels: str) -> dict:
    return {"metadata": {"namespace": "a", "name": name, "labels": labels}, "spec": {"containers": []}, "status": {}}


class Rig:
    def __init__(self, folder, **options) -> None:
        self.api = FakeApi().__enter__()
        self.events: list[tuple[str, dict]] = []
        self.hub = Hub()
        self.store: Store[wire.Pod] = Store(self.hub)
        self.client = self.api.client(folder, hook=self._hook)
        kind = options.pop("kind", Kind("pods", "Pod", PODS, wire.Pod))
        self.reflector = Reflector(self.client, kind, self.store, hook=self._hook, **options)

    def _hook(self, event, fields) -> None:
        self.events.append((event, dict(fields)))

    def names(self) -> set[str]:
        return {key.partition("/")[2] for key in self.store.items()}

    def until(self, *names: str, seconds: float = 5.0) -> None:
        self.api.wait(lambda: self.names() == set(names), seconds)

    def restarts(self) -> list[str]:
        return [fields["reason"] for event, fields in self.events if event == "watch.restart"]

    def close(self) -> None:
        self.reflector.stop()
        assert self.reflector.join(2.0), "the watch thread did not end"
        self.api.__exit__()


@pytest.fixture
def rig(tmp_path):
    made = Rig(tmp_path)
    yield made
    made.close()


def test_lists_in_pages_then_follows(rig):
    for n in range(1203):
        rig.api.put(PODS, pod(f"p{n}"))
    rig.reflector.start()
    rig.api.wait(lambda: len(rig.store) == 1203)
    assert rig.api.count("GET", PODS, watch=False) == 3
    rig.api.put(PODS, pod("p0", v="2"))
    rig.api.delete(PODS, "a/p1")
    rig.api.put(PODS, pod("new"))
    rig.api.wait(lambda: "a/new" in rig.store.items())
    assert rig.store.get("a/p0").metadata.labels == {"v": "2"}
    assert rig.store.get("a/p1") is None
    assert rig.api.count("GET", PODS, watch=False) == 3


def test_a_cut_watch_goes_on_from_its_revision_without_a_list(rig):
    rig.api.put(PODS, pod("one"))
    rig.reflector.start()
    rig.until("one")
    rig.api.wait(lambda: rig.api.watching)
    for name in ("two", "three"):
        assert rig.api.break_watches() == 1
        rig.api.put(PODS, pod(name))
        rig.api.wait(lambda name=name: f"a/{name}" in rig.store.items())
        rig.api.wait(lambda: rig.api.watching)
    assert rig.names() == {"one", "two", "three"}
    assert rig.api.count("GET", PODS, watch=False) == 1
    assert len(rig.restarts()) == 2


def test_an_expired_revision_lists_again_and_forgets_what_was_deleted_meanwhile(rig):
    for name in ("one", "two"):
        rig.api.put(PODS, pod(name))
    rig.api.bookmarks = False
    rig.reflector.start()
    rig.until("one", "two")
    rig.api.wait(lambda: rig.api.watching)
    with rig.api.lock:
        rig.api.break_watches()
        rig.api.delete(PODS, "a/one")
        rig.api.put(PODS, pod("three"))
        rig.api.log[PODS].clear()
        rig.api.compact()
    rig.until("two", "three")
    assert rig.api.count("GET", PODS, watch=False) == 2
    assert any("too old" in reason for reason in rig.restarts())


def test_http_410_on_the_watch_request_lists_again(rig):
    rig.api.put(PODS, pod("one"))
    rig.api.answer("GET", PODS, 200, {"metadata": {"resourceVersion": "1"}, "items": []})
    rig.api.answer("GET", PODS, 410, {"message": "too old resource version"})
    rig.reflector.start()
    rig.until("one")


def test_bookmarks_keep_a_quiet_watch_young_and_move_the_revision(rig):
    rig.api.put(PODS, pod("one"))
    rig.reflector.start()
    rig.until("one")
    rig.api.wait(lambda: rig.api.watching)
    for _ in range(3):
        rig.api.put("/api/v1/nodes", {"metadata": {"name": "elsewhere"}})
        want = rig.api.revision
        rig.api.wait(lambda want=want: rig.store.latest >= want)
    version = rig.hub.version
    assert rig.reflector.age_seconds() < 1.0
    assert rig.hub.version == version, "a bookmark changes nothing and wakes nobody"
    rig.api.break_watches()
    rig.api.wait(lambda: rig.api.count("GET", PODS, watch=True) == 2)
    assert int(rig.api.requests[-1][2]["resourceVersion"]) >= want


def test_a_silent_watch_is_given_up_and_reopened(tmp_path):
    rig = Rig(tmp_path, silence=0.15)
    rig.api.bookmarks = False
    rig.reflector.start()
    try:
        rig.api.wait(lambda: rig.api.count("GET", PODS, watch=True) >= 2)
        assert rig.restarts() == []
        assert rig.api.count("GET", PODS, watch=False) == 1
    finally:
        rig.close()


def test_stop_ends_a_blocked_watch_at_once(rig):
    rig.reflector.start()
    rig.api.wait(lambda: rig.api.watching)
    began = time.monotonic()
    rig.reflector.stop()
    assert rig.reflector.join(1.0)
    assert time.monotonic() - began < 0.5
    assert rig.restarts() == []


def test_a_server_that_ends_watches_at_once_is_not_hammered(rig):
    rig.api.drop_watches_at_once = True
    rig.reflector.start()
    time.sleep(0.6)
    assert 2 <= rig.api.count("GET", PODS, watch=True) <= 6


def test_a_server_that_is_down_at_first(rig):
    for _ in range(2):
        rig.api.answer("GET", PODS, 500, {"message": "etcd is away"})
    rig.api.put(PODS, pod("one"))
    rig.reflector.start()
    rig.until("one")
    assert any("etcd is away" in reason for reason in rig.restarts())
    assert rig.reflector.error is None


@pytest.mark.parametrize(("optional", "code"), [(True, 403), (False, 403), (True, 404)])
def test_a_kind_that_cannot_be_read_is_unavailable_until_it_can(tmp_path, optional, code):
    kind = Kind("pods", "Pod", PODS, wire.Pod, optional=optional)
    rig = Rig(tmp_path, kind=kind, retry_unavailable=0.1)
    rig.api.put(PODS, pod("one"))
    rig.api.answer("GET", PODS, code, {"message": "may not"})
    try:
        rig.reflector.start()
        rig.api.wait(lambda: rig.store.unavailable)
        assert "may not" in rig.store.unavailable
        assert ("watch.unavailable", "pods") in [(e, f.get("kind")) for e, f in rig.events]
        rig.until("one")
        assert rig.store.unavailable == "" and rig.store.synced
    finally:
        rig.close()


def test_one_broken_object_is_named_and_the_rest_is_read(rig):
    rig.api.put(PODS, pod("good"))
    rig.api.raw_items[PODS] = [
        b'{"metadata":{"namespace":"a","name":"odd","resourceVersion":"7"},"spec":{"containers":"many"}}',
        b'{"metadata":{"namespace":"a","name":"odder"},"spec":{"priority":"high"}}',
    ]
    rig.reflector.start()
    rig.until("good")
    problems = {problem.object: problem for problem in rig.store.problems()}
    assert set(problems) == {"a/odd", "a/odder"}
    assert "containers" in problems["a/odd"].detail
    assert [f["object"] for e, f in rig.events if e == "object.broken"] == ["a/odd", "a/odder"]


def test_an_object_that_breaks_later_takes_its_old_version_with_it_and_heals(rig):
    rig.api.put(PODS, pod("x"))
    rig.reflector.start()
    rig.until("x")
    rig.api.put(PODS, {**pod("x"), "spec": {"containers": [], "priority": "high"}})
    rig.until()
    assert [p.object for p in rig.store.problems()] == ["a/x"]
    rig.api.put(PODS, pod("x"))
    rig.until("x")
    assert rig.store.problems() == []


def test_garbage_on_the_stream_lists_again(rig):
    rig.api.put(PODS, pod("one"))
    rig.reflector.start()
    rig.until("one")
    rig.api.wait(lambda: rig.api.watching)
    rig.api.answer("GET", PODS, 200, b'{"type":"ADDED","object":{}\nnot json\n')
    rig.api.break_watches()
    rig.api.wait(lambda: rig.api.count("GET", PODS, watch=False) == 2)
    rig.until("one")


def test_after_chaos_the_store_is_the_servers_state(rig):
    """Breaks, expiries and slow answers at random while objects change; never a list more than expiries need."""
    dice = random.Random(7)
    rig.reflector.start()
    expiries = 0
    for step in range(150):
        what = dice.random()
        if what < 0.75:
            rig.api.put(PODS, pod(f"p{dice.randrange(20)}", v=str(step)))
        elif what < 0.9 and rig.api.objects.get(PODS):
            rig.api.delete(PODS, dice.choice(sorted(rig.api.objects[PODS])))
        elif what < 0.98:
            rig.api.break_watches()
        else:
            expiries += 1
            with rig.api.lock:
                rig.api.break_watches()
                rig.api.compact()
        if step % 10 == 0:
            time.sleep(0.005)
    want = lambda: {k: o["metadata"]["resourceVersion"] for k, o in rig.api.objects[PODS].items()}
    have = lambda: {k: o.metadata.resource_version for k, o in rig.store.items().items()}
    rig.api.wait(lambda: want() == have(), 15)
    assert rig.api.count("GET", PODS, watch=False) <= 1 + expiries


def test_backoff_grows_with_jitter_to_its_limit_and_resets():
    backoff = Backoff(0.1, 1.0)
    pauses = [backoff.pause() for _ in range(8)]
    assert all(0.06 <= pauses[0] <= 0.1 and p <= 1.0 for p in pauses)
    assert min(pauses[-3:]) >= 0.6
    backoff.reset()
    assert backoff.pause() <= 0.1


# -- the store ------------------------------------------------------------------------------------------------------


def item(name: str, revision: str) -> wire.Pod:
    return wire.Pod(metadata=wire.ObjectMeta(name=name, namespace="a", resource_version=revision))


def test_a_store_never_goes_back():
    store: Store[wire.Pod] = Store(Hub())
    assert store.upsert("a/x", item("x", "10"), "10")
    assert not store.upsert("a/x", item("x", "9"), "9"), "9 < 10 as numbers, though not as text"
    assert not store.upsert("a/x", item("x", "10"), "10")
    store.remove("a/x", "12")
    assert not store.upsert("a/x", item("x", "11"), "11"), "an answer older than the deletion"
    assert store.upsert("a/x", item("x", "13"), "13")
    store.remove("a/x", "12")
    assert store.revision("a/x") == "13", "an older deletion does not take a newer object"


def test_a_list_keeps_own_writes_that_are_newer():
    store: Store[wire.Pod] = Store(Hub())
    store.upsert("a/mine", item("mine", "30"), "30")
    store.upsert("a/old", item("old", "10"), "10")
    store.replace({"a/mine": (item("mine", "15"), "15")}, "20", {})
    assert store.revision("a/mine") == "30"
    assert store.get("a/old") is None


def test_changes_are_told_once():
    store: Store[wire.Pod] = Store(Hub())
    store.replace({"a/x": (item("x", "1"), "1"), "a/y": (item("y", "2"), "2")}, "5", {})
    assert set(store.take_changes()) == {"a/x", "a/y"}
    store.replace({"a/x": (item("x", "1"), "1")}, "6", {})
    assert store.take_changes() == {"a/y": None}
    store.touch(["a/x", "a/unknown"])
    assert set(store.take_changes()) == {"a/x"}
    assert store.take_changes() == {}


def test_waiting_wakes_on_the_first_change_and_times_out():
    hub = Hub()
    store: Store[wire.Pod] = Store(hub)
    before = hub.version
    threading.Timer(0.05, lambda: store.upsert("a/x", item("x", "1"), "1")).start()
    began = time.monotonic()
    assert hub.wait(before, 5.0) > before
    assert time.monotonic() - began < 1.0
    assert hub.wait(hub.version, 0.02) == hub.version


def node(stamp: str, revision: str, **labels: str) -> wire.Node:
    meta = wire.ObjectMeta(
        name="n", resource_version=revision, labels=labels, annotations={"hami.io/node-handshake": stamp}
    )
    return wire.Node(metadata=meta)


def test_a_renewed_handshake_wakes_nobody_but_its_word_does():
    hub = Hub()
    store: Store[wire.Node] = Store(hub, kinds.same_node)
    store.upsert("n", node("Requesting_2026-09-01 02:00:00", "1"), "1")
    store.take_changes()
    version = hub.version
    store.upsert("n", node("Requesting_2026-09-01 02:00:30", "2"), "2")
    assert (hub.version, store.take_changes(), store.revision("n")) == (version, {}, "2")
    store.upsert("n", node("Deleted_2026-09-01 02:01:00", "3"), "3")
    assert hub.version > version and "n" in store.take_changes()
    store.upsert("n", node("Deleted_2026-09-01 02:01:00", "4", gpu="on"), "4")
    assert "n" in store.take_changes()
