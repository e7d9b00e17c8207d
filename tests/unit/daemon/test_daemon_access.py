"""Which right a request of the API needs, and whose token it is judged by."""

from __future__ import annotations

from typing import Any

import pytest

from defragd.daemon.access import REQUESTED_BY, authorizer, missing_rights, needed, placement_creator, right_for
from defragd.kube.authz import TOKENS
from defragd.ports import Outcome, Written
from defragd.web.deps import Denied, User, WriteRequest

G = "scheduling.hami.placement.com"


class Server:
    def __init__(self, *allowed: str) -> None:
        self.allowed, self.asked, self.written = set(allowed), [], []
        self.down = False

    def write(self, method: str, path: str, body: Any = None, query: Any = None) -> Written:
        if self.down:
            return Written(Outcome.UNKNOWN, "gone")
        spec = body["spec"]
        if path == TOKENS:
            ok = spec["token"] == "ann-token"
            return Written(Outcome.OK, body={"status": {"authenticated": ok, "user": {"username": "ann"}}})
        if path.endswith("reviews"):
            a = spec["resourceAttributes"]
            full = "/".join(x for x in (a["resource"], a.get("subresource")) if x)
            text = f"{a['verb']} {full} {a.get('namespace', '*')}"
            self.asked.append(text)
            return Written(Outcome.OK, body={"status": {"allowed": text in self.allowed}})
        self.written.append((path, body, query))
        return Written(Outcome.OK, body=body)


def ask(server: Server, verb: str, resource: str = "runs", *, namespace: str = "", **headers: str) -> User | Denied:
    found = (
        {"authorization": "Bearer ann-token"} if not headers else {k.replace("_", "-"): v for k, v in headers.items()}
    )
    request = WriteRequest(verb, resource, "x", found, namespace=namespace)
    return authorizer(server, "kube-system")(request)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("verb", "resource", "namespace", "right"),
    [
        ("approve", "runs", "", "update defragruns kube-system"),
        ("pause", "runs", "", "update defragruns kube-system"),
        ("resume", "runs", "", "update defragruns kube-system"),
        ("cancel", "runs", "", "update defragruns kube-system"),
        ("run", "policies", "", "create defragruns kube-system"),
        ("create", "placements", "ads", "create hamipodplacements ads"),
        ("read", "", "", "list defragruns kube-system"),
    ],
)
def test_each_request_needs_the_right_that_kubectl_would_need(verb, resource, namespace, right) -> None:
    assert ask(Server(right), verb, resource, namespace=namespace) == User("ann")
    denied = ask(Server(), verb, resource, namespace=namespace)
    assert isinstance(denied, Denied) and denied.status == 403
    words = right.split()
    assert denied.detail == f"ann may not {words[0]} {words[1]}.{G} in {words[2]}"


def test_an_unknown_verb_needs_the_stronger_right() -> None:
    assert right_for(WriteRequest("explode", "runs", "x", {}), "ns").verb == "update"


@pytest.mark.parametrize(
    "headers",
    [{"x_defragd_token": "ann-token"}, {"authorization": "bearer  ann-token "},
     {"authorization": "Basic eA==", "x_defragd_token": "ann-token"}],
)  # fmt: skip
def test_where_the_token_may_come_from(headers) -> None:
    assert isinstance(ask(Server("update defragruns kube-system"), "approve", **headers), User)


@pytest.mark.parametrize(
    "headers",
    [{"x_remote_user": "ann"}, {"authorization": "Bearer "}, {"authorization": "Bearer other"},
     {"impersonate_user": "ann"}, {"x_forwarded_user": "ann"}],
)  # fmt: skip
def test_nobody_is_believed_without_a_token(headers) -> None:
    denied = ask(Server("update defragruns kube-system"), "approve", **headers)
    assert isinstance(denied, Denied) and denied.status == 401


def test_own_rights_are_named_when_missing_and_not_when_nobody_answers() -> None:
    server = Server()
    assert missing_rights(server, "ns") == [str(right) for right in needed("ns")]  # type: ignore[arg-type]
    server.down = True
    assert missing_rights(server, "ns") == []  # type: ignore[arg-type]


def test_a_created_placement_bears_the_users_name_and_no_status() -> None:
    server = Server()
    body = {
        "kind": "HamiPodPlacement", "metadata": {"namespace": "ads", "name": "p", "annotations": {REQUESTED_BY: "eve"}},
        "spec": {"reqID": "1"}, "status": {"phase": "Completed"},
    }  # fmt: skip
    assert placement_creator(server)(body, User("ann")).ok  # type: ignore[arg-type]
    path, sent, query = server.written[0]
    assert path == f"/apis/{G}/v1/namespaces/ads/hamipodplacements" and query == {"fieldValidation": "Strict"}
    assert sent["metadata"]["annotations"] == {REQUESTED_BY: "ann"} and "status" not in sent
    assert body["metadata"]["annotations"] == {REQUESTED_BY: "eve"}, "the caller's value is not changed"
