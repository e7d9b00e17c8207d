"""`defragd explain pod|node|device`: why (not) movable, drainable, a target."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

import click

from defragd.cli import sources
from defragd.cli.printers import Table, emit, output_option
from defragd.errors import ConfigError

if TYPE_CHECKING:
    from defragd.core.explain import Explainer

F = TypeVar("F", bound=Callable[..., Any])


@click.group("explain", short_help="Why (not) movable, drainable, a target.")
def command() -> None:
    """Say why a pod may (not) move, a node or device can (not) be emptied or receive."""


def _options(function: F) -> F:
    options = [
        click.option("--policy", metavar="FILE|NAME", help="Judge by this policy; default a policy that says nothing."),
        sources.policies_option,
        sources.cluster_options(metrics=True),
        sources.now_option,
        output_option("table", "wide", "json", "yaml"),
    ]
    for option in reversed(options):
        function = option(function)
    return function


@command.command("pod")
@click.argument("name", metavar="NS/NAME")
@click.option("-n", "--namespace", metavar="NS", help="Namespace, when NAME has none.")
@_options
def pod(name: str, namespace: str | None, output: str, **where: Any) -> None:
    """Whether a pod may be moved, the main reason if not, and where it could go."""
    given, _, rest = name.rpartition("/")
    if given and namespace and given != namespace:
        raise ConfigError(f"{name}: -n says {namespace}; give one of the two")
    key = f"{given or namespace or 'default'}/{rest}"
    explainer = _explainer(**where)
    found = explainer.pod(key)
    if found is None:
        raise ConfigError(f"pod {key} not found{_near(key, explainer.snapshot.pods)}")
    emit(found, output, text=lambda wide: _pod_text(found, wide=wide))


@command.command("node")
@click.argument("name")
@_options
def node(name: str, output: str, **where: Any) -> None:
    """Whether a node can be emptied, what stands in the way, and whether it can receive."""
    explainer = _explainer(**where)
    found = explainer.node(name)
    if found is None:
        raise ConfigError(f"node {name} not found{_near(name, explainer.snapshot.nodes)}")
    emit(found, output, text=lambda wide: _place_text(found, wide=wide))


@command.command("device")
@click.argument("name", metavar="UUID|NODE/gpu-I")
@_options
def device(name: str, output: str, **where: Any) -> None:
    """Whether a device can be emptied, what stands in the way, and whether it can receive."""
    explainer = _explainer(**where)
    found = explainer.device(name)
    if found is None:
        raise ConfigError(f"device {name} not found{_near(name, explainer.snapshot.devices)}")
    emit(found, output, text=lambda wide: _place_text(found, wide=wide))


def _explainer(
    policy: str | None,
    policies: tuple[str, ...],
    snapshot: str | None,
    kubeconfig: str | None,
    context: str | None,
    hami_namespace: str,
    hami_config: str | None,
    hami_metrics: str | None,
    now: datetime | None,
) -> Explainer:
    from defragd.core.explain import Explainer
    from defragd.core.rules import Rules
    from defragd.hami.vendors import VENDORS

    rules, drain = Rules(), False
    if policy is not None:
        from defragd.policy.registry import strategies

        loaded, _ = sources.find_policy(policy, policies)
        rules = loaded.rules
        drain = bool(getattr(strategies().get(loaded.strategy), "drain", False))
    world = sources.read_cluster(snapshot, kubeconfig, context, hami_namespace, hami_config, hami_metrics)
    return Explainer(world, rules, sources.present(now, world), vendors=VENDORS, drain=drain)


def _near(name: str, names: Mapping[str, Any]) -> str:
    import difflib

    found = difflib.get_close_matches(name, names, n=1, cutoff=0.6) if len(names) < 20_000 else []
    return f', did you mean "{found[0]}"?' if found else ""


def _verdict(item: Mapping[str, Any]) -> str:
    words = {"movable": "may move", "never": "never", "notNow": "not now", "noPlace": "no place"}
    text: str = words.get(item["verdict"], item["verdict"])
    if item.get("reason"):
        text += f": {item['reason']}"
    if item.get("detail"):
        text += f" ({item['detail']})"
    if item.get("until"):
        text += f", ask again at {item['until']}"
    return text


def _pod_text(found: Mapping[str, Any], *, wide: bool) -> str:
    targets = found["targets"]
    lines = [
        f"Pod:       {found['name']}",
        f"Workload:  {found['workload']}",
        f"On:        {found['node'] or '<none>'} {','.join(found['devices'])}".rstrip(),
        f"Verdict:   {_verdict(found)}",
        f"PDBs:      {', '.join(found['budgets']) or '<none>'}",
        f"Places:    {targets['nodes']} node{'' if targets['nodes'] == 1 else 's'} could take it now",
    ]
    lines += [f"           {place['node']}/{','.join(place['devices'])}" for place in targets["examples"]]
    if targets["text"]:
        lines.append(f"Refused:   {targets['text']}")
    return "\n".join(lines)


def _place_text(found: Mapping[str, Any], *, wide: bool) -> str:
    target = found["asTarget"]
    receive = "yes" if target["ok"] else f"no: {target['reason']} ({target['detail']})"
    lines = [
        f"{found['kind'].capitalize() + ':':<11}{found['name']}",
        f"{'Empty it:':<11}{found['verdict']} ({found['detail']})",
        f"{'Receive:':<11}{receive}",
    ]
    if found["pods"]:
        table = Table(["POD", "VERDICT"], [[item["name"], _verdict(item)] for item in found["pods"]])
        lines += ["", table.render()]
    if found["kind"] == "node" and (wide or not found["pods"]):
        rows: list[Sequence[Any]] = [
            [
                f"gpu-{d['index']}",
                d["uuid"],
                *(f"{d[k]['used']}/{d[k]['total']}" for k in ("slots", "memoryMiB", "cores")),
                "unhealthy" if not d["healthy"] else "cordoned" if d["cordoned"] else d["distrusted"] or "ok",
            ]
            for d in found["devices"]
        ]
        lines += ["", Table(["DEVICE", "UUID", "SLOTS", "MEMORY-MIB", "CORES", "STATE"], rows).render()]
    return "\n".join(lines)
