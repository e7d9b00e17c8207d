"""The API server's audit log as a counter of requests: the honest way to show how many calls a move costs."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        # The body of an eviction tells dry runs and UID preconditions apart.
        {"level": "Request", "resources": [{"group": "", "resources": ["pods/eviction"]}]},
        {"level": "Metadata"},
    ],
}


@dataclass(frozen=True)
class Request:
    """One audited request. A watch counts once, when it starts."""

    user: str
    verb: str
    resource: str
    subresource: str
    namespace: str
    name: str
    code: int
    time: str
    uri: str
    agent: str
    dry_run: bool
    precondition_uid: str

    @property
    def what(self) -> str:
        """ "patch pods/status" and the like."""
        return f"{self.verb} {self.resource}{'/' + self.subresource if self.subresource else ''}"


class Audit:
    """Reads the audit log at ``path``."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def mark(self) -> int:
        """A position; requests(since=mark) gives what came after."""
        return self.path.stat().st_size if self.path.exists() else 0

    def requests(self, user: str | None = None, since: int = 0, *, verbs: set[str] | None = None) -> list[Request]:
        found: list[Request] = []
        with open(self.path, "rb") as log:
            log.seek(since)
            for line in log:
                if not line.endswith(b"\n"):
                    break
                entry = json.loads(line)
                wanted = "ResponseStarted" if entry["verb"] == "watch" else "ResponseComplete"
                if entry["stage"] != wanted or (user and entry["user"]["username"] != user):
                    continue
                if verbs is None or entry["verb"] in verbs:
                    found.append(_request(entry))
        return found

    def count(self, user: str | None = None, since: int = 0) -> Counter[str]:
        """ "verb resource/subresource" -> number."""
        return Counter(request.what for request in self.requests(user, since))


def _request(entry: dict[str, Any]) -> Request:
    target = entry.get("objectRef") or {}
    options = (entry.get("requestObject") or {}).get("deleteOptions") or {}
    return Request(
        user=entry["user"]["username"],
        verb=entry["verb"],
        resource=target.get("resource", ""),
        subresource=target.get("subresource", ""),
        namespace=target.get("namespace", ""),
        name=target.get("name", ""),
        code=int((entry.get("responseStatus") or {}).get("code") or 0),
        time=entry["stageTimestamp"],
        uri=entry["requestURI"],
        agent=entry.get("userAgent", ""),
        dry_run="dryRun" in entry["requestURI"] or bool(options.get("dryRun")),
        precondition_uid=(options.get("preconditions") or {}).get("uid", ""),
    )
