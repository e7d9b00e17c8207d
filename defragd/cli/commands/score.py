"""`defragd score`: how fragmented cluster, pools, nodes and devices are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from defragd.cli import sources
from defragd.cli.printers import Table, emit, no_headers_option, output_option, warn, warn_refusals

if TYPE_CHECKING:
    from defragd.core.model import Node
    from defragd.core.snapshot import Snapshot

LEVELS = ("cluster", "pool", "node", "device")


@click.command("score", short_help="Fragmentation of cluster, pools, nodes, devices.")
@sources.cluster_options(metrics=True)
@click.option("--level", type=click.Choice(LEVELS), help="Print this level only; default cluster and pools.")
@click.option("--pool-label", metavar="KEY", help="Node label that names the pool; default the type of the devices.")
@output_option("table", "wide", "json", "yaml", "name")
@no_headers_option
def command(
    snapshot: str | None,
    kubeconfig: str | None,
    context: str | None,
    hami_namespace: str,
    hami_config: str | None,
    hami_metrics: str | None,
    level: str | None,
    pool_label: str | None,
    output: str,
    no_headers: bool,
) -> None:
    """Fragmentation L (room for the usual requests that is lost to splinters) and phi, idle devices and nodes.

    L and phi are between 0 (nothing lost) and 1; nodes and devices show what is free and the largest hole.
    """
    world = sources.read_cluster(snapshot, kubeconfig, context, hami_namespace, hami_config, hami_metrics)
    value = compute(world, pool_label)
    if not world.devices:
        warn(["nothing to score: no node has a device that HAMi registered (annotation hami.io/node-...register...)"])
    warn_refusals([{"object": p.object, "reason": p.reason, "detail": p.detail} for p in world.problems])
    levels = (level,) if level else ("cluster", "pool", "node") if output == "wide" else ("cluster", "pool")

    def text(wide: bool) -> str:
        return "\n\n".join(_table(value, name).render(wide=wide, headers=not no_headers) for name in levels)

    names = [f"node/{node['name']}" for node in value["nodes"]]
    emit(value, output, text=text, names=names)


def compute(world: Snapshot, pool_label: str | None = None) -> dict[str, Any]:
    """The JSON object: cluster, pools, nodes with their devices."""
    from defragd.core.mix import running_mix
    from defragd.core.plan_json import score_to_json
    from defragd.core.score import score

    mix = running_mix(world)
    pools: dict[str, list[str]] = {}
    for node in world.nodes.values():
        if node.devices:
            pools.setdefault(_pool(node, pool_label), []).append(node.name)
    return {
        "cluster": {
            "nodes": sum(map(len, pools.values())),
            "devices": len(world.devices),
            **score_to_json(score(world, mix=mix)),
        },
        "pools": [
            {
                "name": name,
                "nodes": len(names),
                "devices": sum(len(world.nodes[node].devices) for node in names),
                **score_to_json(score(world, mix=mix, nodes=names)),
            }
            for name, names in sorted(pools.items())
        ],
        "nodes": [_node(world, node, pool_label) for _, node in sorted(world.nodes.items()) if node.devices],
    }


def _pool(node: Node, label: str | None) -> str:
    if label and node.labels.get(label):
        return node.labels[label]
    return "+".join(sorted({device.model for device in node.devices})[:3])


def _node(world: Snapshot, node: Node, label: str | None) -> dict[str, Any]:
    usage = world.usage(node.name)
    devices: list[dict[str, Any]] = []
    for device in node.devices:
        use = usage[device.uuid]
        open_slots = device.usable and node.usable and use.slots < device.slots and not use.exclusive
        free = max(0, device.memory_mib - use.memory_mib) if open_slots else 0
        cores = max(0, device.cores - use.cores) if open_slots else 0
        devices.append(
            {
                "uuid": device.uuid,
                "index": device.index,
                "type": device.model,
                "usable": device.usable,
                "idle": not use.holders,
                "slots": {"used": use.slots, "total": device.slots},
                "memoryMiB": {"used": use.memory_mib, "total": device.memory_mib},
                "cores": {"used": use.cores, "total": device.cores},
                "freeMiB": free,
                "freeCores": cores,
                "pods": sum(1 for holder in use.holders if not holder.startswith("hold:")),
            }
        )
    frees: list[int] = [item["freeMiB"] for item in devices]
    return {
        "name": node.name,
        "pool": _pool(node, label),
        "usable": node.usable,
        "idleDevices": sum(1 for item in devices if item["idle"]),
        "freeMiB": sum(frees),
        "largestHoleMiB": max(frees, default=0),
        "devices": devices,
    }


def _table(value: Mapping[str, Any], level: str) -> Table:
    match level:
        case "cluster" | "pool":
            table = Table(
                ["POOL", "NODES", "DEVICES", "L", "PHI", "IDLE-DEVICES", "IDLE-NODES", "IDLE-GPUS"],
                wide=frozenset({7}),
                right=frozenset(range(1, 8)),
            )
            items = [{"name": "(cluster)", **value["cluster"]}] if level == "cluster" else value["pools"]
            for item in items:
                figures = [item["L"], item["phi"]]
                table.rows.append(
                    [
                        item["name"],
                        str(item["nodes"]),
                        str(item["devices"]),
                        *(f"{f:.3f}" for f in figures),
                        str(item["idleDevices"]),
                        str(item["idleNodes"]),
                        f"{item['idleGPUs']:.1f}",
                    ]
                )
        case "node":
            table = Table(
                ["NODE", "POOL", "DEVICES", "IDLE-DEVICES", "FREE-MIB", "LARGEST-HOLE-MIB", "USABLE"],
                right=frozenset({2, 3, 4, 5}),
            )
            for node in value["nodes"]:
                table.rows.append(
                    [
                        node["name"],
                        node["pool"],
                        str(len(node["devices"])),
                        str(node["idleDevices"]),
                        str(node["freeMiB"]),
                        str(node["largestHoleMiB"]),
                        node["usable"],
                    ]
                )
        case _:
            table = Table(
                ["NODE", "DEVICE", "UUID", "PODS", "SLOTS", "MEMORY-MIB", "CORES", "FREE-MIB", "USABLE"],
                right=frozenset({3, 7}),
            )
            for node in value["nodes"]:
                for device in node["devices"]:
                    table.rows.append(
                        [
                            node["name"],
                            f"gpu-{device['index']}",
                            device["uuid"],
                            str(device["pods"]),
                            *(f"{device[k]['used']}/{device[k]['total']}" for k in ("slots", "memoryMiB", "cores")),
                            str(device["freeMiB"]),
                            device["usable"],
                        ]
                    )
    return table
