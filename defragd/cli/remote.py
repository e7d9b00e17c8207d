"""How commands reach a running defragd: its API (``--api``), or straight through the cluster's own objects.

Both doors speak the API's JSON, so a command neither knows nor cares which one it goes through. Without ``--api`` the
caller's own rights on DefragRuns decide, and it works while no daemon runs; only planning needs the daemon, which is
then asked through the API server's service proxy.
"""

from __future__ import annotations

import json
import os
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from urllib.parse import quote

import click
from urllib3.exceptions import HTTPError

from defragd.errors import ClusterError, ConfigError, DefragError, Forbidden, Unreachable

if TYPE_CHECKING:
    from defragd.kube.client import Client

F = TypeVar("F", bound=Callable[..., Any])
Json = dict[str, Any]
VERBS = {"approve": "Approved", "pause": "Paused", "resume": "", "cancel": "Cancelled"}
TRIES = 8
"""Of a request that only the leader answers: each may reach another replica."""


class Refused(DefragError):
    """The other side understood and said no; ``reason`` is its stable code."""

    exit_code = 1

    def __init__(self, detail: str, reason: str = "") -> None:
        super().__init__(f"{detail} ({reason})" if reason else detail)
        self.reason = reason


class Door(Protocol):
    """What the commands need. Every method raises DefragError with one line."""

    def runs(self, policy: str | None = None) -> list[Json]:
        """Newest first, as ``/api/v1/runs`` lists them."""
        ...

    def run(self, name: str) -> Json:
        """With plan and moves, as ``/api/v1/runs/NAME``."""
        ...

    def steer(self, name: str, verb: str) -> Json: ...

    def run_policy(self, name: str) -> Json: ...

    def policies(self) -> list[Json]:
        """In order of name, as ``/api/v1/policies`` lists them."""
        ...

    def close(self) -> None: ...


def door_options(function: F) -> F:
    """``--api``, ``--token``, ``--kubeconfig``, ``--context``, ``--namespace``."""
    options = [
        click.option("--api", metavar="URL", envvar="DEFRAGD_API", help="Talk to this API instead of the cluster."),
        click.option(
            "--token",
            metavar="TOKEN",
            envvar="DEFRAGD_TOKEN",
            help="Kubernetes token for --api; default the kubeconfig's.",
        ),
        click.option("--kubeconfig", metavar="FILE", help="Kubeconfig of the cluster."),
        click.option("--context", metavar="NAME", help="Context of the kubeconfig."),
        click.option(
            "-n",
            "--namespace",
            default="kube-system",
            show_default=True,
            metavar="NS",
            help="Where defragd is installed.",
        ),
    ]
    for option in reversed(options):
        function = option(function)
    return function


def open_door(api: str | None, token: str | None, kubeconfig: str | None, context: str | None, namespace: str) -> Door:
    """Raises ConfigError for contradictory options."""
    from defragd.kube.client import Client

    if api is None:
        if token:
            raise ConfigError("--token goes with --api; straight to the cluster the kubeconfig's credentials are used")
        return ClusterDoor(Client.from_kubeconfig(kubeconfig, context), namespace)
    if token is None and (kubeconfig or context):
        client = Client.from_kubeconfig(kubeconfig, context)
        token = client.token()
        client.close()
    return ApiDoor(api, token or "")


class ApiDoor:
    """Over HTTP(S). ``base`` may have a path (a prefix, or the API server's proxy path behind `kubectl proxy`)."""

    def __init__(self, base: str, token: str = "", *, timeout: float = 30.0) -> None:
        if not base.startswith(("http://", "https://")):
            base = f"http://{base}"
        self._base, self._token, self._timeout = base.rstrip("/"), token, timeout

    def runs(self, policy: str | None = None) -> list[Json]:
        query = f"&policy={quote(policy)}" if policy else ""
        return every_page(lambda page: self._call("GET", f"/api/v1/runs{page}{query}"))

    def policies(self) -> list[Json]:
        return every_page(lambda page: self._call("GET", f"/api/v1/policies{page}"))

    def run(self, name: str) -> Json:
        return self._call("GET", f"/api/v1/runs/{quote(name, safe='')}")

    def steer(self, name: str, verb: str) -> Json:
        return self._call("POST", f"/api/v1/runs/{quote(name, safe='')}:{verb}")

    def run_policy(self, name: str) -> Json:
        return leaders_word(lambda: self._call("POST", f"/api/v1/policies/{quote(name, safe='')}:run", 130.0))

    def close(self) -> None:
        return None

    def _call(self, method: str, path: str, timeout: float | None = None) -> Json:
        headers = {"Accept": "application/json", "X-Defragd-Token": self._token} if self._token else {}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        data = b"{}" if method == "POST" else None
        if data:
            headers["Content-Type"] = "application/json"
        asked = urllib.request.Request(self._base + path, data=data, headers=headers, method=method)
        try:
            with urllib.request.urlopen(asked, timeout=timeout or self._timeout) as answer:
                raw = answer.read()
        except urllib.error.HTTPError as error:
            raise refusal(error.code, error.read(), self._base + path) from None
        except (urllib.error.URLError, OSError, ssl.SSLError, ValueError) as error:
            why = getattr(error, "reason", error)
            raise Unreachable(f"cannot reach {self._base}: {why}; check --api and that the port is forwarded") from None
        return read_json(raw, self._base + path)


class ClusterDoor:
    """Over DefragRun objects, with the caller's own rights."""

    def __init__(self, client: Client, namespace: str) -> None:
        self._client, self._namespace = client, namespace

    def runs(self, policy: str | None = None) -> list[Json]:
        from defragd.web.api import created_key
        from defragd.web.resources import run_json

        found = [run for run in self._read() if policy in (None, run.policy)]
        return [run_json(run) for run in sorted(found, key=created_key, reverse=True)]

    def run(self, name: str) -> Json:
        from defragd.web.resources import run_detail_json

        return run_detail_json(self._find(name))

    def steer(self, name: str, verb: str) -> Json:
        from dataclasses import replace

        from defragd.kube.client import MERGE_PATCH
        from defragd.kube.placements import path_of
        from defragd.kube.runs import PLURAL
        from defragd.web.actions import may_steer
        from defragd.web.problems import Problem
        from defragd.web.resources import run_detail_json

        run = self._find(name)
        try:
            may_steer(run, verb)
        except Problem as problem:
            raise Refused(problem.detail, problem.reason) from None
        spec = {"desired": VERBS[verb], "desiredBy": self._who()}
        path = path_of(self._namespace, name, plural=PLURAL)
        body = {"metadata": {"resourceVersion": run.revision}, "spec": spec}
        written = self._client.write("PATCH", path, body, content_type=MERGE_PATCH)
        if not written.ok:
            raise ClusterError(f"{verb} {name}: {written.message}")
        return run_detail_json(replace(run, desired=VERBS[verb], desired_by=spec["desiredBy"]))

    def run_policy(self, name: str) -> Json:
        if not self._client.token():
            raise ConfigError(
                "planning needs the daemon, and it knows you by a token; this kubeconfig has none. Forward its port "
                f"(kubectl -n {self._namespace} port-forward service/gpu-descheduler 8083) and use "
                "--api http://127.0.0.1:8083 --token TOKEN"
            )
        return leaders_word(lambda: self._proxied("POST", f"policies/{quote(name, safe='')}:run", {}))

    def policies(self) -> list[Json]:
        return every_page(lambda page: self._proxied("GET", f"policies{page}"))

    def _proxied(self, method: str, path: str, body: Json | None = None) -> Json:
        """Asks the daemon through the API server's service proxy, which takes ``Authorization`` away."""
        where = f"/api/v1/namespaces/{self._namespace}/services/gpu-descheduler:http/proxy/api/v1/{path}"
        token = self._client.token()
        headers = {"X-Defragd-Token": token} if token else None
        try:
            answer = self._client.send(method, where, body=body, headers=headers, timeout=130.0)
        except HTTPError as error:
            raise Unreachable(f"{self._client.server} cannot be reached: {type(error).__name__}") from None
        if answer.status >= 300:
            raise refusal(answer.status, answer.data, where)
        return read_json(answer.data, where)

    def close(self) -> None:
        self._client.close()

    def _read(self) -> list[Any]:
        from defragd.kube.kinds import runs_kind
        from defragd.kube.reflector import list_all
        from defragd.kube.runs import run_from_wire

        kind = runs_kind(self._namespace)
        items, _, _ = list_all(self._client, kind, kind.decoder())
        return [run_from_wire(item) for item, _ in items.values()]

    def _find(self, name: str) -> Any:
        found = {run.name: run for run in self._read()}
        if name in found:
            return found[name]
        from defragd.policy.problems import nearest

        hint = nearest(name, sorted(found)).replace("fields here", "known") if found else "; there are none"
        raise Refused(f'no run "{name}" in namespace {self._namespace}{hint}', "RunUnknown")

    def _who(self) -> str:
        """The caller's name as the API server knows it; older servers do not tell."""
        path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
        answer = self._client.write("POST", path, body)
        user = ((answer.body.get("status") or {}).get("userInfo") or {}).get("username") if answer.ok else ""
        return str(user or f"{os.environ.get('USER', 'somebody')} by kubectl")[:1024]


def every_page(ask: Callable[[str], Json]) -> list[Json]:
    """The items of all pages; ``ask`` gets the query of each."""
    found: list[Json] = []
    query = "?limit=200"
    while True:
        page = ask(query)
        found += page["items"]
        if not page.get("nextPageToken"):
            return found
        query = f"?limit=200&continue={quote(page['nextPageToken'], safe='')}"


def leaders_word(ask: Callable[[], Json]) -> Json:
    """Asks again while a replica that does not lead answers: the next request may reach the leader."""
    for number in range(TRIES):
        try:
            return ask()
        except Refused as error:
            if error.reason != "NotLeader" or number == TRIES - 1:
                raise
            time.sleep(0.3)
    raise AssertionError


def refusal(status: int, raw: bytes, place: str) -> DefragError:
    """An answer of 300 and more as an error: problem details, a Kubernetes Status, or just the code."""
    try:
        body = json.loads(raw)
    except ValueError:
        body = {}
    if not isinstance(body, dict):
        body = {}
    detail = str(body.get("detail") or body.get("message") or f"{place} answered {status}")
    if status in (401, 403):
        return Forbidden(f"{detail} ({status})")
    if status in (502, 503, 504) and body.get("reason") != "NotLeader":
        return Unreachable(f"{detail} ({status})")
    return Refused(detail, str(body.get("reason") or status))


def read_json(raw: bytes, place: str) -> Json:
    try:
        found = json.loads(raw)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise Unreachable(f"{place} did not answer with JSON; is it defragd's API?")
    return found
