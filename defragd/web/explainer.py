"""`core.explain` behind the API: on the newest snapshot, by the rules of a loaded policy."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from typing import Any

from defragd.core.explain import Explainer
from defragd.core.rules import Rules
from defragd.core.vendor import Vendor
from defragd.errors import ConfigError
from defragd.policy.loaded import PolicySet
from defragd.ports import Clock, ClusterReader
from defragd.web.deps import Explain


def build_explain(
    reader: ClusterReader,
    policies: Callable[[], PolicySet],
    clock: Clock,
    *,
    vendors: Mapping[str, Vendor],
    draining: Collection[str] = ("gpu-drain", "node-drain"),
    history: Callable[[], Mapping[str, int]] = dict,
    last_moved: Callable[[], Mapping[str, datetime]] = dict,
) -> Explain:
    """An `Explain` for `ApiDeps`. ``draining`` names the strategies that empty places (their rules differ a little),
    ``history`` gives the moves of the last day per workload, ``last_moved`` when each was moved last."""

    def explain(kind: str, name: str, policy: str | None) -> Mapping[str, Any] | None:
        rules, drain = Rules(), False
        if policy:
            loaded = {item.name: item for item in policies().policies}
            if policy not in loaded:
                near = difflib.get_close_matches(policy, loaded, n=1)
                hint = f', did you mean "{near[0]}"?' if near else ""
                raise ConfigError(f'no policy "{policy[:120]}"{hint}')
            rules, drain = loaded[policy].rules, loaded[policy].strategy in draining
        explainer = Explainer(
            reader.snapshot(),
            rules,
            clock.now(),
            vendors=vendors,
            drain=drain,
            history=dict(history()),
            last_moved=dict(last_moved()),
        )
        found = {"pod": explainer.pod, "node": explainer.node, "device": explainer.device}[kind](name)
        return None if found is None else {**found, "policy": policy}

    return explain
