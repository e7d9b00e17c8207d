"""The pages: what they must show, that they need no scripts and no fixed root, and that forms are safe."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from urllib.parse import urljoin, urlsplit

import pytest
from flask.testing import FlaskClient

from defragd.core.run import RunPhase
from defragd.web.app import create_app
from defragd.web.plan_view import draw_plan, read_moves
from tests.support.web_world import WebWorld, build_plan, build_snapshot, build_world

HTML = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
DEVICE = "GPU-00010001-5d1b-4c1e-9b7d-0f1e2d3c4b5a"
PAGES = [
    "/", "/map", "/map?q=x0000", "/plans", "/plans/nightly-consolidation-3", "/runs", "/runs/nightly-consolidation-3",
    "/runs/weekly-drain-1", "/placements", "/policies", "/explain", "/explain/pod/ads/embed-000-x0000",
    "/explain/node/gpu-node-01", f"/explain/device/{DEVICE}", "/no/such/page",
]  # fmt: skip


class Page(HTMLParser):
    """Collects what the tests ask for, and that every element is closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.forms: list[dict] = []
        self.ids: list[str] = []
        self.tags: list[tuple[str, dict]] = []
        self.open: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.tags.append((tag, found))
        if tag not in {"meta", "link", "input", "br"}:
            self.open.append(tag)
        if "id" in found:
            self.ids.append(found["id"])
        for name in ("href", "src"):
            if name in found:
                self.links.append(found[name])
        if tag == "form":
            self.forms.append({**found, "fields": {}})
        if tag == "input" and self.forms:
            self.forms[-1]["fields"][found.get("name")] = found.get("value", "")

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in {"meta", "link", "input", "br"}:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, (tag, self.open[-3:])
        self.open.pop()


@pytest.fixture(scope="module")
def shared() -> WebWorld:
    return build_world()


CLIENTS: dict[int, tuple[WebWorld, FlaskClient]] = {}
STATUS: dict[str, int] = {}


def get(world: WebWorld, path: str) -> str:
    """A page; one application per world, because building it compiles the templates."""
    if id(world) not in CLIENTS:
        CLIENTS[id(world)] = (world, create_app(world.deps).test_client())
    answer = CLIENTS[id(world)][1].get(path, headers=HTML)
    assert answer.content_type.startswith("text/html"), answer.data
    return answer.data.decode()


@pytest.fixture(autouse=True)
def forget(shared: WebWorld):
    yield
    for key in set(CLIENTS) - {id(shared)}:
        del CLIENTS[key]


@pytest.mark.parametrize("path", PAGES)
def test_pages_are_well_formed_and_need_no_inline_code(shared: WebWorld, path: str) -> None:
    text = get(shared, path)
    page = Page(text)
    assert len(page.ids) == len(set(page.ids))
    assert "{{" not in text and "{%" not in text and "None" not in re.sub(r"<[^>]+>", " ", text)
    for tag, found in page.tags:
        assert "style" not in found and tag != "style", (tag, found)
        assert not [name for name in found if name.startswith("on")], (tag, found)
        assert tag != "script" or found.get("src"), "no inline scripts"
    assert [tag for tag, _ in page.tags].count("h1") == 1 and [tag for tag, _ in page.tags].count("main") == 1
    assert ("html", {"lang": "en"}) in page.tags


@pytest.mark.parametrize("prefix", ["", "/api/v1/namespaces/kube-system/services/http:gpu-descheduler:8083/proxy"])
@pytest.mark.parametrize("path", PAGES)
def test_links_work_behind_any_prefix(shared: WebWorld, path: str, prefix: str) -> None:
    client = create_app(shared.deps).test_client()
    base = f"http://host{prefix}{path}"
    for link in {*Page(get(shared, path)).links}:
        if link.startswith("#"):
            continue
        assert not link.startswith(("/", "http")), link
        target = urlsplit(urljoin(base, link)).path
        assert target.startswith(f"{prefix}/"), link
        inside = target.removeprefix(prefix)
        if inside.startswith("/explain/pod/") and "x0400" in inside:
            continue  # the new pod of a placement that is not in this snapshot
        if inside not in STATUS:
            STATUS[inside] = client.get(inside, headers=HTML).status_code
        assert STATUS[inside] == 200, (link, inside)


@pytest.mark.parametrize("path", PAGES)
def test_pictures_and_inputs_have_words(shared: WebWorld, path: str) -> None:
    page = Page(get(shared, path))
    for tag, found in page.tags:
        if tag == "svg":
            assert found.get("aria-hidden") == "true" or (found.get("role") == "img" and found.get("aria-label"))
        if tag == "a" and "device" in (found.get("class") or ""):
            assert found["aria-label"]


def test_overview_says_how_it_stands(shared: WebWorld) -> None:
    text = get(shared, "/")
    for words in (
        "0.56", "could take 2.3 times as many", "13 points device shape",
        "nightly-consolidation", "in 3h", shared.leader.identity, "bigtrain-000-x9999", "AwaitingApproval",
        "broken edit", "BreakerOpen", "Node/gpu-node-77", "50% of 1 GPU", "NVIDIA L40S",
    ):  # fmt: skip
        assert words in text, words


def test_overview_speaks_of_a_plan_only_while_it_is_open() -> None:
    world = build_world()
    assert "would bring it to" not in get(world, "/") and "After plan" not in get(world, "/")
    world.runs.items = [run for run in world.runs.items if run.phase is not RunPhase.RUNNING]
    assert "5 moves would bring it to 0.41" in get(world, "/") and "After plan" in get(world, "/")


def test_overview_shouts_when_not_ready() -> None:
    text = get(build_world(ready={"webhook": lambda: "not <b>listening"}), "/")
    assert 'role="alert"' in text and "not &lt;b&gt;listening" in text


def test_map_shows_every_device_and_pod_once_and_can_be_narrowed(shared: WebWorld) -> None:
    text = get(shared, "/map")
    snap = shared.reader.world
    for uuid in snap.devices:
        assert text.count(f'href="explain/device/{uuid}"') == 1
    for pod in snap.pods.values():
        assert (f"<title>{pod.key}:" in text) == bool(pod.allocations)
    assert "held for ads/defrag-7-m2" in text and "unhealthy" in text and "cordoned" in text
    narrowed = get(shared, "/map?q=x0000")
    assert "gpu-node-01" in narrowed and "gpu-node-02" not in narrowed
    assert "gpu-node-06" in get(shared, "/map?state=idle") and "gpu-node-01" not in get(shared, "/map?state=idle")
    assert "No node matches" in get(shared, "/map?q=zzzz")


def test_map_of_many_nodes_is_paged_and_small() -> None:
    world = build_world(500, per_node=4)
    first, last = get(world, "/map"), get(world, "/map?page=9")
    assert "page 1 of 9" in first and 'rel="next"' in first and 'rel="next"' not in last
    assert len(first) < 500_000 and len(get(world, "/")) < 500_000
    assert get(world, "/map?page=0").count('class="node"') == 60 and "No node matches" in get(world, "/map?page=77")


def test_pages_stay_small_where_nodes_are_wide_and_plans_long() -> None:
    world = build_world(130, per_node=16)
    assert len(get(world, "/map?limit=200")) < 500_000
    run = next(r for r in world.runs.items if r.name == "nightly-consolidation-3")
    plan = dict(run.plan)
    plan["moves"] = [{**plan["moves"][0], "id": f"m{n}"} for n in range(600)]
    long = replace(run, plan=plan, moves=tuple(replace(run.moves[0], id=f"m{n}") for n in range(600)))
    world.runs.items = [long if r.name == run.name else r for r in world.runs.items]
    for page in (f"/plans/{run.name}", f"/runs/{run.name}"):
        text = get(world, page)
        assert len(text) < 500_000 and text.count('id="move-m') == 200 and "400 more" in text


def test_plan_shows_before_and_after_waves_and_reasons(shared: WebWorld) -> None:
    text = get(shared, "/plans/nightly-consolidation-3")
    plan = build_plan(shared.reader.world)
    for move in plan.moves:
        assert text.count(f'id="move-{move.id}"') == 1 and f'href="#move-{move.id}"' in text and move.why in text
        assert text.count(f"<title>{move.pod}:") == 2, "once before, once after"
    assert "0.56 → 0.41" in text and "PDBBlocks" in text and "binpack would cause less" in text
    assert 'class="bar idle freed"' in text and 'class="edge"' in text


def test_after_picture_is_where_the_moves_say() -> None:
    snap = build_snapshot()
    plan = build_plan(snap)
    picture = draw_plan(snap, plan.moves)
    after = {d.device.uuid: {s.holder for s in d.segments} for n in picture.after for d in n.devices}
    before = {d.device.uuid: {s.holder for s in d.segments} for n in picture.before for d in n.devices}
    for move in plan.moves:
        assert move.pod in before[move.source.devices[0]] and move.pod not in after[move.source.devices[0]]
        assert move.pod in after[move.target.devices[0]] and move.pod not in before[move.target.devices[0]]
    assert picture.left_out == () and picture.moved == {m.pod for m in plan.moves} and picture.freed


def test_moves_that_no_longer_fit_the_cluster_are_left_out_and_said() -> None:
    snap = build_snapshot()
    moves = build_plan(snap).moves
    picture = draw_plan(snap.with_pods({moves[0].pod: None}), (*moves, replace(moves[1], uid="other")))
    assert picture.left_out == (moves[0], replace(moves[1], uid="other"))
    world = build_world()
    world.reader.world = world.reader.world.with_pods({moves[0].pod: None})
    text = get(world, "/plans/nightly-consolidation-3")
    assert "1 of 5 moves are done" in text and "are not drawn" not in text
    assert "1 of 5 moves are not drawn" in get(world, "/plans/weekly-drain-1")


def test_broken_moves_in_a_stored_plan_do_not_break_pages() -> None:
    world = build_world()
    bad = {"moves": [{"id": "m1"}, 7, None], "waves": [["m1"]], "policy": "p"}
    world.runs.items = [replace(world.runs.items[0], name="odd", plan=bad)]
    assert read_moves(bad) == ()
    for path in ("/plans/odd", "/runs/odd", "/plans", "/"):
        assert "odd" in get(world, path)


def test_run_shows_progress_and_what_may_be_done(shared: WebWorld) -> None:
    text = get(shared, "/runs/nightly-consolidation-3")
    assert "2 done, 1 failed, 0 refused of 5 moves" in text and "StartTimeout" in text
    words = {form["action"]: form for form in Page(text).forms}
    assert set(words) == {"../runs/nightly-consolidation-3/pause", "../runs/nightly-consolidation-3/cancel"}
    assert "../runs/weekly-drain-1/approve" in get(shared, "/runs/weekly-drain-1")
    assert Page(get(shared, "/runs/nightly-consolidation-1")).forms == []


def test_without_writes_there_are_no_forms_and_no_cookie() -> None:
    world = build_world(writes_enabled=False)
    answer = create_app(world.deps).test_client().get("/runs/weekly-drain-1", headers=HTML)
    assert Page(answer.data.decode()).forms == [] and "Set-Cookie" not in answer.headers
    assert b"kubectl defrag approve weekly-drain-1" in answer.data


def test_what_comes_from_outside_is_escaped() -> None:
    world = build_world()
    evil = '<script>alert("x")</script>'
    pod = next(iter(world.reader.world.pods.values()))
    world.reader.world = world.reader.world.with_pods({pod.key: replace(pod, name=evil)})
    world.runs.items = [replace(world.runs.items[0], message=evil, reason=evil, policy=evil, phase=RunPhase.FAILED)]
    for path in (
        "/",
        "/map",
        "/runs",
        "/runs/nightly-consolidation-1",
        f"/map?q={evil}",
        f"/explain?name={evil}&kind=x",
    ):
        text = get(world, path)
        assert evil not in text and '"x")' not in text


# -- forms ------------------------------------------------------------------------------------------------------------


def form_world(**more):
    world = build_world(authorize=lambda request: build_user(request), **more)
    return world, create_app(world.deps).test_client()


def build_user(request):
    from defragd.web.deps import User

    return User(f"user of {request.headers.get('authorization', 'nothing')}")


def token_of(client) -> str:
    page = Page(client.get("/runs/weekly-drain-1", headers=HTML).data.decode())
    return page.forms[0]["fields"]["csrf"]


def test_a_plan_is_approved_by_its_form() -> None:
    world, client = form_world()
    answer = client.post("/runs/weekly-drain-1/approve", data={"csrf": token_of(client)}, headers=HTML)
    assert answer.status_code == 303
    assert (
        urljoin("http://h/p/runs/weekly-drain-1/approve", answer.headers["Location"])
        == "http://h/p/runs/weekly-drain-1"
    )
    assert world.runs.writes == [("weekly-drain-1", "Approved", "user of nothing")]


def test_a_policy_is_started_by_its_form() -> None:
    _, client = form_world()
    answer = client.post("/policies/weekly-drain/run", data={"csrf": token_of(client)}, headers=HTML)
    assert answer.status_code == 303
    assert urljoin("http://h/p/policies/x/run", answer.headers["Location"]).startswith("http://h/p/runs/")


def test_a_token_in_the_form_is_the_users_bearer_token() -> None:
    world, client = form_world(token_field=True)
    assert 'type="password"' in get(world, "/runs/weekly-drain-1")
    client.post("/runs/weekly-drain-1/approve", data={"csrf": token_of(client), "token": " abc "}, headers=HTML)
    assert world.runs.writes[0][2] == "user of Bearer abc"


def test_who_is_not_known_is_asked_for_a_token_and_goes_on_with_it() -> None:
    world = build_world()
    client = create_app(world.deps).test_client()
    answer = client.post("/runs/weekly-drain-1/approve", data={"csrf": token_of(client)}, headers=HTML)
    assert answer.status_code == 401 and world.runs.writes == []
    form = Page(answer.data.decode()).forms[0]
    assert "action" not in form and set(form["fields"]) == {"csrf", "token"}
    data = {**form["fields"], "token": "root"}
    assert client.post("/runs/weekly-drain-1/approve", data=data, headers=HTML).status_code == 303
    assert world.runs.writes == [("weekly-drain-1", "Approved", "alice@example.com")]
    refused = client.post("/runs/weekly-drain-1/cancel", data={**data, "token": "guest"}, headers=HTML)
    assert refused.status_code == 403 and b"guest may not" in refused.data


@pytest.mark.parametrize("sent", [None, "", "x" * 43, "ü"])
def test_forms_without_the_right_token_do_nothing(sent) -> None:
    world, client = form_world()
    token_of(client)
    answer = client.post("/runs/weekly-drain-1/approve", data={} if sent is None else {"csrf": sent}, headers=HTML)
    assert answer.status_code == 403 and b"BadFormToken" in answer.data
    assert world.runs.writes == []


def test_forms_of_other_sites_do_nothing() -> None:
    world, client = form_world()
    data = {"csrf": token_of(client)}
    for extra in ({"Sec-Fetch-Site": "cross-site"}, {"Origin": "https://evil.example"}):
        assert client.post("/runs/weekly-drain-1/approve", data=data, headers={**HTML, **extra}).status_code == 403
    fresh = create_app(world.deps).test_client()
    assert fresh.post("/runs/weekly-drain-1/approve", data=data, headers=HTML).status_code == 403
    assert world.runs.writes == []
    same = {**HTML, "Origin": "http://localhost"}
    assert client.post("/runs/weekly-drain-1/approve", data=data, headers=same).status_code == 303


def test_the_cookie_is_not_for_scripts_and_not_for_other_sites() -> None:
    _, client = form_world()
    cookie = client.get("/runs", headers=HTML).headers["Set-Cookie"]
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie


def test_errors_are_pages_for_browsers_with_the_reason(shared: WebWorld) -> None:
    answer = create_app(shared.deps).test_client().get("/runs/nope", headers=HTML)
    assert answer.status_code == 404 and b"RunUnknown" in answer.data and b"<h1>404 Not Found" in answer.data


def test_the_explain_form_leads_to_the_answer(shared: WebWorld) -> None:
    client = create_app(shared.deps).test_client()
    answer = client.get("/explain?kind=pod&name=ads/embed-000-x0000&policy=weekly-drain", headers=HTML)
    assert answer.status_code == 303
    assert answer.headers["Location"] == "explain/pod/ads/embed-000-x0000?policy=weekly-drain"
    text = get(shared, "/explain/pod/research/ocr-000-x0003")
    assert "TooFewReplicas" in text and "never" in text and "gpu-node-01" in text
    text = get(shared, "/explain/node/gpu-node-05")
    assert "Who is on it" in text and "Can it receive pods?" in text


def test_an_explanation_of_another_form_is_shown_too() -> None:
    world = build_world(explain=lambda *_: {"movable": True, "targets": [{"node": "n1", "ok": False}], "x": None})
    text = get(world, "/explain/node/gpu-node-01")
    assert "movable" in text and "yes" in text and "n1" in text


def test_objects_are_shown_even_where_nothing_is_explained() -> None:
    world = build_world(explain=None)
    assert "embed-000-x0000" in get(world, "/explain/pod/ads/embed-000-x0000")
    assert "On this device" in get(world, f"/explain/device/{DEVICE}")
    answer = create_app(world.deps).test_client().get("/explain/node/none", headers=HTML)
    assert answer.status_code == 404
