"""`defragd run`: one replica on a Kubernetes cluster, from the checks at the start to the drain at the end.

Order of the start: logs; policies; what can be told without changing anything (ports, server, custom resources,
rights); the API server for probes; certificates; caches; the gate keeper before everything else that acts; the webhook;
the lease; then the controllers. The end is the reverse: unready, no new work, lease given back, servers drained.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from defragd import __version__
from defragd.controllers.lane import PoolLane
from defragd.controllers.offload import ChildPlanner
from defragd.daemon.access import authorizer, missing_rights, placement_creator
from defragd.daemon.extras import build_extras
from defragd.daemon.live_settings import LiveSettings
from defragd.daemon.policies import Policies
from defragd.daemon.replica import Ports, Replica
from defragd.errors import ClusterError, ConfigError, Forbidden, PolicyError
from defragd.hami.config import HamiConfig
from defragd.hami.vendors import managed_resources, vendors_for
from defragd.kube.certs import CertKeeper, ServingPair, hosts_of_url, service_hosts
from defragd.kube.client import Client
from defragd.kube.cluster import KubeCluster, SystemClock
from defragd.kube.discovery import ServerVersion, read_installation, require_resources, server_version
from defragd.kube.events import KubeEvents
from defragd.kube.heartbeats import KubeHeartbeats
from defragd.kube.leader import AlwaysLeader, LeaderElector
from defragd.kube.translation import pod_being_created
from defragd.kube.webhook_config import CONDITIONS_SINCE
from defragd.obs.logging import configure, get_logger
from defragd.obs.metrics import Metrics
from defragd.obs.observer import Observer
from defragd.ports import Hook, Leadership
from defragd.settings import Settings, split_address
from defragd.web.app import create_app
from defragd.web.deps import deny_writes
from defragd.web.serve import Server
from defragd.web.webhook import create_webhook_app

SYNC_SECONDS = 60.0
CERT_SECONDS = 30.0
LEAVE_SECONDS = 3.0
"""After "unready": how long the endpoints may take to drop us before the servers stop."""
SERVICE = "gpu-descheduler-webhook"
WEBHOOK_THREADS = {"gate": 8, "pin": 32}
"""Pinning at admission, some answers wait for a moment, and the others must not wait for them."""


def run(settings: Settings, *, config: str | None = None, reread: Callable[[], Settings] | None = None) -> int:
    """Runs until SIGTERM or SIGINT; 0 after an orderly end. Raises DefragError (one line each) when it cannot start.

    ``reread`` reads the settings anew when the file ``config`` has changed (see `live_settings`).
    """
    json_lines = {"auto": None, "json": True, "console": False}[settings.log_format]
    configure(debug=settings.debug, json_lines=json_lines)
    metrics = Metrics()
    hook: Hook = Observer(get_logger(), metrics)
    hook("starting", {"version": __version__, "settings": settings.redacted()})
    stop = threading.Event()
    with _signals(stop), contextlib.ExitStack() as stack:
        live = LiveSettings(settings, path=config, reread=reread or (lambda: settings), hook=hook)
        daemon = _Daemon(settings, live, hook, metrics, stop, stack)
        daemon.start()
        stop.wait()
        hook("stopping", {})
        daemon.drain()
    hook("stopped", {})
    return 0


class _Daemon:
    """What is built, in the order in which it is built; ``stack`` undoes it when the start fails halfway."""

    def __init__(
        self,
        settings: Settings,
        live: LiveSettings,
        hook: Hook,
        metrics: Metrics,
        stop: threading.Event,
        stack: contextlib.ExitStack,
    ) -> None:
        self._live = live
        self._settings, self._hook, self._metrics, self._stop, self._stack = settings, hook, metrics, stop, stack
        self._identity = identity()
        self._draining = False
        self._webhook: Server | None = None
        self._stopped = False

    # -- start ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        settings, hook = self._settings, self._hook
        clock = SystemClock()
        self._policies = self._load_policies(clock)
        for address, what in ((settings.api.address, "api"), (settings.webhook.address, "webhook")):
            check_free(address, what)
        url = settings.webhook.url or ""
        hosts = (
            hosts_of_url(url) if url else service_hosts(os.environ.get("WEBHOOK_SERVICE", SERVICE), settings.namespace)
        )
        client = Client.from_kubeconfig(settings.kubeconfig, settings.context, hook=hook)
        self._stack.callback(client.close)
        version, config = self._look(client)
        mode = settings.webhook.mode
        if mode == "auto":
            mode = "gate" if version.gates else "pin"
        self._cluster = KubeCluster(client, namespace=settings.namespace, config=config, clock=clock, hook=hook)
        self._leadership = self._elector(client)
        self._cluster.lead(self._leadership)
        self._events = KubeEvents(client, identity=self._identity, hook=hook)
        self._beats = KubeHeartbeats(
            client, namespace=settings.namespace, identity=self._identity, hook=hook, pod=_own_pod()
        )
        self._certs = CertKeeper(
            client,
            namespace=settings.namespace,
            hosts=hosts,
            url=url,
            manage=settings.certificates.managed,
            match_conditions=(version.major, version.minor) >= CONDITIONS_SINCE,
            on_pair=self._swap,
            hook=hook,
        )
        self._replica = self._compose(client, clock, config, mode)
        self._extras = build_extras(
            client,
            self._cluster,
            settings.hami,
            leadership=self._leadership,
            clock=clock,
            hook=hook,
            vendors=vendors_for(config or HamiConfig()),
        )
        self._api = self._serve_api(client)
        self._begin(mode)

    def _begin(self, mode: str) -> None:
        """Everything that has threads, in the order in which it may act."""
        self._cluster.start()
        self._stack.callback(self._cluster.stop)
        self._events.start()
        self._beats.start()
        self._stack.callback(self._halt)
        self._certs.start()
        self._stack.callback(self._certs.stop)
        self._cluster.wait_synced(SYNC_SECONDS, self._stop)
        for kind, reason in self._cluster.unknown_kinds().items():
            self._hook("kind.unknown", {"kind": kind, "reason": reason, "level": "warning"})
        self._replica.start_keeper()
        self._serve_webhook()
        self._beats.set_serving(True)
        if isinstance(self._leadership, LeaderElector):
            self._leadership.start()
        self._replica.start()
        self._extras.start(self._replica.loops)
        self._hook("started", {"identity": self._identity, "api": self._api.url, "admission": mode})

    def _load_policies(self, clock: SystemClock) -> Policies:
        settings = self._settings
        policies = Policies(
            [Path(settings.policies)] if settings.policies else [],
            clock=clock,
            hook=self._hook,
            context=self._live.context,
            time_limit=settings.planner.time_limit.total_seconds(),
            on_policy=self._metrics.know_policy,
        )
        found = policies.load()
        if found.errors and not found.policies:
            # some good ones beside broken ones are worth running; nothing at all is a mistake in the installation
            raise PolicyError("\n".join(str(problem) for problem in found.errors))
        return policies

    def _look(self, client: Client) -> tuple[ServerVersion, HamiConfig | None]:
        """Reachable, new enough, our resources served, our rights granted; changes nothing."""
        version = server_version(client)
        if not version.supported:
            raise ClusterError(f"{client.server} is Kubernetes {version.text}; 1.24 or newer is needed")
        require_resources(client)
        missing = missing_rights(client, self._settings.namespace)
        if missing:
            raise Forbidden(
                f"our account on {client.server} may not {', '.join(missing)}; grant it as the chart's roles do"
            )
        hami = self._settings.hami
        config = read_installation(client, hami.namespace, hami.device_config_map)
        self._hook("cluster", {"server": client.server, "version": version.text, "hami_config": config is not None})
        return version, config

    def _elector(self, client: Client) -> Leadership:
        if not self._settings.leader_elect:
            return AlwaysLeader(self._identity)
        return LeaderElector(client, namespace=self._settings.namespace, identity=self._identity, hook=self._hook)

    def _compose(self, client: Client, clock: SystemClock, config: HamiConfig | None, mode: str) -> Replica:
        cluster, hami = self._cluster, config or HamiConfig()
        ports = Ports(
            reader=cluster,
            placements=cluster.placements,
            runs=cluster.runs,
            pods=cluster.pods,
            events=self._events,
            leadership=self._leadership,
            heartbeats=self._beats,
            clock=clock,
            seen=cluster.placements.seen,
            claims=cluster.placements,
            workloads=cluster.workloads,
            heartbeats_ready=self._beats.synced,
            watches=cluster.watches,
            certificate_expiry=self._certs.expiry,
        )
        return Replica(
            ports,
            policies=self._policies,
            planner=ChildPlanner(),
            hook=self._hook,
            vendors=vendors_for(hami),
            namespace=self._settings.namespace,
            untrusted=_remembered(self._untrusted, clock, 1.0),
            admission_mode=mode,
            resources=managed_resources(hami),
            max_age_seconds=self._settings.planner.max_data_age.total_seconds(),
            lanes=PoolLane,
            read_pod=partial(pod_being_created, config=hami),
        )

    def _untrusted(self) -> str:
        """Without our webhook a replacement comes ungated: nothing new begins, an eviction would be for nothing."""
        return "" if self._certs.ready() else "the API server does not trust our webhook (yet); see certs.trouble"

    # -- servers --------------------------------------------------------------------------------------------------

    def _serve_api(self, client: Client) -> Server:
        self._metrics.watch_cluster(lambda: self._extras.reading(self._replica.reading()))
        writes = self._settings.api.writes
        judge = authorizer(client, self._settings.namespace)
        deps = self._replica.api_deps(
            metrics=self._metrics,
            ready=self._ready_checks(),
            authorize=judge if writes else deny_writes,
            authorize_read=judge if self._settings.api.reads == "Authorized" else None,
            create_placement=placement_creator(client),
            writes_enabled=writes,
            settings=self._live.shown,
        )
        server = Server(create_app(deps), self._settings.api.address, name="api", hook=self._hook)
        server.start()
        self._stack.callback(server.stop, 1.0)
        return server

    def _ready_checks(self) -> Mapping[str, Any]:
        def webhook() -> str:
            return "" if self._webhook is not None and self._webhook.serving else "not listening yet"

        return {
            "draining": lambda: "the daemon is stopping" if self._draining else "",
            "webhook": webhook,
            "certificate": lambda: "" if self._certs.ready() else "not trusted by the API server yet",
        }

    def _serve_webhook(self) -> None:
        pair = self._certs.wait_pair(CERT_SECONDS)
        if self._stop.is_set():
            return
        if pair is None:
            raise ClusterError(
                f"no certificate for the webhook within {CERT_SECONDS:.0f} s; see the log lines certs.trouble"
            )
        app = create_webhook_app(self._replica.decide, self._hook)
        threads = WEBHOOK_THREADS[self._replica.admission.mode]
        address, both = self._settings.webhook.address, (pair.cert, pair.key)
        server = Server(app, address, name="webhook", tls=both, hook=self._hook, threads=threads)
        server.start()
        self._stack.callback(server.stop, 1.0)
        self._webhook = server
        newest = self._certs.pair()
        if newest is not None and newest != pair:
            self._swap(newest)

    def _swap(self, pair: ServingPair) -> None:
        if self._webhook is None:
            return
        try:
            self._webhook.reload(pair.cert, pair.key)
        except ConfigError as error:
            self._hook("certs.trouble", {"reason": str(error)})

    # -- end ------------------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Unready, wait for the endpoints, stop in order within the grace."""
        self._draining = True
        grace = self._settings.shutdown_grace.total_seconds()
        if "KUBERNETES_SERVICE_HOST" in os.environ:
            threading.Event().wait(min(LEAVE_SECONDS, grace / 4))
        stuck = self._replica.stop(max(1.0, grace - LEAVE_SECONDS))
        if stuck:
            self._hook("stop.slow", {"loops": stuck, "level": "warning"})
        self._halt()
        if self._webhook is not None:
            self._webhook.stop(drain=2.0)

    def _halt(self) -> None:
        """No thread of ours acts any more, the lease is free for a successor, nobody waits for our webhook's word."""
        if self._stopped:
            return
        self._stopped = True
        self._replica.stop(2.0)
        if isinstance(self._leadership, LeaderElector):
            self._leadership.stop()
        self._beats.set_serving(False)
        self._beats.stop()
        self._events.stop()


def _remembered(ask: Callable[[], str], clock: SystemClock, seconds: float) -> Callable[[], str]:
    """``ask``, asked at most once in that time (it reads certificates, and loops ask at every step)."""
    known: list[tuple[float, str]] = []

    def answer() -> str:
        now = clock.monotonic()
        if not known or now - known[0][0] > seconds:
            known[:] = [(now, ask())]
        return known[0][1]

    return answer


def _own_pod() -> tuple[str, str] | None:
    """(name, UID) where the chart tells them; None out of a cluster."""
    name, uid = os.environ.get("POD_NAME", ""), os.environ.get("POD_UID", "")
    return (name, uid) if name and uid else None


def identity() -> str:
    """Pod name (or host) and a random part: unique per process, also when a container restarts in its pod."""
    return f"{os.environ.get('POD_NAME') or socket.gethostname()}-{secrets.token_hex(3)}"


def check_free(address: str, what: str) -> None:
    """Raises ConfigError while nothing is built yet; binding itself may still fail later."""
    host, port = split_address(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ConfigError(
                f"{what} address {address}: {error.strerror or error}; choose another with --{what}-address"
            ) from error


@contextlib.contextmanager
def _signals(stop: threading.Event) -> Iterator[None]:
    """SIGTERM and SIGINT alike: the first stops in order, the second at once. At the very end they are ignored: what is
    left is the interpreter's own end, and the exit code is to tell of an orderly one."""

    def handler(number: int, _frame: object) -> None:
        if stop.is_set():
            os._exit(128 + number)
        stop.set()

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
