"""Who may do what, asked of Kubernetes: whether we have the rights we need, and whether a caller of the API may write.

Both answers come from access reviews; we keep no users and no roles of our own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from defragd.core.placement import GROUP, PLURAL
from defragd.errors import ClusterError
from defragd.kube.client import Client
from defragd.kube.runs import PLURAL as RUNS
from defragd.web.deps import Authorize, Denied, User, WriteRequest

_REVIEWS = "/apis/authorization.k8s.io/v1"
_TOKENS = "/apis/authentication.k8s.io/v1/tokenreviews"
VERBS = {"run": "create"}
"""API verb to the verb on defragruns that it needs; all others change a run: patch."""


def needed(namespace: str) -> list[tuple[str, str, str, str]]:
    """(verb, group, resource, namespace) without which moving pods cannot work ("" = all namespaces)."""
    return [
        ("watch", "", "nodes", ""),
        ("watch", "", "pods", ""),
        ("patch", "", "pods", ""),
        ("create", "", "pods/eviction", ""),
        ("watch", "policy", "poddisruptionbudgets", ""),
        ("create", GROUP, PLURAL, ""),
        ("update", GROUP, f"{PLURAL}/status", ""),
        ("create", GROUP, RUNS, namespace),
        ("update", GROUP, f"{RUNS}/status", namespace),
        ("update", "coordination.k8s.io", "leases", namespace),
    ]


def missing_rights(client: Client, namespace: str) -> list[str]:
    """What we may not do, as people would write it. A server that does not answer the question counts as a yes: the
    request itself will tell."""
    missing = []
    for verb, group, resource, where in needed(namespace):
        name, _, sub = resource.partition("/")
        attributes = {"verb": verb, "group": group, "resource": name, "subresource": sub, "namespace": where}
        spec = {"resourceAttributes": {key: value for key, value in attributes.items() if value}}
        answer = _review(client, "selfsubjectaccessreviews", "SelfSubjectAccessReview", spec)
        if answer is not None and not answer.get("allowed", True):
            full = f"{resource}.{group}" if group else resource
            missing.append(f"{verb} {full}" + (f" in {where}" if where else ""))
    return missing


def authorizer(client: Client, namespace: str) -> Authorize:
    """Bearer token -> user by TokenReview -> may this user write our runs, by SubjectAccessReview."""

    def authorize(request: WriteRequest) -> User | Denied:
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer" or not token.strip():
            return Denied("Unauthenticated", "send a Kubernetes token: Authorization: Bearer TOKEN", 401)
        status = _user_of(client, token.strip())
        if not status.get("authenticated"):
            return Denied("Unauthenticated", "the API server does not accept this token", 401)
        user = status.get("user") or {}
        found = User(str(user.get("username", "")), tuple(user.get("groups") or ()))
        verb = VERBS.get(request.verb, "patch")
        if not _may(client, found, user, verb, namespace):
            return Denied("Forbidden", f"{found.name} may not {verb} {RUNS}.{GROUP} in namespace {namespace}")
        return found

    return authorize


def _user_of(client: Client, token: str) -> dict[str, Any]:
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}}
    answer = client.write("POST", _TOKENS, body)
    if not answer.ok:
        raise ClusterError(f"the token could not be checked: {answer.message}")
    status: dict[str, Any] = answer.body.get("status") or {}
    return status


def _may(client: Client, user: User, raw: dict[str, Any], verb: str, namespace: str) -> bool:
    spec: dict[str, Any] = {
        "user": user.name,
        "groups": list(user.groups),
        "resourceAttributes": {"verb": verb, "group": GROUP, "resource": RUNS, "namespace": namespace},
    }
    extra: dict[str, Sequence[str]] | None = raw.get("extra")
    if extra:
        spec["extra"] = extra
    if raw.get("uid"):
        spec["uid"] = raw["uid"]
    answer = _review(client, "subjectaccessreviews", "SubjectAccessReview", spec)
    return bool(answer and answer.get("allowed"))


def _review(client: Client, plural: str, kind: str, spec: dict[str, Any]) -> dict[str, Any] | None:
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": spec}
    answer = client.write("POST", f"{_REVIEWS}/{plural}", body)
    status: dict[str, Any] | None = answer.body.get("status") if answer.ok else None
    return status
