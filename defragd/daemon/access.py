"""What our rights must be, and which right of a caller of the API each of its requests needs.

The questions go to Kubernetes (`kube.authz`). A request must carry the caller's own token: the API server's service
proxy takes ``Authorization`` away and names no user, so through it the token comes in ``X-Defragd-Token`` (or, in the
UI, in the form).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from defragd.core.placement import GROUP, PLURAL
from defragd.errors import ClusterError
from defragd.kube.authz import Access, Reviews
from defragd.kube.client import Client
from defragd.kube.placements import path_of
from defragd.kube.runs import PLURAL as RUNS
from defragd.ports import Written
from defragd.web.deps import Authorize, CreatePlacement, Denied, User, WriteRequest

TOKEN_HEADER = "x-defragd-token"
REQUESTED_BY = "defragd.io/requested-by"
"""Annotation on a placement that was created through the API: the user, as authenticated."""


def needed(namespace: str) -> list[Access]:
    """Without these moving pods cannot work."""
    return [
        Access("watch", "", "nodes"),
        Access("watch", "", "pods"),
        Access("patch", "", "pods"),
        Access("create", "", "pods/eviction"),
        Access("watch", "policy", "poddisruptionbudgets"),
        Access("create", GROUP, PLURAL),
        Access("update", GROUP, f"{PLURAL}/status"),
        Access("create", GROUP, RUNS, namespace),
        Access("update", GROUP, f"{RUNS}/status", namespace),
        Access("update", "coordination.k8s.io", "leases", namespace),
    ]


def missing_rights(client: Client, namespace: str) -> list[str]:
    """What we may not do, as people would write it. A server that does not answer the question counts as a yes: the
    request itself will tell."""
    reviews = Reviews(client)
    missing = []
    for access in needed(namespace):
        try:
            if not reviews.myself(access):
                missing.append(str(access))
        except ClusterError:
            continue
    return missing


def right_for(request: WriteRequest, namespace: str) -> Access:
    """Which right on our resources a request needs: whoever could do it with kubectl may do it here."""
    match request.verb, request.resource:
        case "create", "placements":
            return Access("create", GROUP, PLURAL, request.namespace)
        case "run", _:
            return Access("create", GROUP, RUNS, namespace)
        case "read", _:
            return Access("list", GROUP, RUNS, namespace)
        case _:
            return Access("update", GROUP, RUNS, namespace)


def token_of(headers: Mapping[str, str]) -> str:
    """The caller's token, "" without one."""
    kind, _, token = headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer" and token.strip():
        return token.strip()
    return headers.get(TOKEN_HEADER, "").strip()


def authorizer(client: Client, namespace: str) -> Authorize:
    """Token -> user by TokenReview -> the right by SubjectAccessReview, each remembered for half a minute."""
    reviews = Reviews(client)

    def authorize(request: WriteRequest) -> User | Denied:
        token = token_of(request.headers)
        if not token:
            return Denied(
                "Unauthenticated",
                "send a Kubernetes token: Authorization: Bearer TOKEN, or X-Defragd-Token through a proxy",
                401,
            )
        caller = reviews.who(token)
        if caller is None:
            return Denied("Unauthenticated", "the API server does not accept this token", 401)
        access = right_for(request, namespace)
        if not reviews.may(caller, access):
            return Denied("Forbidden", f"{caller.name} may not {access}")
        return User(caller.name, caller.groups)

    return authorize


def placement_creator(client: Client) -> CreatePlacement:
    """``create(body, user) -> Written``: the object as the user sent it, with their name on it. The API server's
    schema and rules judge it, as with kubectl."""

    def create(body: Mapping[str, Any], user: User) -> Written:
        meta = dict(body.get("metadata") or {})
        meta["annotations"] = {**(meta.get("annotations") or {}), REQUESTED_BY: user.name[:1024]}
        found = {key: value for key, value in body.items() if key != "status"} | {"metadata": meta}
        return client.write("POST", path_of(str(meta["namespace"])), found, query={"fieldValidation": "Strict"})

    return create
