"""Loaded policies as views for API and UI: next starts, last start, last error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from defragd.core.run import Run
from defragd.policy.loaded import LoadedPolicy, PolicySet
from defragd.policy.schedule import next_starts
from defragd.web.deps import PolicyView, StartView


def policy_views(
    policies: PolicySet,
    *,
    now: datetime,
    runs: Sequence[Run] = (),
    waiting: Mapping[str, str] | None = None,
    starts: int = 5,
) -> list[PolicyView]:
    """Views of the policies in force and of what is wrong with the newest edit.

    An error belongs to the policy whose file it is in; errors of files that give no policy become views of their own.
    ``waiting`` says by name why a policy does not run now.
    """  # fmt: skip
    errors: dict[str, list[str]] = {}
    for problem in policies.errors:
        errors.setdefault(problem.source, []).append(str(problem))
    newest = _newest(runs)
    views = []
    for policy in policies.policies:
        file = policy.source.rpartition(":")[0] or policy.source
        text = "; ".join(errors.get(file, ()))
        views.append(_view(policy, now, newest.get(policy.name), (waiting or {}).get(policy.name, ""), text, starts))
    used = {policy.source.rpartition(":")[0] or policy.source for policy in policies.policies}
    views += [PolicyView(name=file, source=file, error="; ".join(e)) for file, e in errors.items() if file not in used]
    return views


def _newest(runs: Sequence[Run]) -> dict[str, Run]:
    found: dict[str, Run] = {}
    for run in runs:
        old = found.get(run.policy)
        if run.created and (old is None or not old.created or run.created > old.created):
            found[run.policy] = run
    return found


def _view(policy: LoadedPolicy, now: datetime, last: Run | None, waiting: str, error: str, count: int) -> PolicyView:
    coming = next_starts(policy, now, count)
    return PolicyView(
        name=policy.name,
        source=policy.source,
        digest=policy.digest,
        strategy=policy.strategy,
        args=policy.args,
        mode=policy.mode,
        schedule="; ".join(schedule.cron.text for schedule in policy.schedules),
        time_zone=", ".join(dict.fromkeys(str(schedule.cron.zone) for schedule in policy.schedules)),
        next_starts=[StartView(s.utc, s.local.isoformat(), s.allowed, s.reason) for s in coming],
        last_start=last.created if last else None,
        last_run=last.name if last else "",
        waiting="the policy is suspended" if policy.suspended else waiting,
        error=error,
        spec=policy.document.get("spec", {}),
    )
