"""Policies in force: read from files, reloaded when their content changes; a broken edit keeps the last good version.

Also what the other parts need of a policy: a `Job` to plan it, the `Terms` under which one of its runs goes on (from
the run's own record: what was approved is what is carried out), and its view for the API.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from defragd.controllers.execution import Terms
from defragd.controllers.planning import Job
from defragd.core.breaker import open_breakers, told
from defragd.core.pdb import YES, Permit
from defragd.core.reasons import Reason
from defragd.core.rules import Rules
from defragd.core.run import Run
from defragd.policy.fields import to_camel
from defragd.policy.load import SUFFIXES, Context, Known, load_policies, load_text
from defragd.policy.loaded import LoadedPolicy, PolicySet
from defragd.policy.registry import strategies
from defragd.policy.schedule import Start, next_starts
from defragd.policy.yaml_source import Problem
from defragd.ports import Clock, Hook
from defragd.web.deps import PolicyView, StartView

POLL_SECONDS = 2.0
SHOWN_STARTS = 5
REST_SECONDS = 0.001


@dataclass(frozen=True, slots=True)
class Held:
    """A policy in force, and what is wrong with the newest edit of it ("" = nothing)."""

    policy: LoadedPolicy
    error: str = ""


class Policies:
    """Thread-safe; readers get whole sets."""

    def __init__(
        self,
        paths: Sequence[Path],
        *,
        clock: Clock,
        hook: Hook,
        context: Callable[[], Context] = Context,
        time_limit: float = 30.0,
        on_policy: Callable[[str], None] = lambda name: None,
    ) -> None:
        """``context`` is asked at every look: the installation's word may change while we run.
        ``on_policy`` hears the name of every policy that is read (metrics bound their labels by it).
        """
        self._paths = [Path(p) for p in paths]
        self._clock = clock
        self._hook = hook
        self._context_now = context
        self._context = Context()
        self._time_limit = time_limit
        self._on_policy = on_policy
        self._held: dict[str, Held] = {}
        self._strangers: tuple[Problem, ...] = ()
        """Errors of files that never were good."""
        self._digest = ""
        self._known: Known = {}
        self._terms: dict[str, Terms] = {}
        self._starts: dict[str, tuple[str, datetime, datetime, list[Start]]] = {}
        self._guard = threading.Lock()
        self.beat = clock.monotonic()

    # -- reading --------------------------------------------------------------------------------------------------

    def load(self) -> PolicySet:
        """Reads everything now. Returns what was read, so that a start with nothing but errors can be refused."""
        digest, context = self._fingerprint(), self._context_now()
        if context != self._context:
            self._known.clear()
            self._terms.clear()
        # A moment's rest after each policy leaves the interpreter to the webhook, which lives in the same process.
        rest = (lambda: time.sleep(REST_SECONDS)) if self._digest else (lambda: None)
        found = load_policies(self._paths, context, known=self._known, pause=rest)
        with self._guard:
            self._digest, self._context = digest, context
            self._take(found)
        self._hook(
            "policies.reloaded",
            {"result": "broken" if found.errors else "ok", "ok": not found.errors, "policies": len(found.policies)},
        )
        for policy in found.policies:
            self._on_policy(policy.name)
        for problem in found.errors:
            self._hook("policy.broken", {"reason": str(problem)})
        for problem in found.warnings:
            self._hook("policy.warning", {"reason": str(problem)})
        return found

    def reload_if_changed(self) -> bool:
        if self._fingerprint() == self._digest and self._context_now() == self._context:
            return False
        self.load()
        return True

    def run(self, stop: threading.Event) -> None:
        while not stop.wait(POLL_SECONDS):
            try:
                self.reload_if_changed()
            except Exception as error:  # noqa: BLE001 - the last good policies stay in force
                self._hook("loop.failed", {"loop": "policies", "error": f"{type(error).__name__}: {error}"})
            self.beat = self._clock.monotonic()

    def _take(self, found: PolicySet) -> None:
        new = {policy.name: Held(policy) for policy in found.policies}
        broken: dict[str, list[Problem]] = {}
        for problem in found.errors:
            broken.setdefault(problem.source, []).append(problem)
        for name, held in self._held.items():
            source = held.policy.source.rpartition(":")[0]
            if name not in new and source in broken:
                new[name] = Held(held.policy, "; ".join(str(p) for p in broken[source])[:1000])
        sources = {held.policy.source.rpartition(":")[0] for held in new.values() if held.error}
        self._strangers = tuple(p for p in found.errors if p.source not in sources)
        self._held = new

    def _fingerprint(self) -> str:
        """Of names and contents: a mounted ConfigMap changes by swapping a link, times tell nothing."""
        total = hashlib.sha256()
        for path in self._paths:
            try:
                files = sorted(p for p in path.iterdir() if p.suffix in SUFFIXES) if path.is_dir() else [path]
                for file in files:
                    total.update(str(file).encode() + b"\0" + file.read_bytes() + b"\0")
            except OSError as error:
                total.update(f"{path}: {error.errno}".encode())
        return total.hexdigest()

    # -- what others need -----------------------------------------------------------------------------------------

    def all(self) -> tuple[LoadedPolicy, ...]:
        """Policies in force, by name."""
        with self._guard:
            return tuple(self._held[name].policy for name in sorted(self._held))

    def get(self, name: str) -> LoadedPolicy | None:
        with self._guard:
            held = self._held.get(name)
        return held.policy if held else None

    def counts(self) -> Mapping[str, int]:
        with self._guard:
            broken = sum(1 for held in self._held.values() if held.error) + len({p.source for p in self._strangers})
            return {"ok": sum(1 for held in self._held.values() if not held.error), "broken": broken}

    def job(self, policy: LoadedPolicy) -> Job:
        return Job(
            name=policy.name,
            strategy=policy.strategy,
            args=policy.args,
            rules=policy.rules,
            mode=policy.mode,
            trigger=policy.trigger,
            settings={"policy": policy.document, "source": policy.source.rpartition(":")[0]},
            time_limit=self._time_limit,
            window=window_of(policy),
        )

    def terms(self, run: Run) -> Terms:
        """Of the run's own record. A record that cannot be read any more falls back to the live policy, then to the
        default rules, which are the careful ones. A policy or an installation turned to DryRun meanwhile holds it."""
        known = self._terms.get(run.name)
        if known is None:
            policy = self._recorded(run) or self.get(run.policy)
            known = terms_of(policy) if policy is not None else Terms(Rules(), timedelta(hours=2))
            known = replace(known, window=self._unless_dry(run, known.window))
            if len(self._terms) > 200:
                self._terms.clear()
            self._terms[run.name] = known
        return known

    def _unless_dry(self, run: Run, window: Callable[[datetime], Permit]) -> Callable[[datetime], Permit]:
        def judge(now: datetime) -> Permit:
            if run.mode not in self._context.caps.modes:
                text = f"the configuration of this installation does not allow mode {run.mode}"
                return Permit(False, Reason.PAUSED, text)
            live = self.get(run.policy)
            if run.mode != "DryRun" and live is not None and live.mode == "DryRun":
                return Permit(False, Reason.PAUSED, f"policy {run.policy} is in mode DryRun now")
            return window(now)

        return judge

    def _recorded(self, run: Run) -> LoadedPolicy | None:
        document = run.settings.get("policy")
        if not isinstance(document, Mapping):
            return None
        found = load_text(json.dumps(document), str(run.settings.get("source") or "<run>"), self._context)
        return found.policies[0] if found.policies else None

    def views(self, runs: Sequence[Run]) -> list[PolicyView]:
        """All policies for the API, good and broken."""
        with self._guard:
            held, strangers = dict(self._held), self._strangers
        now = self._clock.now()
        latest: dict[str, Run] = {}
        for run in runs:
            best = latest.get(run.policy)
            if best is None or (run.created or now) > (best.created or now):
                latest[run.policy] = run
        stopped = next((told(run) for run in open_breakers(runs, now).values()), "")
        views = []
        for name in sorted(held):
            policy = held[name].policy
            view = _view(held[name], latest.get(name), now, self._coming(policy, now))
            views.append(replace(view, waiting=view.waiting or (stopped if policy.mode != "DryRun" else "")))
        bad: dict[str, list[str]] = {}
        for problem in strangers:
            bad.setdefault(problem.source, []).append(str(problem))
        return views + [PolicyView(name=source, source=source, error="; ".join(e)) for source, e in bad.items()]

    def _coming(self, policy: LoadedPolicy, now: datetime) -> list[Start]:
        """The next starts, computed once until the first of them has passed: a page of a thousand policies is asked for
        again and again."""
        known = self._starts.get(policy.name)
        if known is None or known[0] != policy.digest or not known[1] <= now < known[2]:
            starts = next_starts(policy, now, SHOWN_STARTS)
            known = (policy.digest, now, starts[0].utc if starts else datetime.max.replace(tzinfo=UTC), starts)
            self._starts[policy.name] = known
        return known[3]


def window_of(policy: LoadedPolicy) -> Callable[[datetime], Permit]:
    """Whether a move may start at an instant: the windows allow it then, and still when it could have settled."""
    settle = policy.rules.execution.settle

    def window(now: datetime) -> Permit:
        verdict = policy.windows.check(now)
        if verdict.allowed and verdict.until is not None and verdict.until < now + settle:
            return Permit(False, Reason.OUTSIDE_WINDOW, f"the window closes at {verdict.until:%H:%M} UTC")
        return YES if verdict.allowed else Permit(False, Reason.OUTSIDE_WINDOW, verdict.reason)

    return window


def terms_of(policy: LoadedPolicy) -> Terms:
    """Under which a run of this policy goes on."""
    longest = [s.max_duration for s in policy.schedules]
    limit = None if not longest or None in longest else max(d for d in longest if d is not None)
    strategy = strategies().get(policy.strategy)
    return Terms(
        policy.rules,
        limit,
        bool(getattr(strategy, "drain", False)),
        policy.model.spec.execution.approval_expires,
        window_of(policy),
    )


def _as_written(value: Any) -> Any:
    """Arguments by the names that policy files use."""
    if isinstance(value, Mapping):
        return {to_camel(str(key)): _as_written(item) for key, item in value.items()}
    return [_as_written(item) for item in value] if isinstance(value, (list, tuple)) else value


def _view(held: Held, latest: Run | None, now: datetime, coming: Sequence[Start]) -> PolicyView:
    policy = held.policy
    spec: dict[str, Any] = policy.document.get("spec", {})
    first = policy.schedules[0] if policy.schedules else None
    starts = [StartView(start.utc, start.local.isoformat(), start.allowed, start.reason) for start in coming]
    view = PolicyView(
        name=policy.name,
        source=policy.source,
        digest=policy.digest,
        strategy=policy.strategy,
        args=_as_written(policy.args),
        mode=policy.mode,
        schedule="; ".join(s.cron.text for s in policy.schedules),
        time_zone=first.cron.zone.key if first else "",
        next_starts=starts,
        error=held.error,
        spec=spec,
        waiting="suspended" if policy.suspended else policy.windows.check(now).reason,
    )
    if latest is not None:
        view = replace(view, last_start=latest.scheduled_for or latest.created, last_run=latest.name)
    return view
