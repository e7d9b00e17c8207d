"""Every route of the API against its contract, every error as problem details."""

from __future__ import annotations

import json
from dataclasses import replace

import jsonschema
import pytest

from defragd.errors import ConfigError
from defragd.web.app import create_app
from defragd.web.deps import Denied
from defragd.web.openapi import document
from tests.support.web_client import client, problem
from tests.support.web_world import WebWorld, build_snapshot, build_world

LISTS = ["placements", "policies", "plans", "runs"]
GETS = [
    "/api/v1/cluster-info", "/api/v1/placements", "/api/v1/placements/ads/run-3-m1", "/api/v1/policies",
    "/api/v1/policies/weekly-drain", "/api/v1/plans", "/api/v1/plans/nightly-consolidation-3", "/api/v1/runs",
    "/api/v1/runs/nightly-consolidation-3", "/api/v1/settings", "/api/v1/changes",
    "/api/v1/explain/pod/ads/embed-000-x0000",
    "/api/v1/explain/node/gpu-node-01", "/api/v1/explain/device/GPU-00000000-5d1b-4c1e-9b7d-0f1e2d3c4b5a",
    "/openapi.json",
]  # fmt: skip


@pytest.fixture
def world() -> WebWorld:
    return build_world()


def schema_of(path: str) -> dict:
    doc = document()
    for template, methods in doc["paths"].items():
        parts, given = template.split("/"), path.split("/")
        if len(parts) == len(given) and all(p == g or p.startswith("{") for p, g in zip(parts, given, strict=True)):
            found = methods["get"]["responses"]["200"]["content"]["application/json"]["schema"]
            return {**found, "components": doc["components"]}
    raise AssertionError(f"{path} is not in the contract")


@pytest.mark.parametrize("path", GETS)
def test_every_answer_is_as_the_contract_says(world: WebWorld, path: str) -> None:
    answer = client(world).get(path)
    assert answer.status_code == 200, answer.data
    jsonschema.Draft202012Validator(schema_of(path)).validate(json.loads(answer.data))


def test_every_route_is_in_the_contract_and_the_other_way_round(world: WebWorld) -> None:
    served = set()
    for rule in create_app(world.deps).url_map.iter_rules():
        path = rule.rule.replace("<path:", "<").replace("<", "{").replace(">", "}")
        if rule.endpoint.startswith(("api.", "health.")):
            served |= {(path, m.lower()) for m in rule.methods - {"HEAD", "OPTIONS"}}
    contract = {(path, method) for path, item in document()["paths"].items() for method in item}
    assert served == contract


def test_contract_is_valid_and_its_names_are_unique() -> None:
    doc = document()
    assert doc["openapi"].startswith("3.1")
    names = [op["operationId"] for item in doc["paths"].values() for op in item.values()]
    assert len(names) == len(set(names))
    for schema in doc["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)
    text = json.dumps(doc)
    for ref in {part.split('"')[0] for part in text.split('"$ref": "#/components/')[1:]}:
        kind, name = ref.split("/")
        assert name in doc["components"][kind]


def test_cluster_info_tells_nodes_devices_health_usage_holders_and_fragmentation(world: WebWorld) -> None:
    body = json.loads(client(world).get("/api/v1/cluster-info").data)
    nodes = {node["name"]: node for node in body["nodes"]}
    assert len(nodes) == 13 and body["summary"]["devices"] == 48
    full = nodes["gpu-node-01"]["devices"][1]
    assert full["state"] == "full" and full["freeShare"] == 0
    assert full["holders"][0]["pod"] == "ads/embed-000-x0000" and full["usage"]["cores"] == 100
    held = nodes["gpu-node-01"]["devices"][3]["holders"]
    assert [h["placement"] for h in held if h["placement"]] == ["ads/defrag-7-m2"]
    assert nodes["gpu-node-08"]["devices"][2]["health"]["healthy"] is False
    assert nodes["gpu-node-05"]["devices"][3]["state"] == "cordoned"
    assert body["fragmentation"]["L"] == 0.56 and body["fragmentation"]["causes"]["host"] == 0.21
    assert body["leader"] == world.leader.identity and body["synced"] is True and body["pendingPods"] == 1
    assert body["problems"] == [
        {
            "object": "Node/gpu-node-77",
            "reason": "UnreadableAllocation",
            "detail": "register annotation: item 3 has no id",
        }
    ]
    states = body["summary"]["devicesByState"]
    assert sum(states.values()) == 48 and states["unhealthy"] == 1 and states["cordoned"] == 1


def test_cluster_info_can_be_searched(world: WebWorld) -> None:
    c = client(world)
    assert [n["name"] for n in json.loads(c.get("/api/v1/cluster-info?q=x0000").data)["nodes"]] == ["gpu-node-01"]
    found = json.loads(c.get("/api/v1/cluster-info?pool=NVIDIA L40S").data)["nodes"]
    assert {n["pool"] for n in found} == {"NVIDIA L40S"} and len(found) == 4


def test_view_follows_the_cluster_and_is_not_rebuilt_for_nothing(world: WebWorld) -> None:
    c = client(world)

    def used() -> int:
        body = json.loads(c.get("/api/v1/cluster-info").data)
        return body["nodes"][1]["devices"][1]["usage"]["slots"]

    assert used() == 1 and used() == 1
    assert world.reader.reads == 1
    world.reader.world = world.reader.world.with_pods({"ads/embed-000-x0000": None})
    world.reader.version_ += 1
    world.clock.advance(10)
    assert used() == 0 and world.reader.reads == 2


@pytest.mark.parametrize("name", LISTS)
def test_lists_page_without_loss_and_without_doubles(world: WebWorld, name: str) -> None:
    c = client(world)
    whole = json.loads(c.get(f"/api/v1/{name}").data)
    assert whole["nextPageToken"] is None and whole["asOf"] == "2026-11-30T23:05:00Z"
    seen, url = [], f"/api/v1/{name}?limit=1"
    for _ in range(len(whole["items"])):
        body = json.loads(c.get(url).data)
        seen += body["items"]
        url = f"/api/v1/{name}?limit=1&continue={body['nextPageToken']}"
    assert seen == whole["items"] and body["nextPageToken"] is None


def test_newest_runs_come_first(world: WebWorld) -> None:
    ids = [run["id"] for run in json.loads(client(world).get("/api/v1/runs").data)["items"]]
    assert ids == ["nightly-consolidation-3", "weekly-drain-1", "nightly-consolidation-2", "nightly-consolidation-1"]


def test_runs_that_never_got_a_plan_are_no_plans(world: WebWorld) -> None:
    """Held back or failed before planning: the record only names policy and strategy."""
    held = replace(world.runs.items[0], name="held", plan={"policy": "p", "strategy": "best-fit", "moves": []})
    old = replace(world.runs.items[0], name="old", plan={"waves": [], "moves": []})
    world.runs.items = [held, old]
    c = client(world)
    body = json.loads(c.get("/api/v1/plans").data)
    assert [item["id"] for item in body["items"]] == ["old"]
    jsonschema.Draft202012Validator(schema_of("/api/v1/plans")).validate(body)
    problem(c.get("/api/v1/plans/held"), 404, "PlanUnknown")
    detail = json.loads(c.get("/api/v1/runs/held").data)
    assert detail["plan"] is None and detail["moves"]["planned"] == 0
    page = c.get("/runs/held", headers={"Accept": "text/html"}).data.decode()
    assert "its plan" not in page and c.get("/plans", headers={"Accept": "text/html"}).status_code == 200
    assert c.get("/plans/old", headers={"Accept": "text/html"}).status_code == 200


def test_lists_filter(world: WebWorld) -> None:
    c = client(world)
    assert len(json.loads(c.get("/api/v1/placements?phase=Failed").data)["items"]) == 1
    assert json.loads(c.get("/api/v1/placements?namespace=none").data)["items"] == []
    assert len(json.loads(c.get("/api/v1/runs?policy=weekly-drain&phase=AwaitingApproval").data)["items"]) == 1


@pytest.mark.parametrize("query", ["limit=0", "limit=-1", "limit=x", "limit=1001", "limit=٣", "limit=" + "9" * 50])
def test_bad_limits(world: WebWorld, query: str) -> None:
    problem(client(world).get(f"/api/v1/runs?{query}"), 400, "BadLimit")


@pytest.mark.parametrize("token", ["x", "!!!", "MTpß", "Mjo", "____"])
def test_bad_tokens(world: WebWorld, token: str) -> None:
    problem(client(world).get("/api/v1/runs", query_string={"continue": token}), 400, "BadToken")


@pytest.mark.parametrize("path", ["/api/v1/runs", "/api/v1/cluster-info", "/openapi.json"])
def test_unchanged_answers_are_not_sent_again(world: WebWorld, path: str) -> None:
    c = client(world)
    first = c.get(path)
    world.clock.advance(5)
    again = c.get(path, headers={"If-None-Match": first.headers["ETag"]})
    assert again.status_code == 304 and again.data == b""
    world.runs.items[0] = replace(world.runs.items[0], message="changed")
    world.leader.leading = False
    if path != "/openapi.json":
        assert c.get(path, headers={"If-None-Match": first.headers["ETag"]}).status_code == 200


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/api/v1/nope", "NotFound"), ("/api/v1/runs/nope", "RunUnknown"), ("/api/v1/plans/nope", "PlanUnknown"),
        ("/api/v1/plans/nightly-consolidation-2", "PlanUnknown"), ("/api/v1/policies/nope", "PolicyUnknown"),
        ("/api/v1/placements/a/b", "PlacementUnknown"), ("/api/v1/explain/pod/ads/gone", "PodUnknown"),
        ("/api/v1/explain/node/gone", "NodeUnknown"), ("/api/v1/explain/device/gone", "DeviceUnknown"),
        ("/x", "NotFound"),
    ],
)  # fmt: skip
def test_not_found(world: WebWorld, path: str, reason: str) -> None:
    problem(client(world).get(path), 404, reason)


def test_wrong_method_names_the_right_ones(world: WebWorld) -> None:
    answer = client(world).delete("/api/v1/runs")
    problem(answer, 405, "MethodNotAllowed")
    assert "GET" in answer.headers["Allow"]


def test_a_fault_of_ours_is_reported_without_its_inside(world: WebWorld) -> None:
    def broken():
        raise RuntimeError("secret inside")

    answer = client(build_world(policies=broken)).get("/api/v1/policies")
    assert "secret" not in problem(answer, 500, "InternalError")["detail"]


def test_a_fault_reaches_the_hook() -> None:
    def broken():
        raise RuntimeError("inside")

    world = build_world(policies=broken)
    client(world).get("/api/v1/policies")
    assert ("api.fault", {"route": "api.policies", "error": "RuntimeError: inside"}) in world.events
    assert ("http.request", {"route": "api.policies", "code": 500}) in world.events


def test_explain_hands_the_policy_on_and_says_when_it_is_not_offered() -> None:
    asked = []
    world = build_world(explain=lambda *question: asked.append(question) or {"kind": "pod"})
    client(world).get("/api/v1/explain/pod/ads/x?policy=p1")
    client(world).get("/api/v1/explain/device/gpu-node-01/gpu-0")
    assert asked == [("pod", "ads/x", "p1"), ("device", "gpu-node-01/gpu-0", None)]
    problem(client(build_world(explain=None)).get("/api/v1/explain/node/n"), 501, "NotOffered")

    def wrong(kind, name, policy):
        raise ConfigError("no policy 'p2'")

    problem(client(build_world(explain=wrong)).get("/api/v1/explain/node/n?policy=p2"), 400, "BadRequest")


def test_explain_answers_by_the_code_that_plans(world: WebWorld) -> None:
    c = client(world)
    pod = json.loads(c.get("/api/v1/explain/pod/research/ocr-000-x0003").data)
    assert pod["verdict"] == "never" and pod["reason"] == "TooFewReplicas"
    node = json.loads(c.get("/api/v1/explain/node/gpu-node-06").data)
    assert node["verdict"] == "drainable" and node["asTarget"]["ok"] is True
    device = json.loads(c.get("/api/v1/explain/device/gpu-node-08/gpu-2").data)
    assert device["asTarget"]["reason"] == "DeviceUnhealthy"
    body = problem(c.get("/api/v1/explain/node/gpu-node-06?policy=nope"), 400, "BadRequest")
    assert "nope" in body["detail"]


def test_changes_waits_for_a_newer_version_and_never_holds_all_workers() -> None:
    world = build_world()
    app = create_app(world.deps)
    asked = []

    def wait(after: int, timeout: float) -> int:
        asked.append((after, timeout))
        if len(asked) < 4:  # while these wait, others ask
            assert app.test_client().get("/api/v1/changes?after=1&timeout=9").status_code == 200
        return after + 1

    world.reader.wait = wait
    body = json.loads(app.test_client().get("/api/v1/changes?after=1&timeout=9").data)
    assert body["version"] == 2 and body["changed"] is True
    assert asked == [(1, 9.0)] * 3
    assert json.loads(app.test_client().get("/api/v1/changes?after=0&timeout=9").data)["version"] == 1
    assert json.loads(app.test_client().get("/api/v1/changes?after=5").data)["changed"] is False
    for bad in ("after=x", "after=-1", "timeout=26", "timeout=1e3", "after=" + "9" * 40):
        problem(app.test_client().get(f"/api/v1/changes?{bad}"), 400, "BadNumber")


# -- reads can be guarded; health and metrics stay open ------------------------------------------------------------


def test_guarded_reads() -> None:
    world = build_world(authorize_read=lambda r: Denied("Unauthorized", f"no {r.verb}", 401))
    c = client(world)
    problem(c.get("/api/v1/runs"), 401, "Unauthorized")
    assert c.get("/", headers={"Accept": "text/html"}).status_code == 401
    for path in ("/livez", "/readyz", "/healthz", "/metrics", "/static/app.css"):
        assert c.get(path).status_code == 200, path


def test_health_lists_its_checks() -> None:
    def broken() -> str:
        raise RuntimeError("boom")

    world = build_world(ready={"caches": lambda: "", "webhook": lambda: "not listening", "certs": broken})
    c = client(world)
    assert c.get("/livez").data == b"ok\n" and c.get("/healthz").status_code == 200
    answer = c.get("/readyz")
    assert answer.status_code == 503
    assert answer.data.decode().splitlines() == [
        "[+]caches ok", "[-]webhook failed: not listening", "[-]certs failed: RuntimeError: boom",
        "readyz check failed",
    ]  # fmt: skip
    assert client(build_world()).get("/readyz?verbose").data == b"[+]caches ok\n[+]webhook ok\nreadyz check passed\n"


def test_metrics_are_served(world: WebWorld) -> None:
    answer = client(world).get("/metrics")
    assert answer.status_code == 200 and b"defragd_fragmentation_ratio" in answer.data
    problem(client(build_world(metrics=None)).get("/metrics"), 501, "NotOffered")


@pytest.mark.parametrize("path", ["/", "/api/v1/runs", "/api/v1/nope", "/metrics", "/nope", "/livez"])
def test_headers_are_strict_everywhere(world: WebWorld, path: str) -> None:
    headers = client(world).get(path, headers={"Accept": "text/html"}).headers
    assert headers["Content-Security-Policy"].startswith("default-src 'self'; ")
    assert "unsafe" not in headers["Content-Security-Policy"]
    assert headers["X-Content-Type-Options"] == "nosniff" and headers["X-Frame-Options"] == "DENY"
    assert headers["Cache-Control"] == "no-store"


def test_an_empty_cluster_is_an_answer_not_an_error() -> None:
    empty = replace(build_snapshot(1), nodes={}, pods={}, holds=(), problems=(), taken_at=None)
    world = build_world(snapshot=build_snapshot(1), score=lambda: None, policies=list)
    world.reader.world, world.runs.items, world.placements.items = empty, [], []
    c = client(world)
    for path in (
        "/",
        "/map",
        "/plans",
        "/runs",
        "/placements",
        "/policies",
        "/explain",
        "/metrics",
        "/api/v1/cluster-info",
    ):
        assert c.get(path).status_code == 200, path
    assert json.loads(c.get("/api/v1/cluster-info").data)["fragmentation"] is None
