"""`defragd demo`: the whole daemon on the embedded simulated cluster, with a person watching.

The same controllers, planner, API and UI as on Kubernetes; only API server, kubelets and HAMi's scheduler are simulated
(and the webhook is called without HTTP). Time runs a little faster than the wall clock.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from defragd.controllers.offload import ChildPlanner
from defragd.core.plan import Score
from defragd.core.run import ENDED_RUNS, MoveState, Run, RunPhase
from defragd.core.score import score
from defragd.core.snapshot import Snapshot
from defragd.daemon.policies import Policies
from defragd.daemon.replica import Ports, Replica
from defragd.errors import ConfigError, DefragError
from defragd.hami.vendors import VENDORS
from defragd.obs.logging import configure, get_logger
from defragd.obs.metrics import Metrics
from defragd.obs.observer import Observer
from defragd.ports import Hook
from defragd.sim.access import SimAccess
from defragd.sim.clock import LiveClock
from defragd.sim.cluster import SimCluster
from defragd.sim.world import demo
from defragd.web.app import create_app
from defragd.web.deps import Denied, User, WriteRequest
from defragd.web.serve import Server

SPEED = 8.0
PUMP_SECONDS = 0.02
ADDRESS = "127.0.0.1:8083"
PLAN_SECONDS = 2.0
PATIENCE = 90.0
"""Seconds after which the demo gives up waiting for its run."""
POLICY = """\
apiVersion: defragd/v1
kind: DefragPolicy
metadata: {name: demo-consolidation}
spec:
  strategy: {name: best-fit}
  mode: Auto
  schedule: {cron: "*/5 * * * *", timeZone: UTC}
  trigger: {minFragmentation: 0.05}
  gain: {total: 0.01}
  budgets: {concurrent: 8, perSourceNode: 4, perWorkload: 1, spacing: 1s, rate: null}
  execution: {settle: 1s, cooldown: 1h}
"""


def run_demo(
    *,
    once: bool = False,
    address: str = "",
    speed: float = SPEED,
    debug: bool = False,
    out: TextIO | None = None,
) -> int:
    """Runs until interrupted, or with ``once`` until the first run has ended. Exit code 0 when every move was done."""
    say = _Teller(out or sys.stdout)
    configure(debug=debug, stream=sys.stderr)
    metrics = Metrics()
    observer: Hook = Observer(get_logger(), metrics) if debug else _counted(metrics)
    clock = LiveClock(speed)
    cluster = SimCluster(demo(clock.now()), clock=clock)
    access = SimAccess(cluster, identity="demo-0")
    with tempfile.TemporaryDirectory(prefix="defragd-demo-") as folder:
        path = Path(folder) / "demo-consolidation.yaml"
        path.write_text(POLICY, encoding="utf-8")
        policies = Policies([path], clock=clock, hook=observer, time_limit=PLAN_SECONDS)
        policies.load()
        replica = _replica(access, policies, observer)
        stop = threading.Event()
        with _signals(stop), _pump(cluster, stop):
            server = _serve(replica, metrics, address, say)
            replica.start_keeper()
            replica.start()
            try:
                code = _show(replica, cluster, say, stop)
                if not once and not stop.is_set():
                    say(
                        f"\nThe daemon goes on: UI {server.url}/, API {server.url}/api/v1/cluster-info. Ctrl-C ends it."
                        f"\nIts clock runs {speed:g} times as fast as yours, so its times are ahead."
                    )
                    stop.wait()
            finally:
                stop.set()
                replica.stop(5.0)
                server.stop(drain=1.0)
    return code


def sim_ports(access: SimAccess) -> Ports:
    """The simulated cluster as everything that a replica needs of the outside."""
    return Ports(
        reader=access,
        placements=access.placements,
        runs=access.runs,
        pods=access,
        workloads=access,
        events=access,
        leadership=access.leadership,
        heartbeats=access.heartbeats,
        clock=access.clock,
    )


def _replica(access: SimAccess, policies: Policies, hook: Hook) -> Replica:
    return Replica(
        sim_ports(access),
        policies=policies,
        planner=ChildPlanner(),
        hook=hook,
        vendors=VENDORS,
        namespace="kube-system",
        rescore_seconds=1.0,
        schedule_seconds=1.0,
    )


def _serve(replica: Replica, metrics: Metrics, address: str, say: _Teller) -> Server:
    """On the usual port, or on a free one when that is taken and nobody asked for it by name."""
    metrics.watch_cluster(replica.reading)
    deps = replica.api_deps(metrics=metrics, authorize=_anyone, writes_enabled=True, title="demo (simulated cluster)")
    app = create_app(deps)
    server = Server(app, address or ADDRESS, name="api")
    try:
        server.start()
    except ConfigError:
        if address:
            raise
        say(f"{ADDRESS} is taken, so another port is used.")
        server = Server(app, "127.0.0.1:0", name="api")
        server.start()
    say(f"defragd on a simulated cluster. UI {server.url}/  API {server.url}/api/v1/cluster-info\n")
    return server


def _anyone(_request: WriteRequest) -> User | Denied:
    return User("demo")


def _counted(metrics: Metrics) -> Hook:
    """Metrics, and no log between the lines that the demo prints."""

    class Silent:
        def __getattr__(self, _name: str) -> Callable[..., None]:
            return lambda *_args, **_fields: None

    return Observer(Silent(), metrics)


# -- what is shown --------------------------------------------------------------------------------------------------


def _show(replica: Replica, cluster: SimCluster, say: _Teller, stop: threading.Event) -> int:
    before = cluster.snapshot()
    first = score(before)
    say("BEFORE  " + _sentence(first))
    _devices(before, say)
    try:
        planned = replica.plan_now("demo-consolidation", User("demo"))
    except DefragError as error:
        say(f"error: {error}")
        return 1
    if not isinstance(planned, Run):
        say(f"error: {planned.reason}: {planned.detail}")
        return 1
    _plan(planned, say)
    run = _follow(replica, planned.name, say, stop)
    after = cluster.snapshot()
    last = score(after)
    say("\nAFTER   " + _sentence(last))
    _devices(after, say)
    kept = "every disruption budget was kept" if not cluster.overdrawn else f"OVERDRAWN: {cluster.overdrawn[0]}"
    say(
        f"\nRun {run.name}: {run.phase}, {run.message}. Fragmentation {first.loss:.3f} -> {last.loss:.3f}, "
        f"devices wholly free {first.idle_devices} -> {last.idle_devices}, {kept}."
    )
    if run.phase is RunPhase.COMPLETED and not stop.is_set():
        _again(replica, say)
    return 0 if run.phase is RunPhase.COMPLETED and all(m.state is MoveState.DONE for m in run.moves) else 1


def _again(replica: Replica, say: _Teller) -> None:
    """An unchanged cluster gives no moves."""
    with contextlib.suppress(DefragError):
        second = replica.plan_now("demo-consolidation", User("demo"))
        if isinstance(second, Run):
            what = f"{len(second.moves)} moves" if second.moves else f"no moves ({second.message})"
            say(f"Planned again on the consolidated cluster: {what}.")


def _sentence(found: Score) -> str:
    return f"fragmentation L = {found.loss:.3f}, {found.idle_devices} devices and {found.idle_nodes} nodes wholly free"


def _devices(snapshot: Snapshot, say: _Teller) -> None:
    """One line per node, one bar per device: eight steps of memory in use."""
    for node in snapshot.nodes.values():
        usage = snapshot.usage(node.name)
        bars = []
        for device in node.devices:
            used = usage[device.uuid].memory_mib / device.memory_mib if device.memory_mib else 0.0
            full = min(8, round(used * 8)) if used else 0
            bars.append(f"[{'#' * full}{'.' * (8 - full)}]")
        say(f"  {node.name:<8}{' '.join(bars)}")


def _plan(run: Run, say: _Teller) -> None:
    moves = run.plan.get("moves") or []
    say(f"\nPLAN    {run.name}: {run.message}")
    for move in moves:
        source, target = move["from"], move["to"]
        say(
            f"  {move['id']:<4} wave {move['wave']}  {move['pod']:<32} {_short(source)} -> {_short(target)}"
            f"   {move['why']}"
        )
    opted = [r for r in run.plan.get("refused") or () if r["reason"] == "OptedOut"]
    for item in opted:
        say(f"  stays       {item['object']:<32} {item['detail']}")
    say("")


def _short(place: Mapping[str, Any]) -> str:
    return ",".join(uuid.removeprefix("GPU-") for uuid in place["devices"])


def _follow(replica: Replica, name: str, say: _Teller, stop: threading.Event) -> Run:
    """Says every change of every move until the run has ended."""
    said: dict[str, str] = {}
    end = time.monotonic() + PATIENCE
    while True:
        run = replica.ports.runs.get(name)
        assert run is not None
        for placement in replica.ports.placements.list():
            if placement.labels.get("defragd.io/run") != name:
                continue
            move, phase = placement.labels.get("defragd.io/move", ""), str(placement.status.phase)
            if said.get(move) != phase and phase not in ("Pending", "Held"):
                said[move] = phase
                say(f"  {move:<4} {phase:<12} {placement.status.message}")
        if run.phase in ENDED_RUNS or stop.is_set() or time.monotonic() > end:
            return run
        stop.wait(0.05)


class _Teller:
    """Prints at once; a closed pipe ends nothing."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def __call__(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._out.write(text + "\n")
            self._out.flush()


# -- around it ------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _pump(cluster: SimCluster, stop: threading.Event) -> Iterator[None]:
    """Lets the simulated cluster go on with its clock."""

    def body() -> None:
        while not stop.wait(PUMP_SECONDS):
            cluster.pump()

    thread = threading.Thread(target=body, name="simulated-cluster", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(2.0)


@contextlib.contextmanager
def _signals(stop: threading.Event) -> Iterator[None]:
    """The first signal ends the demo in order, the second at once. Outside of the main thread nothing is changed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handler(number: int, _frame: object) -> None:
        if stop.is_set():
            raise SystemExit(128 + number)
        stop.set()

    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
