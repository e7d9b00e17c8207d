"""Commands that talk to a running defragd: through its API and straight through the cluster, with the same words."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from dataclasses import replace
from typing import Any

import pytest
from click.testing import CliRunner

from defragd.cli import printers
from defragd.cli.commands import history
from defragd.cli.main import cli, complete, run
from defragd.core.run import MoveState, RunPhase
from defragd.daemon.access import authorizer
from defragd.kube.authz import TOKENS
from defragd.kube.runs import run_status_to_object, run_to_object
from defragd.policy.load import load_text
from defragd.web.app import create_app
from defragd.web.deps import PolicyView
from defragd.web.serve import Server
from tests.support.fake_api import FakeApi
from tests.support.web_world import WebWorld, build_world

LIST = "/apis/scheduling.hami.placement.com/v1/defragruns"


def call(*args: str) -> tuple[int, str, str]:
    runner = CliRunner()
    with runner.isolation() as (out, err, _both):
        code = run(list(args))
        return code, out.getvalue().decode(), err.getvalue().decode()


@pytest.fixture
def world() -> WebWorld:
    return build_world()


@pytest.fixture
def api(world: WebWorld):
    server = Server(create_app(world.deps), "127.0.0.1:0", name="api")
    server.start()
    yield ("--api", server.url, "--token", "root")
    server.stop(drain=0.1)


@pytest.fixture
def kube(world: WebWorld, tmp_path):
    with FakeApi() as fake:
        for item in world.runs.items:
            body = run_to_object(item)
            body["metadata"]["creationTimestamp"] = item.created.strftime("%Y-%m-%dT%H:%M:%SZ")
            fake.put(LIST, {**body, "status": run_status_to_object(item)})
        fake.put("/api/v1/namespaces", {"metadata": {"name": "kube-system"}})
        fake.where = ("--kubeconfig", fake.kubeconfig(tmp_path))
        yield fake


def said_by(fake: FakeApi) -> None:
    user = {"status": {"userInfo": {"username": "ann"}}}
    fake.answer("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", 201, user)


def stored(fake: FakeApi, name: str) -> dict[str, Any]:
    return fake.objects[LIST][f"kube-system/{name}"]["spec"]


# -- reading -----------------------------------------------------------------------------------------------------------


def test_both_ways_tell_the_same(api, kube: FakeApi) -> None:
    for words in (("history",), ("history", "weekly-drain-1"), ("history", "--policy", "nightly-consolidation")):
        ways = [call(*words, "-o", "json", *where) for where in (api, kube.where)]
        assert [code for code, _, _ in ways] == [0, 0], ways
        assert json.loads(ways[0][1]) == json.loads(ways[1][1])


def test_history_reads_like_kubectl(api) -> None:
    code, out, err = call("history", *api)
    lines = out.splitlines()
    assert (code, err) == (0, "")
    assert lines[0].split()[:5] == ["RUN", "POLICY", "MODE", "PHASE", "PLANNED"]
    assert any(line.startswith("weekly-drain-1") and "AwaitingApproval" in line for line in lines)
    _, names, _ = call("history", "-o", "name", "--limit", "1", *api)
    assert names.strip() == f"defragrun/{lines[1].split()[0]}"
    _, bare, _ = call("history", "--no-headers", *api)
    assert not bare.startswith("RUN")


def test_one_run_shows_its_moves(api) -> None:
    code, out, _ = call("history", "nightly-consolidation-3", *api)
    assert code == 0
    assert out.splitlines()[0].startswith("nightly-consolidation-3: Running, nightly-consolidation (Auto)")
    assert out.splitlines()[1].split() == ["MOVE", "POD", "TO", "STATE", "REASON", "MESSAGE"]


# -- steering ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verb", "name", "desired"),
    [("approve", "weekly-drain-1", "Approved"), ("pause", "nightly-consolidation-3", "Paused"),
     ("cancel", "nightly-consolidation-3", "Cancelled")],
)  # fmt: skip
def test_steering_over_the_api(world: WebWorld, api, verb: str, name: str, desired: str) -> None:
    code, out, err = call(verb, name, *api)
    assert (code, err) == (0, "")
    assert out.startswith(f"defragrun/{name} {verb}")
    assert world.runs.writes == [(name, desired, "alice@example.com")]


@pytest.mark.parametrize(("verb", "name", "desired"), [("approve", "weekly-drain-1", "Approved"),
                                                       ("pause", "nightly-consolidation-3", "Paused")])  # fmt: skip
def test_steering_through_the_cluster_names_the_user(kube: FakeApi, verb: str, name: str, desired: str) -> None:
    said_by(kube)
    code, _, err = call(verb, name, *kube.where)
    assert (code, err) == (0, "")
    assert (stored(kube, name)["desired"], stored(kube, name)["desiredBy"]) == (desired, "ann")


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("approve", "nightly-consolidation-3"), 1, "does not wait for approval (Running) (NotAwaitingApproval)"),
        (("resume", "nightly-consolidation-3"), 1, "is not paused"),
        (("cancel", "nightly-consolidation-1"), 1, "has ended"),
        (("approve", "weekly-drain-2"), 1, "RunUnknown"),
    ],
)
def test_what_cannot_be_done_is_one_line_either_way(api, kube: FakeApi, words, code: int, says: str) -> None:
    for where in (api, kube.where):
        got, out, err = call(*words, *where)
        assert (got, out) == (code, "")
        assert err.startswith("error: ") and says in err and err.count("\n") == 1


@pytest.mark.parametrize(
    ("token", "code", "says"), [((), 3, "(401)"), (("--token", "guest"), 3, "may not"), (("--token", "root"), 0, "")]
)
def test_who_asks_decides(api, token, code: int, says: str) -> None:
    got, _, err = call("approve", "weekly-drain-1", *api[:2], *token)
    assert got == code and says in err


def test_a_write_that_came_too_late_is_said(kube: FakeApi) -> None:
    said_by(kube)
    path = "/apis/scheduling.hami.placement.com/v1/namespaces/kube-system/defragruns/weekly-drain-1"
    kube.answer("PATCH", path, 409, {"kind": "Status", "message": "the object has been modified", "code": 409})
    code, _, err = call("approve", "weekly-drain-1", *kube.where)
    assert code == 3 and "has been modified" in err


def test_pausing_everything_is_an_annotation(kube: FakeApi) -> None:
    code, out, _ = call("pause", "--all", "--reason", "upgrade", *kube.where)
    assert (code, out) == (0, "everything paused: upgrade\n")
    meta = kube.objects["/api/v1/namespaces"]["/kube-system"]["metadata"]
    assert meta["annotations"] == {"defragd.io/paused": "upgrade"}
    assert call("resume", "--all", *kube.where)[:2] == (0, "everything resumed\n")
    assert kube.objects["/api/v1/namespaces"]["/kube-system"]["metadata"]["annotations"] == {}


@pytest.mark.parametrize(
    ("words", "says"),
    [(("pause",), "give a RUN, or --all"), (("pause", "x", "--all"), "give a RUN, or --all"),
     (("pause", "--all", "--api", "http://x"), "in the cluster itself"),
     (("approve", "x", "--token", "t"), "--token goes with --api"),
     (("history", "--api", "http://127.0.0.1:1"), "cannot reach http://127.0.0.1:1")],
)  # fmt: skip
def test_wrong_use_is_one_line(words, says: str) -> None:
    code, out, err = call(*words)
    assert code in (2, 3) and out == "" and says in err and err.count("\n") == 1


def test_run_now_goes_to_the_daemon(api, kube: FakeApi, world: WebWorld) -> None:
    code, _, err = call("run-now", "make-room", *api)
    assert code == 1 and err.count("\n") == 1 and "(BreakerOpen)" in err
    fresh = {**json.loads(call("history", "weekly-drain-1", "-o", "json", *api)[1]), "id": "fresh"}
    path = "/api/v1/namespaces/kube-system/services/gpu-descheduler:http/proxy/api/v1/policies/weekly-drain:run"
    other = {"reason": "NotLeader", "detail": "only the leader does this"}
    kube.answer("POST", path, 503, other)
    kube.answer("POST", path, 202, fresh)
    code, out, err = call("run-now", "weekly-drain", *kube.where)
    assert (code, err) == (0, "") and out.startswith("defragrun/fresh created, AwaitingApproval")
    assert kube.last_headers["X-Defragd-Token"] == "t", "the proxy keeps Authorization to itself"


class Behind:
    """The API server's service proxy with the daemon's own API behind it, judged by Kubernetes as in a cluster."""

    def __init__(self, kube: FakeApi, world: WebWorld, folder: Any) -> None:
        self.kube = kube
        judge = authorizer(kube.client(folder), "kube-system")
        self.app = create_app(replace(world.deps, authorize=judge, writes_enabled=True)).test_client()
        kube.behind_proxy = self.call

    def call(self, method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, bytes]:
        answer = self.app.open(path, method=method, headers=headers, data=body)
        return answer.status_code, answer.data

    def says(self, user: str, *, may: bool) -> None:
        status = {"authenticated": bool(user), "user": {"username": user}}
        self.kube.answer("POST", TOKENS, 201, {"status": status})
        path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
        self.kube.answer("POST", path, 201, {"status": {"allowed": may}})


@pytest.mark.parametrize(
    ("user", "may", "code", "says"),
    [("", False, 3, "token"), ("guest", False, 3, "guest may not create defragruns"), ("ann", True, 1, "BreakerOpen")],
)
def test_writes_through_the_service_proxy_are_judged_by_the_callers_own_token(
    world: WebWorld, kube: FakeApi, tmp_path, user: str, may: bool, code: int, says: str
) -> None:
    Behind(kube, world, tmp_path).says(user, may=may)
    found = call("run-now", "make-room", *kube.where)
    assert (found[0], found[2].count("\n")) == (code, 1) and says in found[2]
    reviews = [body["spec"] for method, path, _, body in kube.requests if path == TOKENS]
    assert reviews == [{"token": "t"}], "what the caller's kubeconfig holds, asked once"


def test_without_a_token_the_proxy_gives_nobody_any_right(world: WebWorld, kube: FakeApi, tmp_path) -> None:
    behind = Behind(kube, world, tmp_path)
    for headers in ({}, {"X-Remote-User": "system:admin"}, {"Impersonate-User": "ann", "X-Forwarded-User": "ann"}):
        assert behind.call("POST", "/api/v1/policies/make-room:run", headers, b"{}")[0] == 401
    assert kube.count("POST", TOKENS) == 0


# -- policies of the running daemon ------------------------------------------------------------------------------------


SERVED = """
apiVersion: defragd/v1
kind: DefragPolicy
metadata: {name: served}
spec: {strategy: {name: best-fit}, mode: Approve, schedule: {cron: "30 4 * * *", timeZone: Asia/Shanghai}}
"""


def test_policies_and_starts_of_the_running_daemon_by_name(kube: FakeApi, tmp_path) -> None:
    (policy,) = load_text(SERVED, "nightly.yaml").policies
    view = PolicyView("served", "nightly.yaml:2", policy.digest, "best-fit", spec=policy.document["spec"])
    broken = PolicyView("broken", "b.yaml:1", error="b.yaml:3:1: unknown field")
    world = build_world(policies=lambda: [view, broken])
    Behind(kube, world, tmp_path)
    server = Server(create_app(world.deps), "127.0.0.1:0", name="api")
    server.start()
    for where in (("--api", server.url), kube.where):
        code, out, err = call("policy", "schedule", "served", *where, "--now", "2026-12-01T00:00:00Z", "-o", "json")
        assert (code, err) == (0, "")
        (found,) = json.loads(out)
        assert len(found["starts"]) == 10
        assert found["starts"][0] == {
            "utc": "2026-12-01T20:30:00Z", "local": "2026-12-02T04:30:00+08:00", "allowed": True, "reason": ""
        }  # fmt: skip
        code, out, err = call("policy", "list", *where)
        assert code == 2 and "unknown field" in err
        assert [line.split()[:3] for line in out.splitlines()[1:]] == [["served", "best-fit", "Approve"]]
        code, out, err = call("policy", "schedule", "serve", *where)
        assert (code, out) == (2, "") and 'did you mean "served"' in err
    server.stop(drain=0.1)
    assert call("policy", "schedule", "best-fit", "--count", "1")[0] == 0, "without a server: a shipped one"


# -- following ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("phase", "code"), [(RunPhase.COMPLETED, 0), (RunPhase.ABORTED, 1)])
def test_following_ends_with_the_run(world: WebWorld, api, monkeypatch, phase: RunPhase, code: int) -> None:
    monkeypatch.setattr(history, "POLL_SECONDS", 0.05)
    first = world.runs.get("nightly-consolidation-3")
    moves = tuple(replace(move, state=MoveState.DONE) for move in first.moves)
    ended = replace(first, phase=phase, moves=moves, message="all is well")

    def finish() -> None:
        world.runs.items = [ended if item.name == first.name else item for item in world.runs.items]

    timer = threading.Timer(0.2, finish)
    timer.start()
    got, out, _ = call("history", first.name, "-w", *api)
    timer.join()
    assert got == code
    assert out.splitlines()[-1] == f"run {first.name} {phase}: all is well"
    changed = sum(1 for move in first.moves if move.state is not MoveState.DONE)
    assert out.count(" Done") >= changed


# -- as people call it -------------------------------------------------------------------------------------------------


def test_colours_only_on_terminals(monkeypatch) -> None:
    text = "run-1   Failed   abc-Failed   Completed"
    assert printers.paint(text) == text, "a pipe"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert printers.paint(text) == "run-1   \x1b[31mFailed\x1b[0m   abc-Failed   \x1b[32mCompleted\x1b[0m"
    monkeypatch.setenv("NO_COLOR", "1")
    assert printers.paint(text) == text
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert printers.paint(text) == text


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell: str) -> None:
    code, out, _ = call("completion", shell)
    assert code == 0 and "_DEFRAGD_COMPLETE" in out and "defragd" in out


def test_completion_of_the_shell() -> None:
    env = {**os.environ, "_DEFRAGD_COMPLETE": "bash_complete", "COMP_WORDS": "defragd app", "COMP_CWORD": "1"}
    command = [sys.executable, "-c", "import sys; sys.argv[0]='defragd'; from defragd.cli.main import main; main()"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "plain,approve"


@pytest.mark.parametrize(
    ("words", "expected", "directive"),
    [(["doc"], ["doctor"], ":4"), (["history", "-o", "j"], ["json"], ":4"), (["pause", "--al"], ["--all"], ":4")],
)
def test_completion_for_kubectl(monkeypatch, capsys, words, expected, directive: str) -> None:
    monkeypatch.setattr(sys, "argv", ["kubectl_complete-defrag", *words])
    complete()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("\t")[0] for line in lines[:-1]] == expected and lines[-1] == directive


def test_as_a_plugin_usage_says_kubectl_defrag(monkeypatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/usr/local/bin/kubectl-defrag"])
    assert "Usage: kubectl defrag" in call("--help")[1]
    assert "see 'kubectl defrag approve --help'" in call("approve")[2]


def test_every_command_is_listed_and_has_help() -> None:
    from defragd.cli.main import COMMANDS

    with cli.make_context("defragd", [], resilient_parsing=True) as ctx:
        names = cli.list_commands(ctx)
    assert names == list(COMMANDS)
    for name in names:
        code, out, _ = call(name, "--help")
        assert code == 0 and out.startswith(f"Usage: defragd {name}")
