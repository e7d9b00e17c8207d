"""Whatever is asked of API or UI, the answer is a success, a redirect or a refusal with a reason."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from defragd.web.app import create_app
from tests.support.effort import examples
from tests.support.web_world import build_world

WORLD = build_world()
CLIENT = create_app(WORLD.deps).test_client()
ROUTES = sorted({rule.rule for rule in CLIENT.application.url_map.iter_rules()})
KNOWN = [
    "nightly-consolidation-3",
    "weekly-drain-1",
    "weekly-drain",
    "make-room",
    "ads",
    "run-3-m1",
    "gpu-node-01",
    "pod",
    "node",
    "device",
    "approve",
    "cancel",
    "gpu-node-01/gpu-0",
    "app.css",
    "ads/embed-000-x0000",
]
WORDS = st.sampled_from(KNOWN) | st.text(max_size=30).filter(lambda text: text not in (".", ".."))
QUERY = st.dictionaries(
    st.sampled_from(
        ["limit", "continue", "q", "pool", "state", "page", "policy", "phase", "namespace", "kind", "name", "verbose"]
    ),
    st.text(max_size=20) | st.integers(-5, 10**12).map(str) | st.sampled_from(["MTpuaWdodGx5", "idle", "pod", "1"]),
    max_size=4,
)
HEADERS = st.dictionaries(
    st.sampled_from(
        ["Accept", "If-None-Match", "Origin", "Sec-Fetch-Site", "Authorization", "Cookie", "X-Forwarded-Host"]
    ),
    st.sampled_from(
        [
            "text/html",
            "*/*",
            "",
            'W/"x"',
            "null",
            "cross-site",
            "same-origin",
            "Bearer root",
            "Bearer guest",
            "defragd_csrf=x",
            "application/json;q=0.5, text/html;q=0.9",
            "http://localhost",
        ]
    ),
    max_size=3,
)


@st.composite
def paths(draw) -> str:
    route = draw(st.sampled_from(ROUTES))
    while "<" in route:
        before, _, rest = route.partition("<")
        _, _, after = rest.partition(">")
        word = draw(WORDS)
        route = before + "".join(c if c not in "<>?#%" else "_" for c in word) + after
    return route


@settings(max_examples=examples(300), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    paths(),
    QUERY,
    HEADERS,
    st.sampled_from(["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"]),
    st.none() | st.binary(max_size=40) | st.just(b"{}"),
)
def test_no_question_makes_it_fail(path: str, query, headers, method: str, body) -> None:
    WORLD.clock.advance(5)
    answer = CLIENT.open(path, method=method, query_string=query, headers=headers, data=body)
    assert answer.status_code < 500 or answer.status_code == 501, (path, answer.data)
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    if answer.content_type == "application/problem+json" and method != "HEAD":
        found = json.loads(answer.data)
        assert found["reason"] and found["detail"] and found["status"] == answer.status_code
    if answer.status_code in (301, 302, 303, 307, 308):
        where = answer.headers["Location"]
        assert not where.startswith("//") and "://" not in where.split("?")[0].replace("http://localhost/", ""), where
    if method in ("GET", "HEAD", "OPTIONS"):
        assert not any(event == "api.write" for event, _ in WORLD.events)
    WORLD.events.clear()


@pytest.mark.parametrize(
    "path", ["/runs/%00", "/explain/pod/%F0%9F%92%A9/x", "/api/v1/runs/..%2f..", "/static/../app.py", "//"]
)
def test_odd_paths(path: str) -> None:
    assert CLIENT.get(path).status_code in (200, 308, 404)
