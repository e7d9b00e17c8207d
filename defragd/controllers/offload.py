"""Planning in a child process: the webhook's process never computes, and a plan that hangs can be killed.

The request travels by pickle, the child looks up strategies by itself (plug-ins need not be picklable), stops by its
own clock and answers with the best plan so far. A child that overruns is killed, one that dies is reported; neither
takes the daemon down. Start-up costs about 0.4 s, which nobody waits for (ecosystem notes, section 4.4).
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

from defragd.core.plan import PlanReply, PlanRequest
from defragd.errors import DefragError

GRACE = 5.0
"""Seconds after the time limit in which the child has to hand over what it has, before it is killed."""
START_UP = 30.0
"""Seconds the child may take to start (imports on a busy machine) before its own clock begins."""

PRELOAD = ("defragd.core.planner", "defragd.policy.registry", "defragd.strategies.best_fit")


class PlanFailed(DefragError):
    """No plan came back: the child crashed, was killed, or its strategy raised. The message is one line."""


def default_strategies() -> Mapping[str, Any]:
    """Strategies by name as the registry of this installation knows them (imported late: plug-ins are heavy)."""
    from defragd.policy.registry import strategies

    return strategies()


def plan_here(
    request: PlanRequest, *, time_limit: float, strategies: Callable[[], Mapping[str, Any]] = default_strategies
) -> PlanReply:
    """Plan in this process with this process's clock (the child does this; so does the command line)."""
    from defragd.core.planner import plan

    began = time.monotonic()
    reply = plan(request, strategies=strategies(), should_stop=lambda: time.monotonic() - began > time_limit)
    return replace(reply, elapsed_seconds=time.monotonic() - began)


def _serve(pipe: Connection, strategies: Callable[[], Mapping[str, Any]]) -> None:
    """Body of the child: one request in, one answer out. ``("ready",)`` is sent first, when imports are done."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(5)
    import defragd.core.planner  # noqa: F401 - imported before the clock starts

    pipe.send(("ready",))
    try:
        request, time_limit = pickle.loads(pipe.recv_bytes())
        answer: tuple[Any, ...] = ("plan", plan_here(request, time_limit=time_limit, strategies=strategies))
    except EOFError:
        return
    except Exception as error:  # noqa: BLE001 - whatever a strategy raises is an answer, not a crash
        answer = ("failed", f"{type(error).__name__}: {error}")
    pipe.send(answer)


class ChildPlanner:
    """`ports.PlannerRunner` on one process per plan. Several threads may use one (each call has its own child)."""

    def __init__(
        self, *, strategies: Callable[[], Mapping[str, Any]] = default_strategies, method: str = "forkserver"
    ) -> None:
        """``strategies``: a module-level function (it is named, not sent, to the child)."""
        self._context = multiprocessing.get_context(method)
        if method == "forkserver":
            # imported once in the server, so that a child starts in a moment; plug-ins are looked up per plan
            self._context.set_forkserver_preload(list(PRELOAD))
        self._strategies = strategies

    def run(self, request: PlanRequest, *, time_limit: float) -> PlanReply:
        """The plan, or `PlanFailed`. Takes at most ``time_limit`` plus start-up and `GRACE`."""
        ours, theirs = self._context.Pipe()
        child = self._context.Process(  # type: ignore[attr-defined]
            target=_serve, args=(theirs, self._strategies), name="defragd-planner", daemon=True
        )
        child.start()
        theirs.close()
        try:
            self._answer(ours, START_UP, "did not start")
            ours.send_bytes(pickle.dumps((request, time_limit), protocol=pickle.HIGHEST_PROTOCOL))
            kind, value = self._answer(ours, time_limit + GRACE, f"did not stop after its {time_limit:g} s")
        except (EOFError, OSError) as error:
            child.join(GRACE)
            raise PlanFailed(f"the planner's process ended with exit code {child.exitcode}") from error
        finally:
            ours.close()
            child.join(0.5)
            if child.is_alive():
                child.kill()
                child.join()
            child.close()
        if kind == "failed":
            raise PlanFailed(f"strategy {request.strategy} failed: {value}")
        assert isinstance(value, PlanReply)
        return value

    @staticmethod
    def _answer(pipe: Connection, seconds: float, what: str) -> tuple[Any, ...]:
        if not pipe.poll(seconds):
            raise PlanFailed(f"the planner's process {what} and was killed")
        answer: tuple[Any, ...] = pipe.recv()
        return answer
