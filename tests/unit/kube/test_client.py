"""Credentials and the client: every failure is one line with place and mend; outcomes of writes are values."""

from __future__ import annotations

import base64
import json
import socket
import stat

import pytest

from defragd.errors import ClusterError, ConfigError, Forbidden, MissingResource, Unreachable
from defragd.kube.client import Client, is_list_path, resource_of
from defragd.kube.evictor import evict
from defragd.ports import Outcome
from tests.support.fake_api import FakeApi

PODS = "/api/v1/pods"
EVICTION = "/api/v1/namespaces/a/pods/x/eviction"


@pytest.fixture
def api():
    with FakeApi() as fake:
        yield fake


def one_line(error: BaseException, *words: str) -> None:
    text = str(error)
    assert "\n" not in text and len(text) < 500
    for word in words:
        assert word in text, text


BAD_KUBECONFIGS = {
    "missing": (None, "does not exist"),
    "empty": ("", "names no cluster"),
    "not yaml": ("a: [b", "not YAML"),
    "binary": (b"\x00\x01\xff\xfe", "cannot be read"),
    "a list": ("- a\n- b\n", "names no cluster"),
    "no context": ('{"clusters": [{"name": "c", "cluster": {"server": "https://x"}}]}', "cannot be used"),
    "dangling user": (
        '{"current-context": "c", "clusters": [{"name": "c", "cluster": {"server": "https://x"}}],'
        '"contexts": [{"name": "c", "context": {"cluster": "c", "user": "nobody"}}], "users": []}',
        "nobody",
    ),
    "no url": (
        '{"current-context": "c", "clusters": [{"name": "c", "cluster": {"server": "ftp://x"}}],'
        '"contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],'
        '"users": [{"name": "u", "user": {"token": "t"}}]}',
        "no http(s) URL",
    ),
    "clusters is text": ('{"clusters": "oops", "current-context": "c", "contexts": 3}', "cannot be used"),
}


@pytest.mark.parametrize("case", BAD_KUBECONFIGS)
def test_a_bad_kubeconfig_is_a_config_error_with_its_path(case, tmp_path):
    text, words = BAD_KUBECONFIGS[case]
    path = tmp_path / "config"
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError) as caught:
        Client.from_kubeconfig(str(path))
    one_line(caught.value, str(path), words)
    assert caught.value.exit_code == 2


def test_a_folder_and_an_unknown_context(tmp_path, api):
    with pytest.raises(ConfigError) as caught:
        Client.from_kubeconfig(str(tmp_path))
    one_line(caught.value, "cannot be read")
    with pytest.raises(ConfigError) as caught:
        Client.from_kubeconfig(api.kubeconfig(tmp_path), "elsewhere")
    one_line(caught.value, "elsewhere")


def test_no_cluster_at_all_says_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match="--kubeconfig"):
        Client.from_kubeconfig(None)


def test_kubeconfig_variable_and_token(monkeypatch, tmp_path, api):
    monkeypatch.setenv("KUBECONFIG", api.kubeconfig(tmp_path, token="secret"))
    client = Client.from_kubeconfig(None)
    client.get(PODS)
    assert api.last_headers["Authorization"] == "Bearer secret"
    assert api.last_headers["User-Agent"].startswith("defragd/")


def test_exec_plugin_gives_the_token_and_a_401_runs_it_again(tmp_path, api, monkeypatch):
    plugin = tmp_path / "plugin"
    plugin.write_text(
        f"#!/bin/sh\ncd {tmp_path}\necho x >> runs\nn=$(grep -c x runs)\n"
        'printf \'{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential",\'\n'
        'printf \'"status":{"token":"t%s"}}\' "$n"\n'
    )
    plugin.chmod(plugin.stat().st_mode | stat.S_IXUSR)
    path = api.kubeconfig(
        tmp_path,
        exec={
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": str(plugin),
            "interactiveMode": "Never",
        },
    )
    monkeypatch.setattr("defragd.kube.credentials._RELOAD_PAUSE", 0.0)
    client = Client.from_kubeconfig(path)
    client.get(PODS)
    assert api.last_headers["Authorization"] == "Bearer t1"
    api.answer("GET", PODS, 401, {"message": "Unauthorized"})
    client.get(PODS)
    assert api.last_headers["Authorization"] == "Bearer t2"


def test_basic_auth_user(tmp_path, api):
    client = Client.from_kubeconfig(api.kubeconfig(tmp_path, username="u", password="p"))
    client.get(PODS)
    assert api.last_headers["Authorization"] == "Basic " + base64.b64encode(b"u:p").decode()


@pytest.mark.parametrize(
    ("code", "error", "words"),
    [
        (401, Forbidden, "does not accept these credentials"),
        (403, Forbidden, "grant it"),
        (404, MissingResource, "not found"),
        (500, ClusterError, "answered 500"),
    ],
)
def test_reads_raise_by_code(api, tmp_path, code, error, words):
    client = api.client(tmp_path)
    for _ in range(2):
        api.answer("GET", PODS, code, {"message": "because"})
    with pytest.raises(error) as caught:
        client.get(PODS)
    one_line(caught.value, "GET /api/v1/pods", words, "because")
    assert caught.value.exit_code == 3


def test_an_html_page_of_a_proxy_becomes_one_short_line(api, tmp_path):
    api.answer("GET", PODS, 502, b"<html>\n" + b"<p>bad gateway</p>\n" * 500)
    with pytest.raises(ClusterError) as caught:
        api.client(tmp_path).get(PODS)
    one_line(caught.value, "502")


def test_nobody_listens(tmp_path):
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    config = FakeApi.config.__get__(type("X", (), {"url": f"http://127.0.0.1:{port}"})())()
    (tmp_path / "k").write_text(json.dumps(config))
    with pytest.raises(Unreachable) as caught:
        Client.from_kubeconfig(str(tmp_path / "k")).get(PODS)
    one_line(caught.value, f"127.0.0.1:{port}", "refused", "kubeconfig")


def test_a_server_that_does_not_answer_in_time(api, tmp_path):
    api.delay = 0.3
    client = api.client(tmp_path, timeout=0.1)
    with pytest.raises(Unreachable, match="no answer in time"):
        client.get(PODS)
    assert client.write("POST", EVICTION, {}).outcome is Outcome.UNKNOWN


def test_shed_load_is_waited_out_on_reads_only(api, tmp_path):
    client = api.client(tmp_path)
    api.answer("GET", PODS, 429, {"message": "slow down"}, Retry_After="0")
    api.answer("GET", PODS, 503, {"message": "later"}, Retry_After="0")
    assert client.get(PODS).status == 200
    assert api.count("GET", PODS) == 3
    api.answer("PATCH", "/api/v1/namespaces/a/pods/x", 429, {"message": "slow down"}, Retry_After="7")
    result = client.write("PATCH", "/api/v1/namespaces/a/pods/x", {})
    assert (result.outcome, result.retry_after) == (Outcome.BLOCKED, 7.0)
    assert api.count("PATCH", "/api/v1/namespaces/a/pods/x") == 1


def test_a_cut_connection_is_tried_again_for_reads_and_unknown_for_writes(api, tmp_path):
    client = api.client(tmp_path)
    api.answer("GET", PODS, 0)
    assert client.get(PODS).status == 200
    api.answer("POST", EVICTION, 0)
    assert client.write("POST", EVICTION, {}).outcome is Outcome.UNKNOWN
    assert api.count("POST", EVICTION) == 1


EVICTIONS = [
    # hami-protocol section 11.5
    (201, {}, {}, Outcome.OK, None),
    (
        429,
        {"message": "budget x needs 1", "details": {"causes": [{"reason": "DisruptionBudget"}]}},
        {},
        Outcome.BLOCKED,
        None,
    ),
    (429, {"message": "still being processed", "details": {"retryAfterSeconds": 10}}, {}, Outcome.BLOCKED, 10.0),
    (
        500,
        {"message": "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."},
        {},
        Outcome.REFUSED,
        None,
    ),
    (409, {"message": "precondition", "reason": "Conflict"}, {}, Outcome.CONFLICT, None),
    (404, {"message": "not found"}, {}, Outcome.GONE, None),
    (403, {"message": "no"}, {}, Outcome.REFUSED, None),
    (422, {"message": "bad"}, {}, Outcome.REFUSED, None),
    (500, {"message": "etcd"}, {}, Outcome.UNKNOWN, None),
    (504, {"message": "timeout"}, {}, Outcome.UNKNOWN, None),
]


@pytest.mark.parametrize(("code", "body", "headers", "outcome", "wait"), EVICTIONS)
def test_outcomes_of_evictions(api, tmp_path, code, body, headers, outcome, wait):
    api.answer("POST", EVICTION, code, body, **headers)
    result = evict(api.client(tmp_path), "a", "x", uid="u1", revision="7", dry_run=True)
    assert (result.outcome, result.retry_after) == (outcome, wait)
    sent = api.requests[-1][3]
    assert sent["deleteOptions"] == {"preconditions": {"uid": "u1", "resourceVersion": "7"}, "dryRun": ["All"]}
    assert (sent["apiVersion"], sent["kind"]) == ("policy/v1", "Eviction")


def test_every_call_is_reported(api, tmp_path):
    seen = []
    client = api.client(tmp_path, hook=lambda event, fields: seen.append((event, fields)))
    client.get(PODS)
    client.write("POST", EVICTION, {"deleteOptions": {}})
    assert [(e, f["verb"], f["resource"], f["code"]) for e, f in seen] == [
        ("api.call", "list", "pods", 200),
        ("api.call", "create", "pods/eviction", 404),
    ]
    assert all(f["seconds"] >= 0 for _, f in seen)


@pytest.mark.parametrize(
    ("path", "resource", "listed"),
    [
        ("/api/v1/pods", "pods", True),
        ("/api/v1/namespaces", "namespaces", True),
        ("/api/v1/namespaces/a", "namespaces", False),
        ("/api/v1/namespaces/a/pods", "pods", True),
        ("/api/v1/namespaces/a/pods/x/eviction", "pods/eviction", False),
        ("/apis/apps/v1/replicasets", "replicasets", True),
        (
            "/apis/scheduling.hami.placement.com/v1/namespaces/a/hamipodplacements/p/status",
            "hamipodplacements/status",
            False,
        ),
        ("/version", "version", False),
    ],
)
def test_names_of_resources(path, resource, listed):
    assert (resource_of(path), is_list_path(path)) == (resource, listed)
