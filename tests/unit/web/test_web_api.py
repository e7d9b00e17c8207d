"""Every route of the API against its contract, every error as problem details."""

from __future__ import annotations

import json
from dataclasses import replace

import jsonschema
import pytest

from defragd.core.reasons import Reason
from defragd.core.run import RunPhase
from defragd.errors import ConfigError, NotLeader, Unreachable
from defragd.ports import Outcome, Written
from defragd.web.app import MAX_BODY, create_app
from defragd.web.deps import Denied, User
from defragd.web.openapi import document
from tests.support.web_world import WebWorld, build_snapshot, build_world

ROOT = {"Authorization": "Bearer root"}
RUN = "/api/v1/runs/weekly-drain-1"
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


def client(world: WebWorld):
    return create_app(world.deps).test_client()


def problem(answer, status: int, reason: str) -> dict:
    assert answer.status_code == status, answer.data
    assert answer.content_type == "application/problem+json"
    body = json.loads(answer.data)
    check(body, "Problem")
    assert body["status"] == status and body["reason"] == reason
    return body


def check(value, name: str) -> None:
    doc = document()
    schema = {"$ref": f"#/components/schemas/{name}", "components": doc["components"]}
    jsonschema.Draft202012Validator(schema).validate(value)


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


# -- writes ----------------------------------------------------------------------------------------------------------


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
