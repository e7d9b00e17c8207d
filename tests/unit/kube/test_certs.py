"""Certificates: a real TLS client must accept them, a rotation must never break a call, two replicas must agree."""

from __future__ import annotations

import base64
import json
import socket
import ssl
import threading
from datetime import UTC, datetime, timedelta

import pytest

from defragd.errors import ConfigError
from defragd.kube import pki, webhook_config
from defragd.kube.certs import SECRET, CertKeeper, hosts_of_url, service_hosts
from tests.support.fake_api import FakeApi

NOW = datetime(2026, 9, 1, tzinfo=UTC)
HOSTS = ("127.0.0.1", "gpu-descheduler-webhook.kube-system.svc")
SECRETS = "/api/v1/secrets"
CONFIGS = webhook_config.PATH
KEY = f"gpu/{SECRET}"


@pytest.fixture
def api():
    with FakeApi() as fake:
        yield fake


def handshake(tmp_path, material: pki.Material, bundle: bytes, host: str) -> str:
    """ "" when a client that trusts ``bundle`` accepts the pair for ``host``."""
    for name, data in (("crt", material.cert), ("key", material.key)):
        (tmp_path / name).write_bytes(data)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tmp_path / "crt", tmp_path / "key")
    client = ssl.create_default_context(cadata=bundle.decode())
    left, right = socket.socketpair()

    def serve() -> None:
        try:
            server.wrap_socket(left, server_side=True).close()
        except OSError:
            left.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        client.wrap_socket(right, server_hostname=host).close()
        return ""
    except ssl.SSLError as err:
        right.close()
        return str(err)
    finally:
        thread.join(5)


def fresh(now: datetime | None = None) -> pki.Material:
    return pki.renew(None, HOSTS, now or datetime.now(UTC), trusted=b"")


@pytest.mark.parametrize("host", HOSTS)
def test_a_tls_client_accepts_the_pair_under_every_host(tmp_path, host):
    material = fresh()
    assert pki.check(material) == ""
    assert handshake(tmp_path, material, material.bundle, host) == ""
    assert "IP address mismatch" in handshake(tmp_path, material, material.bundle, "10.0.0.1")
    assert "verify failed" in handshake(tmp_path, material, fresh().bundle, host)


def test_nothing_is_due_for_nine_months_then_the_pair_is_renewed_under_the_same_authority():
    first = fresh(NOW)
    for days in (0, 1, 274):
        assert pki.renew(first, HOSTS, NOW + timedelta(days=days), trusted=first.bundle) is None
    second = pki.renew(first, HOSTS, NOW + timedelta(days=276), trusted=first.bundle)
    assert second is not None and second.cas == first.cas and second.cert != first.cert
    assert pki.check(second) == ""


def test_a_new_host_means_a_new_pair_that_keeps_the_old_hosts(tmp_path):
    first = fresh()
    second = pki.renew(first, ("new.example",), datetime.now(UTC), trusted=first.bundle)
    for host in ("new.example", *HOSTS):
        assert handshake(tmp_path, second, first.bundle, host) == ""
    assert pki.renew(second, HOSTS, datetime.now(UTC), trusted=first.bundle) is None


def test_an_authority_is_announced_before_it_signs_and_the_old_one_stays_trusted():
    first = fresh(NOW)
    late = NOW + timedelta(days=3650 - 300)
    pair = pki.make_pair(first.cas[0], first.ca_key, HOSTS, late)
    current = pki.Material(first.cas, first.ca_key, *pair)
    announced = pki.renew(current, HOSTS, late, trusted=current.bundle)
    assert announced is not None and len(announced.cas) == 2 and announced.cas[1] == first.cas[0]
    assert (announced.cert, announced.key) == (current.cert, current.key), "still the pair the API server trusts"
    assert pki.renew(announced, HOSTS, late, trusted=current.bundle) is None, "not before it is trusted"
    bundle = pki.merge_bundles(announced.cas, current.bundle, late)
    signed = pki.renew(announced, HOSTS, late, trusted=bundle)
    assert signed is not None and signed.cert != current.cert and set(signed.cas) == set(announced.cas)
    assert pki.check(signed) == ""
    assert pki.renew(signed, HOSTS, late, trusted=bundle) is None
    after = NOW + timedelta(days=3651)
    assert pki.alive(signed.cas, after) == (signed.cas[0],), "the old authority ends by itself"


def test_an_authority_that_ran_out_is_replaced_at_once():
    first = fresh(NOW)
    after = NOW + timedelta(days=4000)
    second = pki.renew(first, HOSTS, after, trusted=first.bundle)
    assert second is not None and pki.check(second) == "" and first.cas[0] not in second.cas


def test_bundles_only_grow_until_an_authority_runs_out():
    one, two = fresh(NOW), fresh(NOW + timedelta(days=400))
    merged = pki.merge_bundles(two.cas, one.bundle, NOW + timedelta(days=400))
    assert pki.split_bundle(merged) == (*two.cas, *one.cas)
    assert pki.merge_bundles(two.cas, merged, NOW + timedelta(days=400)) == merged
    assert pki.merge_bundles(two.cas, merged, NOW + timedelta(days=3700)) == two.bundle
    assert pki.merge_bundles(one.cas, b"garbage", NOW) == one.bundle


@pytest.mark.parametrize("part", ["cas", "ca_key", "cert", "key"])
def test_material_that_does_not_belong_together_is_told(part):
    one, two = fresh(NOW), fresh(NOW)
    for wrong in (getattr(two, part), (b"junk",) if part == "cas" else b"junk"):
        mixed = pki.Material(**{**{f: getattr(one, f) for f in one.__dataclass_fields__}, part: wrong})
        assert pki.check(mixed) != ""


# -- the keeper -----------------------------------------------------------------------------------------------------


def keeper(api, tmp_path, **options):
    fields = {"namespace": "gpu", "hosts": ("127.0.0.1",), "url": "https://127.0.0.1:8443/mutate", **options}
    made = CertKeeper(api.client(tmp_path), **fields)
    made.start()
    return made


def test_two_replicas_make_one_secret_and_one_registration(api, tmp_path):
    heard = []
    both = [keeper(api, tmp_path, on_pair=heard.append) for _ in range(2)]
    try:
        # The fake knows no server-side apply; the answer stands for it.
        api.wait(lambda: all(k.pair() for k in both))
        assert both[0].pair() == both[1].pair() and len(heard) == 2
        assert len([r for r in api.requests if r[0] == "POST" and r[1].endswith("/secrets")]) <= 2
        applied = next(r for r in api.requests if r[0] == "PATCH" and r[1] == f"{CONFIGS}/{webhook_config.NAME}")
        assert applied[2] == {"fieldManager": "defragd", "force": "true"}
        hook = applied[3]["webhooks"][0]
        assert (hook["failurePolicy"], hook["timeoutSeconds"]) == ("Ignore", 2)
        assert (hook["sideEffects"], hook["reinvocationPolicy"]) == ("NoneOnDryRun", "IfNeeded")
        assert base64.b64decode(hook["clientConfig"]["caBundle"]) == both[0].pair().ca
        assert not both[0].ready(), "the API server does not know our authority yet"
        api.put(CONFIGS, applied[3])
        api.wait(lambda: all(k.ready() for k in both))
    finally:
        for one in both:
            one.stop()
    data = api.objects[SECRETS][KEY]["data"]
    assert set(data) == {"ca.crt", "ca.key", "tls.crt", "tls.key"}


def chart_config(bundle: bytes = b"") -> dict:
    client = {"service": {"name": "s", "namespace": "gpu"}, "caBundle": base64.b64encode(bundle).decode()}
    return {
        "metadata": {"name": webhook_config.NAME},
        "webhooks": [{"name": "hold.scheduling.hami.placement.com", "clientConfig": client}],
    }


def test_in_a_cluster_only_the_bundle_is_written(api, tmp_path):
    api.put(CONFIGS, chart_config())
    one = keeper(api, tmp_path, url="", hosts=service_hosts("s", "gpu"))
    try:
        patch = f"{CONFIGS}/{webhook_config.NAME}"
        api.wait(lambda: api.count("PATCH", patch) == 1)
        body = next(r[3] for r in api.requests if r[0] == "PATCH" and r[1] == patch)
        assert set(body) == {"metadata", "webhooks"} and set(body["metadata"]) == {"resourceVersion"}
        assert [set(h) for h in body["webhooks"]] == [{"name", "clientConfig"}]
        assert set(body["webhooks"][0]["clientConfig"]) == {"caBundle"}
    finally:
        one.stop()


def test_somebody_takes_the_bundle_away_and_it_comes_back(api, tmp_path):
    api.put(CONFIGS, chart_config())
    one = keeper(api, tmp_path, url="")
    try:
        api.wait(lambda: one.pair())
        # The fake replaces lists where the server merges them by name, which is the same for one entry.
        api.wait(one.ready)
        api.put(CONFIGS, chart_config(b"nonsense"))
        api.wait(one.ready)
    finally:
        one.stop()


def test_a_broken_secret_is_replaced_and_a_good_one_is_kept(api, tmp_path):
    junk = {name: base64.b64encode(b"junk").decode() for name in ("ca.crt", "ca.key", "tls.crt", "tls.key")}
    api.put(SECRETS, {"metadata": {"namespace": "gpu", "name": SECRET}, "data": junk})
    api.put(CONFIGS, chart_config())
    one = keeper(api, tmp_path, url="")
    try:
        api.wait(one.ready)
        first = one.pair()
    finally:
        one.stop()
    two = keeper(api, tmp_path, url="")
    try:
        api.wait(two.ready)
        assert two.pair() == first
        api.delete(SECRETS, KEY)
        api.wait(lambda: KEY in api.objects[SECRETS] and two.pair() != first and two.ready())
    finally:
        two.stop()


def test_under_cert_manager_nothing_is_written_and_its_pair_is_served(api, tmp_path):
    material = fresh()
    data = {"tls.crt": material.cert, "tls.key": material.key, "ca.crt": material.bundle}
    secret = {
        "metadata": {"namespace": "gpu", "name": SECRET},
        "data": {name: base64.b64encode(value).decode() for name, value in data.items()},
    }
    heard = []
    api.put(CONFIGS, chart_config(material.bundle))
    one = keeper(api, tmp_path, url="", manage=False, on_pair=heard.append)
    try:
        api.put(SECRETS, secret)
        api.wait(one.ready)
        renewed = pki.make_pair(material.cas[0], material.ca_key, HOSTS, datetime.now(UTC))
        secret = json.loads(json.dumps(secret))
        secret["data"] |= {
            "tls.crt": base64.b64encode(renewed[0]).decode(),
            "tls.key": base64.b64encode(renewed[1]).decode(),
        }
        api.put(SECRETS, secret)
        api.wait(lambda: len(heard) == 2)
        assert one.pair().cert == renewed[0]
    finally:
        one.stop()
    assert [r[0] for r in api.requests if r[0] != "GET"] == []


@pytest.mark.parametrize("url", ["http://x/mutate", "https:///mutate", "x:8443", ""])
def test_a_webhook_url_that_is_none(url):
    with pytest.raises(ConfigError, match="--webhook-url"):
        hosts_of_url(url)


def test_hosts():
    assert hosts_of_url("https://[::1]:8443/mutate") == ("::1",)
    assert hosts_of_url("https://h.example/mutate") == ("h.example",)
    assert "s.gpu.svc" in service_hosts("s", "gpu")
