"""What people may do to runs and policies, for API and UI alike: authorise, check, write, leave a trace."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from flask import Request

from defragd.core.breaker import BREAKER
from defragd.core.placement import KIND
from defragd.core.reasons import Reason
from defragd.core.run import Run, RunPhase
from defragd.errors import DefragError, NotLeader
from defragd.ports import Note, Outcome, Written
from defragd.web.deps import ApiDeps, Denied, User, WriteRequest
from defragd.web.problems import Problem
from defragd.web.security import RateLimit

T = TypeVar("T")

DESIRED: Mapping[str, str] = {"approve": "Approved", "pause": "Paused", "resume": "", "cancel": "Cancelled"}
"""Verb of a request to what is written into the run."""

_STATUS = {
    Outcome.BLOCKED: 429,
    Outcome.REFUSED: 422,
    Outcome.CONFLICT: 409,
    Outcome.GONE: 404,
    Outcome.UNKNOWN: 502,
}


def place_of(body: Mapping[str, Any]) -> tuple[str, str]:
    """Namespace and name of an object that is to be created. Raises Problem 400 when it is no HamiPodPlacement."""
    meta = body.get("metadata")
    if body.get("kind") != KIND or not isinstance(meta, Mapping):
        raise Problem(400, f"the body must be a {KIND} object: apiVersion, kind, metadata, spec", reason="BadBody")
    namespace, name = meta.get("namespace"), meta.get("name")
    for value, field in ((namespace, "namespace"), (name, "name")):
        if not isinstance(value, str) or not _NAME.fullmatch(value):
            raise Problem(400, f"metadata.{field} must be a Kubernetes name", reason="BadBody")
    annotations = meta.get("annotations")
    if annotations is not None and not isinstance(annotations, Mapping):
        raise Problem(400, "metadata.annotations must be a mapping", reason="BadBody")
    return str(namespace), str(name)


_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


def may_steer(run: Run, verb: str) -> None:
    """Raises Problem 409 when the run's state does not allow it."""
    if verb == "approve" and run.reason == Reason.BREAKER_OPEN and BREAKER in run.annotations:
        return  # lifts the breaker that this run opened
    if run.ended:
        raise Problem(409, f"run {run.name} has ended ({run.phase})", reason="RunEnded")
    if verb == "approve" and run.desired != "Approved" and run.phase is not RunPhase.AWAITING_APPROVAL:
        raise Problem(409, f"run {run.name} does not wait for approval ({run.phase})", reason="NotAwaitingApproval")
    if verb == "resume" and run.desired != "Paused" and run.phase is not RunPhase.PAUSED:
        raise Problem(409, f"run {run.name} is not paused ({run.phase})", reason="NotPaused")
    if run.desired == "Cancelled" and verb != "cancel":
        raise Problem(409, f"run {run.name} is being cancelled", reason="Cancelled")


class Actions:
    """Writes on behalf of a user. Every method raises `Problem` with the reason why not."""

    def __init__(self, deps: ApiDeps) -> None:
        self.deps = deps
        self._limit = RateLimit(deps.clock)

    def authorize(
        self, request: Request, verb: str, resource: str, name: str, *, bearer: str = "", namespace: str = ""
    ) -> User:
        """Who is it and may they? Raises Problem 401, 403 or 429."""
        self._limit.take()
        if not self.deps.writes_enabled:
            raise Problem(403, "changes through the API are switched off in the configuration", reason="WritesDisabled")
        headers = {key.lower(): value for key, value in request.headers.items()}
        if bearer:
            headers["authorization"] = f"Bearer {bearer}"
        try:
            asked = WriteRequest(verb, resource, name, headers, request.remote_addr or "", namespace)
            found = self.deps.authorize(asked)
        except DefragError as error:
            raise Problem(503, f"cannot ask the API server whether this is allowed: {error}") from error
        if isinstance(found, Denied):
            extra = {"WWW-Authenticate": "Bearer"} if found.status == 401 else None
            raise Problem(found.status, found.detail, reason=found.reason, headers=extra)
        return found

    def steer(self, name: str, verb: str, user: User) -> Run:
        """Approve, pause, resume or cancel a run; gives the run as it will be. Doing it twice is fine."""
        run = self.find_run(name)
        if verb not in DESIRED:
            raise Problem(404, f"{verb!r}: a run can be approved, paused, resumed or cancelled", reason="UnknownAction")
        wanted = DESIRED[verb]
        may_steer(run, verb)
        if run.desired == wanted and verb != "resume":
            return run
        self._written(self._guard(lambda: self.deps.runs.write_desired(name, wanted, user.name)), name)
        self._trace(run, verb, user)
        return self.deps.runs.get(name) or run

    def find_run(self, name: str) -> Run:
        run = self.deps.runs.get(name)
        if run is None:
            raise Problem(404, f"no run {name[:120]!r}; see the list of runs", reason="RunUnknown")
        return run

    def run_policy(self, name: str, user: User) -> Run:
        """Plan a policy now, in its own mode."""
        plan_now = self.deps.plan_now
        if plan_now is None:
            raise Problem(501, "this daemon does not plan on demand", reason="NotOffered")
        if not any(policy.name == name and policy.strategy for policy in self.deps.policies()):
            raise Problem(404, f"no policy {name[:120]!r}; see the list of policies", reason="PolicyUnknown")
        found = self._guard(lambda: plan_now(name, user))
        if not isinstance(found, Run):
            raise Problem(409, found.detail, reason=str(found.reason))
        self._trace(found, "run", user)
        return found

    def create_placement(self, body: Mapping[str, Any], user: User) -> Mapping[str, Any]:
        """Create a placement as the user wrote it; gives the created object. The API server checks it."""
        create = self.deps.create_placement
        if create is None:
            raise Problem(501, "this daemon does not create placements on demand", reason="NotOffered")
        namespace, name = place_of(body)
        written = self._guard(lambda: create(body, user))
        self._written(written, f"{namespace}/{name}")
        self.deps.hook("api.write", {"verb": "create", "placement": f"{namespace}/{name}", "user": user.name})
        if self.deps.events is not None:
            uid = str((written.body.get("metadata") or {}).get("uid") or "")
            text = f"Created by {user.name} through the API"
            self.deps.events.emit(Note(KIND, namespace, name, uid, "PlacementRequested", text))
        return written.body

    def _guard(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except NotLeader as error:
            leader = self.deps.leadership.holder() or "nobody yet"
            raise Problem(
                503, f"only the leader does this; it is {leader}", reason="NotLeader", headers={"Retry-After": "2"}
            ) from error
        except KeyError as error:
            raise Problem(404, f"there is no {error.args[0] if error.args else 'such object'!r}") from error
        except DefragError as error:
            reason = getattr(error, "reason", None)
            if reason:  # a refusal with a reason of its own: not now, asking again may succeed
                raise Problem(409, str(getattr(error, "detail", error)), reason=str(reason)) from error
            raise Problem(503, str(error), reason="ClusterError") from error

    @staticmethod
    def _written(written: Written, name: str) -> None:
        if written.ok:
            return
        status = _STATUS[written.outcome]
        wait = {"Retry-After": str(int(written.retry_after) + 1)} if written.retry_after else None
        text = written.message or f"the API server answered {written.outcome} for {name}"
        raise Problem(status, text, reason=str(written.outcome), headers=wait)

    def _trace(self, run: Run, verb: str, user: User) -> None:
        self.deps.hook("api.write", {"verb": verb, "run": run.name, "policy": run.policy, "user": user.name})
        if self.deps.events is not None:
            word = {"approve": "Approved", "pause": "Paused", "resume": "Resumed", "cancel": "Cancelled"}
            text = f"{word.get(verb, 'Started')} by {user.name}"
            reason = f"Run{word.get(verb, 'Requested')}"
            self.deps.events.emit(Note("DefragRun", run.namespace, run.name, run.uid, reason, text))
