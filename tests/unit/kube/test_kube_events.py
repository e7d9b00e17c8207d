"""Events: deduplicated, capped, in the background; whatever goes wrong, nobody notices."""

from __future__ import annotations

import time

import pytest

from defragd.errors import ConfigError, Forbidden, MissingResource
from defragd.kube import discovery
from defragd.kube.events import KubeEvents
from defragd.ports import Note
from tests.support.fake_api import FakeApi

EVENTS = "/api/v1/events"


@pytest.fixture
def api():
    with FakeApi() as fake:
        yield fake


def note(reason="Held", message="m", **fields) -> Note:
    return Note(
        **{"kind": "Pod", "namespace": "a", "name": "x", "uid": "u", "reason": reason, "message": message, **fields}
    )


def test_repeats_are_dropped_and_the_rest_is_sent(api, tmp_path):
    sink = KubeEvents(api.client(tmp_path), identity="me")
    sink.start()
    for _ in range(3):
        sink.emit(note())
    sink.emit(note(message="other"))
    sink.emit(note(kind="HamiPodPlacement", warning=True))
    sink.stop()
    sent = list(api.objects[EVENTS].values())
    assert [(e["involvedObject"]["kind"], e["message"], e["type"]) for e in sent] == [
        ("Pod", "m", "Normal"),
        ("Pod", "other", "Normal"),
        ("HamiPodPlacement", "m", "Warning"),
    ]
    assert sent[2]["involvedObject"]["apiVersion"] == "scheduling.hami.placement.com/v1"
    assert sent[0]["involvedObject"]["uid"] == "u" and sent[0]["reportingComponent"] == "gpu-descheduler"
    assert len({e["metadata"]["name"] for e in sent}) == 3


@pytest.mark.parametrize("text", ["x" * 5000, "é" * 3000, "🟢" * 1000])
def test_long_messages_are_cut_at_the_servers_limit(api, tmp_path, text):
    sink = KubeEvents(api.client(tmp_path), identity="me")
    sink.start()
    sink.emit(note(message=text))
    sink.stop()
    (sent,) = api.objects[EVENTS].values()
    assert len(sent["message"].encode()) <= 1024 and sent["message"].endswith("…")


def test_trouble_is_told_to_the_hook_and_to_nobody_else(api, tmp_path):
    told = []
    api.answer("POST", "/api/v1/namespaces/a/events", 403, {"message": "may not"})
    api.answer("POST", "/api/v1/namespaces/a/events", 0)
    sink = KubeEvents(api.client(tmp_path), identity="me", hook=lambda e, f: told.append((e, dict(f))))
    sink.start()
    for reason in ("One", "Two", "Three"):
        sink.emit(note(reason))
    sink.stop()
    failed = [f["reason"] for e, f in told if e == "event.failed"]
    assert len(failed) == 2 and failed[0] == "may not"
    assert [e["reason"] for e in api.objects[EVENTS].values()] == ["Three"]


def test_a_full_queue_never_blocks(api, tmp_path):
    told = []
    sink = KubeEvents(api.client(tmp_path), identity="me", hook=lambda e, f: told.append(e))
    began = time.monotonic()
    for n in range(1200):
        sink.emit(note(message=str(n)))
    assert time.monotonic() - began < 2.0
    assert told.count("event.dropped") == 1


# -- discovery ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "gates", "supported"),
    [
        ({"major": "1", "minor": "36", "gitVersion": "v1.36.3"}, True, True),
        ({"major": "1", "minor": "27+", "gitVersion": "v1.27.3-gke.100"}, True, True),
        ({"major": "1", "minor": "26"}, False, True),
        ({"major": "", "minor": "", "gitVersion": "v1.23.17-eks"}, False, False),
    ],
)
def test_versions(api, tmp_path, answer, gates, supported):
    api.answer("GET", "/version", 200, answer)
    found = discovery.server_version(api.client(tmp_path))
    assert (found.gates, found.supported) == (gates, supported)


GROUP = "/apis/scheduling.hami.placement.com/v1"


def test_missing_resources_are_said_with_the_mend(api, tmp_path):
    client = api.client(tmp_path)
    for answer in ((404, {"message": "404"}), (200, {"resources": [{"name": "hamipodplacements"}]})):
        api.answer("GET", GROUP, *answer)
        with pytest.raises(MissingResource, match="install the CRDs"):
            discovery.require_resources(client)
    api.answer("GET", GROUP, 200, {"resources": [{"name": "hamipodplacements"}, {"name": "defragruns"}]})
    discovery.require_resources(client)


CONFIG_MAP = "/api/v1/namespaces/kube-system/configmaps/hami-scheduler-device"


def test_hamis_configuration(api, tmp_path):
    client = api.client(tmp_path)
    read = lambda: discovery.read_device_config(client, "kube-system", "hami-scheduler-device")
    assert read() is None
    api.answer("GET", CONFIG_MAP, 403, {"message": "no"})
    assert read() is None
    api.answer("GET", CONFIG_MAP, 200, {"data": {"device-config.yaml": "nvidia:\n  resourceCountName: x.io/gpu\n"}})
    assert read().nvidia.count == "x.io/gpu"
    for text in ("a: [b", "- a"):
        api.answer("GET", CONFIG_MAP, 200, {"data": {"device-config.yaml": text}})
        with pytest.raises(ConfigError, match="hami-scheduler-device"):
            read()


DEPLOYMENTS = "/apis/apps/v1/namespaces/kube-system/deployments"


def test_an_installation_is_its_configuration_and_its_flags(api, tmp_path):
    client = api.client(tmp_path)
    read = lambda: discovery.read_installation(client, "kube-system", "hami-scheduler-device")
    assert read() is None
    command = ["scheduler", "--device-config-file=/x", "--gpu-scheduler-policy=binpack"]
    pod = {"containers": [{"image": "projecthami/hami:v2.7.1", "command": command}]}
    deployed = (200, {"items": [{"spec": {"template": {"spec": pod}}}]})
    named = (200, {"data": {"device-config.yaml": "nvidia:\n  resourceCountName: x.io/gpu\n"}})
    closed = (403, {"message": "no"})
    for maps, deployments, wanted in (
        (closed, deployed, ("2.7", "binpack", "nvidia.com/gpu")),
        (named, deployed, ("2.7", "binpack", "x.io/gpu")),
        (named, closed, ("2.10", "spread", "x.io/gpu")),
    ):
        api.answer("GET", CONFIG_MAP, *maps)
        api.answer("GET", DEPLOYMENTS, *deployments)
        found = read()
        assert (found.version, found.device_policy, found.nvidia.count) == wanted


def test_a_closed_discovery_does_not_stop_the_start(api, tmp_path):
    api.answer("GET", GROUP, 403, {"message": "no"})
    discovery.require_resources(api.client(tmp_path))
    api.answer("GET", "/version", 403, {"message": "no"})
    with pytest.raises(Forbidden):
        discovery.server_version(api.client(tmp_path))
