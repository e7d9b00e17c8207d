"""Who is it and may they: token and access reviews asked of the API server, remembered for a moment.

We keep no users and no roles of our own. An answer is reused for ``TTL`` seconds (a denial for ``TTL_DENIED``), so that
a page that refreshes or a script that approves ten runs costs a few reviews, and a revoked right ends within half a
minute. Tokens are remembered as digests only. A question that got no answer is an error and is never remembered.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from defragd.errors import ClusterError, Forbidden
from defragd.kube.client import Client
from defragd.ports import Outcome

TTL = 30.0
TTL_DENIED = 10.0
"""Seconds. Shorter: somebody who was just given a right tries again at once."""
KEPT = 1000
"""Answers kept at most; the oldest go first."""
REVIEWS = "/apis/authorization.k8s.io/v1"
TOKENS = "/apis/authentication.k8s.io/v1/tokenreviews"


@dataclass(frozen=True, slots=True)
class Caller:
    """A user as the API server knows them; ``uid`` and ``extra`` go into the next question unchanged."""

    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def key(self) -> Hashable:
        extra = tuple(sorted((key, tuple(values)) for key, values in self.extra.items()))
        return (self.name, self.groups, self.uid, extra)


@dataclass(frozen=True, slots=True)
class Access:
    """What somebody wants to do: ``resource`` may name a sub-resource ("pods/eviction"); namespace "" = everywhere."""

    verb: str
    group: str
    resource: str
    namespace: str = ""
    name: str = ""

    def attributes(self) -> dict[str, str]:
        resource, _, sub = self.resource.partition("/")
        given = {
            "verb": self.verb, "group": self.group, "resource": resource, "subresource": sub,
            "namespace": self.namespace, "name": self.name,
        }  # fmt: skip
        return {key: value for key, value in given.items() if value}

    def __str__(self) -> str:
        full = f"{self.resource}.{self.group}" if self.group else self.resource
        return f"{self.verb} {full}" + (f" in {self.namespace}" if self.namespace else "")


class Reviews:
    """Thread-safe. Every question raises ClusterError when the API server does not answer it (Forbidden when we may
    not ask)."""

    def __init__(
        self,
        client: Client,
        *,
        ttl: float = TTL,
        ttl_denied: float = TTL_DENIED,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client, self._ttl, self._ttl_denied, self._monotonic = client, ttl, ttl_denied, monotonic
        self._kept: OrderedDict[Hashable, tuple[float, Any]] = OrderedDict()
        self._lock = threading.Lock()

    def who(self, token: str) -> Caller | None:
        """The user of a bearer token; None: not accepted."""
        digest = hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
        found: Caller | None = self._remember(("token", digest), lambda: self._who(token))
        return found

    def may(self, caller: Caller, access: Access) -> bool:
        """Whether the user may do it."""
        return bool(self._remember(("access", caller.key, access), lambda: self._may(caller, access)))

    def myself(self, access: Access) -> bool:
        """Whether we ourselves may; never remembered."""
        spec = {"resourceAttributes": access.attributes()}
        return bool(self._ask("selfsubjectaccessreviews", "SelfSubjectAccessReview", spec).get("allowed"))

    # -- inside ---------------------------------------------------------------------------------------------------

    def _remember(self, key: Hashable, ask: Callable[[], Any]) -> Any:
        with self._lock:
            until, answer = self._kept.get(key, (float("-inf"), None))
            if self._monotonic() < until:
                return answer
        answer = ask()
        with self._lock:
            self._kept[key] = (self._monotonic() + (self._ttl if answer else self._ttl_denied), answer)
            self._kept.move_to_end(key)
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return answer

    def _who(self, token: str) -> Caller | None:
        status = self._post(TOKENS, "authentication.k8s.io/v1", "TokenReview", {"token": token})
        user = status.get("user") or {}
        if not status.get("authenticated") or not user.get("username"):
            return None
        return Caller(
            str(user["username"]),
            tuple(user.get("groups") or ()),
            str(user.get("uid") or ""),
            user.get("extra") or {},
        )

    def _may(self, caller: Caller, access: Access) -> bool:
        spec: dict[str, Any] = {
            "user": caller.name,
            "groups": list(caller.groups),
            "resourceAttributes": access.attributes(),
        }
        if caller.extra:
            spec["extra"] = {key: list(values) for key, values in caller.extra.items()}
        if caller.uid:
            spec["uid"] = caller.uid
        return bool(self._ask("subjectaccessreviews", "SubjectAccessReview", spec).get("allowed"))

    def _ask(self, plural: str, kind: str, spec: Mapping[str, Any]) -> dict[str, Any]:
        return self._post(f"{REVIEWS}/{plural}", "authorization.k8s.io/v1", kind, spec)

    def _post(self, path: str, version: str, kind: str, spec: Mapping[str, Any]) -> dict[str, Any]:
        answer = self._client.write("POST", path, {"apiVersion": version, "kind": kind, "spec": spec})
        if not answer.ok:
            error = Forbidden if answer.outcome is Outcome.REFUSED else ClusterError
            raise error(f"{kind} was not answered: {answer.message}")
        status: dict[str, Any] = answer.body.get("status") or {}
        return status
