"""What `defragd doctor` looks at: each check is a question to the cluster and an answer with its mend.

A check never raises: what cannot be seen is ``unknown`` with the reason, so that one missing right hides nothing else.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from defragd.errors import DefragError, Forbidden, MissingResource, Unreachable

if TYPE_CHECKING:
    from defragd.core.snapshot import Snapshot
    from defragd.kube.client import Client

OK, WARN, FAIL, UNKNOWN = "ok", "warn", "fail", "unknown"
SKEW = timedelta(seconds=5)
SOON = timedelta(days=14)
DEFAULT_QPS = 5.0
HOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"


@dataclass(frozen=True, slots=True)
class Finding:
    check: str
    status: str
    detail: str
    mend: str = ""


@dataclass(frozen=True, slots=True)
class Patient:
    """Where to look."""

    client: Client
    namespace: str = "kube-system"
    account: str = "gpu-descheduler"
    hami_namespace: str = "kube-system"
    hami_metrics: str = ""


Check = Callable[[Patient], Iterator[Finding]]


def examine(patient: Patient, names: Iterable[str] = ()) -> list[Finding]:
    """Every check in turn, or those of these names. A server that does not answer ends it: the rest says the same."""
    found: list[Finding] = []
    for name, check in ((name, CHECKS[name]) for name in names or CHECKS):
        try:
            found += [Finding(name, f.status, f.detail, f.mend) for f in check(patient)]
        except Forbidden as error:
            found.append(Finding(name, UNKNOWN, str(error), "look with an account that may"))
        except Unreachable as error:
            found.append(Finding(name, FAIL, str(error), "check --kubeconfig, --context, network and proxy"))
            break
        except DefragError as error:
            found.append(Finding(name, FAIL if name == "server" else UNKNOWN, str(error)))
    return found


def _say(status: str, detail: str, mend: str = "") -> Finding:
    return Finding("", status, detail, mend)


def server(patient: Patient) -> Iterator[Finding]:
    """Reachable and new enough."""
    from defragd.kube.discovery import server_version

    version = server_version(patient.client)
    if not version.supported:
        yield _say(FAIL, f"Kubernetes {version.text}", "1.24 or newer is needed")
    elif not version.gates:
        yield _say(
            WARN, f"Kubernetes {version.text}: no scheduling gates, pods are pinned at admission", "use 1.27 or newer"
        )
    else:
        yield _say(OK, f"Kubernetes {version.text}")


def clock(patient: Patient) -> Iterator[Finding]:
    """Leases and windows go by the clock."""
    answer = patient.client.get("/version")
    header = answer.headers.get("Date") or answer.headers.get("date")
    if not header:
        yield _say(UNKNOWN, "the API server sends no Date")
        return
    skew = abs(datetime.now(UTC) - parsedate_to_datetime(header))
    if skew > SKEW:
        yield _say(
            WARN, f"this machine and the API server differ by {skew.total_seconds():.0f} s", "synchronise the clocks"
        )
    else:
        yield _say(OK, "this machine and the API server agree")


def crds(patient: Patient) -> Iterator[Finding]:
    """Our resources are served."""
    from defragd.kube.discovery import require_resources

    try:
        require_resources(patient.client)
    except MissingResource as error:
        yield _say(FAIL, str(error), "kubectl apply -f crds/, or the chart with crds.enabled=true")
    else:
        yield _say(OK, "hamipodplacements and defragruns are served")


def rights(patient: Patient) -> Iterator[Finding]:
    """Of the daemon's account; of the one who asks where nobody else may be asked about."""
    from defragd.daemon.access import needed
    from defragd.kube.authz import Caller, Reviews

    reviews = Reviews(patient.client)
    name = f"system:serviceaccount:{patient.namespace}:{patient.account}"
    groups = ("system:serviceaccounts", f"system:serviceaccounts:{patient.namespace}", "system:authenticated")
    wanted = needed(patient.namespace)
    whose = f"ServiceAccount {patient.namespace}/{patient.account}"
    try:
        missing = [str(access) for access in wanted if not reviews.may(Caller(name, groups), access)]
    except Forbidden:
        whose = "your own account (that of the daemon may not be asked about)"
        missing = [str(access) for access in wanted if not reviews.myself(access)]
    if missing:
        yield _say(FAIL, f"{whose} may not {', '.join(missing)}", "install the chart with rbac.create=true")
    else:
        yield _say(OK, f"{whose} has what moves need")


def daemon(patient: Patient) -> Iterator[Finding]:
    """Replicas alive by their leases, one of them leads."""
    path = f"/apis/coordination.k8s.io/v1/namespaces/{patient.namespace}/leases"
    leases = {item["metadata"]["name"]: item.get("spec") or {} for item in patient.client.get_json(path)["items"]}
    now = datetime.now(UTC)
    beats = [spec for name, spec in leases.items() if name.startswith("gpu-descheduler-") and _alive(spec, now)]
    leader = leases.get("gpu-descheduler") or {}
    if not beats:
        yield _say(FAIL, "no replica runs", f"kubectl -n {patient.namespace} get pods -l app=gpu-descheduler-webhook")
        return
    if not _alive(leader, now) or not leader.get("holderIdentity"):
        yield _say(
            FAIL, f"{len(beats)} replicas run and none leads", "see their logs; rights on leases are the usual cause"
        )
    elif len(beats) == 1:
        yield _say(WARN, "one replica runs: while it is away, gated pods wait", "set replicaCount to 2 or more")
    else:
        yield _say(OK, f"{len(beats)} replicas run, {leader['holderIdentity']} leads")
    ahead = [spec for spec in beats if (_time(spec.get("renewTime")) or now) > now + SKEW]
    if ahead:
        yield _say(
            WARN, f"{len(ahead)} replicas are ahead of this machine's clock", "synchronise the clocks of the nodes"
        )


def webhook(patient: Patient) -> Iterator[Finding]:
    """Registered, trusted, answered by somebody, after HAMi's."""
    from defragd.kube.webhook_config import NAME

    configs = {item["metadata"]["name"]: item for item in patient.client.get_json(HOOKS)["items"]}
    if NAME not in configs:
        yield _say(FAIL, f"MutatingWebhookConfiguration {NAME} is missing", "install the chart")
        return
    hook = (configs[NAME].get("webhooks") or [{}])[0]
    client = hook.get("clientConfig") or {}
    if hook.get("failurePolicy") != "Ignore":
        yield _say(
            FAIL, "its failurePolicy is not Ignore: a fault of ours would block pods", "helm upgrade puts it right"
        )
    if not client.get("caBundle"):
        yield _say(
            FAIL, "it has no caBundle: the API server cannot call it", "see the daemon's log lines certs.trouble"
        )
    else:
        yield from _certificates(client["caBundle"])
    service = client.get("service")
    if service:
        yield from _endpoints(patient, str(service["namespace"]), str(service["name"]))
    after = [name for name in configs if "hami" in name and name != NAME and name > NAME]
    if after:
        yield _say(WARN, f"{', '.join(sorted(after))} comes after ours: pods may change once we have decided")


def _certificates(bundle: str) -> Iterator[Finding]:
    from defragd.kube import pki

    try:
        ends = [pki.expires(pem) for pem in pki.split_bundle(base64.b64decode(bundle))]
    except ValueError:
        ends = []
    if not ends:
        yield _say(FAIL, "its caBundle is unreadable", "delete the Secret gpu-descheduler-webhook-tls: it is made anew")
        return
    left = max(ends) - datetime.now(UTC)
    if left < timedelta(0):
        yield _say(FAIL, "every authority in its caBundle has expired", "see the daemon's log lines certs.trouble")
    elif left < SOON:
        yield _say(WARN, f"its authority expires in {left.days} days", "it should have been renewed; see certs.trouble")
    else:
        yield _say(OK, f"trusted, for {left.days} days")


def _endpoints(patient: Patient, namespace: str, name: str) -> Iterator[Finding]:
    path = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
    query = {"labelSelector": f"kubernetes.io/service-name={name}"}
    slices = patient.client.get_json(path, query)["items"]
    ready = sum(
        len(point.get("addresses") or ())
        for item in slices
        for point in item.get("endpoints") or ()
        if (point.get("conditions") or {}).get("ready", True)
    )
    if ready:
        yield _say(OK, f"Service {namespace}/{name} has {ready} ready addresses")
    else:
        yield _say(FAIL, f"Service {namespace}/{name} has no ready address", "see /readyz?verbose of the pods")


def hami(patient: Patient) -> Iterator[Finding]:
    """Which version, and how fast it may talk to the API server."""
    from defragd.hami.version import guess_version, scheduler_image, shortcomings

    found = patient.client.get_json(f"/apis/apps/v1/namespaces/{patient.hami_namespace}/deployments")["items"]
    image, schedulers = "", []
    for item in found:
        containers = item["spec"]["template"]["spec"].get("containers") or ()
        if "hami" in item["metadata"]["name"] and any("scheduler" in c.get("name", "") for c in containers):
            schedulers.append(item)
            image = image or scheduler_image(item)
    nodes = patient.client.get_json("/api/v1/nodes")["items"]
    version = guess_version((n["metadata"].get("annotations") or {} for n in nodes), (), image)
    registered = [
        n for n in nodes if any("node-" in k and k.endswith("register") for k in n["metadata"].get("annotations") or ())
    ]
    if not registered:
        yield _say(FAIL, "no node has registered devices", "is HAMi's device plug-in running on the GPU nodes?")
    short = shortcomings(version)
    if short:
        yield _say(WARN, f"HAMi {version}: {'; '.join(short)}", "upgrade HAMi to 2.10 or newer")
    elif registered:
        yield _say(OK, f"HAMi {version or 'of unknown version'}, {len(registered)} nodes with devices")
    if not schedulers:
        yield _say(
            UNKNOWN, f"no HAMi scheduler Deployment in {patient.hami_namespace}", "name it with --hami-namespace"
        )
        return
    yield _speed(schedulers[0])


def _speed(deployment: dict[str, Any]) -> Finding:
    """HAMi's client is limited to 5 requests/s unless told otherwise; a placement costs it about eight."""
    words = [
        str(word)
        for c in deployment["spec"]["template"]["spec"].get("containers") or ()
        for word in (*(c.get("command") or ()), *(c.get("args") or ()))
    ]
    text = " ".join(words)
    match = re.search(r"--kube-qps[= ]([0-9.]+)", text)
    rate = float(match[1]) if match else DEFAULT_QPS
    if rate <= DEFAULT_QPS:
        where = "at its default of 5" if match is None else f"at {rate:g}"
        return _say(
            WARN,
            f"its client is limited {where} requests/s: every move waits a second or more for it",
            "add --kube-qps=50 --kube-burst=100 to the arguments of HAMi's scheduler (scheduler.extender.extraArgs)",
        )
    return _say(OK, f"its client may send {rate:g} requests/s")


def budgets(patient: Patient) -> Iterator[Finding]:
    """How many of the pods that could be moved a PodDisruptionBudget covers."""
    from defragd.core.pdb import Ledger
    from defragd.core.reasons import Reason

    snapshot = _snapshot(patient)
    ledger = Ledger.of(snapshot)
    pods = [pod for pod in snapshot.pods.values() if pod.requests and pod.live]
    covered = [pod for pod in pods if ledger.covers(pod)]
    several = [pod for pod in covered if ledger.may_evict(pod).reason is Reason.SEVERAL_PDBS]
    if several:
        shown = ", ".join(pod.key for pod in several[:3])
        yield _say(
            WARN, f"{len(several)} pods have several budgets and can never be evicted ({shown})", "leave one each"
        )
    text = f"{len(covered)} of {len(pods)} pods with devices are covered by a budget"
    if pods and len(covered) * 2 < len(pods):
        yield _say(WARN, text, "without one only our own floor protects a workload: never all replicas at once")
    else:
        yield _say(OK, text)


def books(patient: Patient) -> Iterator[Finding]:
    """What HAMi wrote is readable and free of contradictions."""
    snapshot = _snapshot(patient)
    yield from _metrics(patient, snapshot)
    if not snapshot.problems:
        yield _say(OK, f"the books of {len(snapshot.devices)} devices and {len(snapshot.pods)} pods are sound")
        return
    for problem in snapshot.problems[:5]:
        yield _say(WARN, f"{problem.object}: {problem.detail}", "nothing is moved from or to it until it is mended")
    if len(snapshot.problems) > 5:
        yield _say(WARN, f"{len(snapshot.problems) - 5} more objects; /api/v1/cluster-info lists them")


def _metrics(patient: Patient, snapshot: Snapshot) -> Iterator[Finding]:
    """What HAMi's scheduler says of its own books, against the pods' annotations."""
    from defragd.hami.scheduler_books import BookCheck
    from defragd.obs.hami_metrics import read

    if not patient.hami_metrics:
        yield _say(OK, "HAMi's own metrics were not asked; --hami-metrics URL does (port 9395 of its scheduler)")
        return
    try:
        page = read(patient.hami_metrics)
    except DefragError as error:
        yield _say(WARN, str(error), "without them the books are not cross-checked")
        return
    check = BookCheck(grace=timedelta(0))
    doubts = check.look(snapshot, page, datetime.now(UTC))
    if not page.entries:
        yield _say(WARN, "HAMi's metrics show no device", "ask the replica of its scheduler that leads")
    elif not doubts:
        yield _say(OK, f"HAMi's metrics agree with the pods' annotations on {check.compared} devices")
    for (node, device), why in sorted(doubts.items())[:5]:
        yield _say(WARN, f"{device} on {node}: {why}", "look again in half a minute: HAMi's metrics lag by 15 s")
    if len(doubts) > 5:
        yield _say(WARN, f"the books of {len(doubts) - 5} more devices differ from HAMi's metrics")


@lru_cache(maxsize=1)
def _snapshot(patient: Patient) -> Snapshot:
    from defragd.hami.config import HamiConfig
    from defragd.kube.cluster import read_snapshot
    from defragd.kube.discovery import read_device_config

    config = read_device_config(patient.client, patient.hami_namespace, "hami-scheduler-device")
    return read_snapshot(patient.client, config=config or HamiConfig())


def gates(patient: Patient) -> Iterator[Finding]:
    """Pods that wait behind our gate for longer than any deadline."""
    from defragd.core.gating import gated

    waiting = gated(_snapshot(patient).pods.values())
    if not waiting:
        yield _say(OK, "no pod waits behind the scheduling gate")
        return
    names: Sequence[str] = [pod.key for pod in waiting][:5]
    yield _say(
        WARN, f"{len(waiting)} pods wait behind the gate: {', '.join(names)}", "minutes at most while a replica runs"
    )


def _alive(spec: dict[str, Any], now: datetime) -> bool:
    renewed = _time(spec.get("renewTime"))
    held = bool(spec.get("holderIdentity"))  # one that ended in order empties its lease
    return (
        held
        and renewed is not None
        and now - renewed < timedelta(seconds=2 * int(spec.get("leaseDurationSeconds") or 15))
    )


def _time(text: Any) -> datetime | None:
    try:
        return datetime.fromisoformat(str(text)) if text else None
    except ValueError:
        return None


CHECKS: dict[str, Check] = {
    "server": server,
    "clock": clock,
    "crds": crds,
    "rights": rights,
    "daemon": daemon,
    "webhook": webhook,
    "hami": hami,
    "budgets": budgets,
    "books": books,
    "gates": gates,
}
