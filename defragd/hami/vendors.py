"""The table of HAMi's backends (reference sections 1.3, 2.1, 2.2, 3): annotations, resources, facts for the core.

Fit families (``Vendor.family``), implemented in `core.fit_checks`, `core.fit_families` and `core.fit_wings`:

``shared``          NVIDIA's check list; cordon, modes, topology, MIG and quota as the facts say
``one-device``      the same, and every container of the pod must get the one device
``network-groups``  the same, plus soft slicing, groups and modules (Ascend)
``dies``            slots and mutex only, dies of one board preferred (Vastai, Biren)
``whole``           a device is free or it is not (Enflame GCU)
``compute-units``   compute units instead of percent; no exclusive rules (AMD)
``even-wings``, ``whole-wings``   two wings of four devices (Kunlun)
``profiles``        slices by the node's profiles (Enflame DRS)
``zones``           classes of pods, quality of service, link zones (Metax sliced)
``unjudged``        not specified well enough (AWS Neuron): read and shown, never a target
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from typing import Any

from defragd.core.vendor import Vendor
from defragd.hami import inventory
from defragd.hami.backend import Backend, resolve_nvidia, resolver
from defragd.hami.backend_rules import (
    resolve_amd,
    resolve_metax_shared,
    resolve_neuron,
    resolve_profiles,
    resolve_whole,
    resolve_xpu,
)
from defragd.hami.config import HamiConfig
from defragd.hami.keys import (
    METAX_APP_CLASS,
    METAX_LOSSES,
    METAX_QOS,
    METAX_SCORES,
    METAX_TOPOLOGY,
    NVIDIA_HANDSHAKE,
    VNPU_CORE_NODE,
    VNPU_MODE,
)


def _uuid_keys(domain: str) -> dict[str, Any]:
    return {"use_keys": (f"{domain}/use-gpuuuid",), "nouse_keys": (f"{domain}/nouse-gpuuuid",)}


def _word_keys(word: str) -> dict[str, Any]:
    return {"use_keys": (f"hami.io/use-{word}-uuid",), "nouse_keys": (f"hami.io/no-use-{word}-uuid",)}


_XPU_KEYS: dict[str, Any] = {
    "use_keys": ("hami.io/use-xpu-uuid", "baidu.com/use-gpuuuid"),
    "nouse_keys": ("hami.io/no-use-xpu-uuid", "baidu.com/nouse-gpuuuid"),
}


def _pair(stem: str) -> dict[str, Any]:
    return {"allocated": f"hami.io/{stem}-devices-allocated", "to_allocate": f"hami.io/{stem}-devices-to-allocate"}


def _registered(config: HamiConfig) -> Iterable[Backend]:
    """Backends whose device plugin writes a register annotation."""
    yield Backend(
        Vendor(
            "NVIDIA",
            **_uuid_keys("nvidia.com"),
            use_type_keys=("nvidia.com/use-gputype",),
            nouse_type_keys=("nvidia.com/nouse-gputype",),
            cordon=True,
            quota=True,
            numa_bind=True,
            topology=True,
            mig=True,
        ),
        config.nvidia,
        **_pair("vgpu"),
        register="hami.io/node-nvidia-register",
        form="either",
        handshake=NVIDIA_HANDSHAKE,
        health=config.nvidia.count,
        resolve=resolve_nvidia,
        unit=max(config.memory_factor, 1),
    )
    yield Backend(
        Vendor(
            "DCU",
            **_uuid_keys("hygon.com"),
            use_type_keys=("hygon.com/use-dcutype",),
            nouse_type_keys=("hygon.com/nouse-dcutype",),
        ),
        config.hygon,
        **_pair("dcu"),
        register="hami.io/node-dcu-register",
        form="text",
        handshake="hami.io/node-handshake-dcu",
        health=config.hygon.count,
        resolve=resolver(unit=config.hygon_memory_factor, strict=False, strict_cores=True),
        unit=config.hygon_memory_factor,
    )
    for chip in config.iluvatar:
        yield Backend(
            Vendor(chip.word, **_word_keys(chip.word)),
            chip.names,
            **_pair(chip.word),
            register=f"hami.io/node-{chip.word}-register",
            form="text",
            handshake=f"hami.io/node-handshake-{chip.word}",
            health=chip.names.count,
            resolve=resolver(unit=256, cores=0),
            unit=256,
        )
    for npu in config.ascend:
        yield Backend(
            Vendor(
                npu.word,
                **_word_keys(npu.word),
                group_field="NetworkID" if npu.word.startswith("Ascend910") else "",
                group_weight=10,
                pairs=npu.super_pod,
                soft_key=VNPU_MODE,
                soft_value="hami-core",
                soft_node_key=VNPU_CORE_NODE,
                family="network-groups",
            ),
            npu.names,
            **_pair(npu.word),
            register=f"hami.io/node-register-{npu.word}",
            form="json",
            handshake=f"hami.io/node-handshake-{npu.word}",
            health=npu.names.count,
            resolve=resolver(unit=npu.memory_factor, cores=0, strict=False, strict_cores=True),
            unit=npu.memory_factor,
        )
    yield Backend(
        Vendor("XPU", **_XPU_KEYS, family="even-wings"),
        config.kunlun_shared,
        **_pair("xpu"),
        register="hami.io/node-register-xpu",
        form="json",
        handshake="hami.io/node-handshake-xpu",
        health=config.kunlun_shared.count,
        resolve=resolve_xpu,
        first="2.7",
    )
    yield Backend(
        Vendor(
            "AMD",
            use_keys=("amd.com/use-gpu-uuid",),
            nouse_keys=("amd.com/nouse-gpu-uuid",),
            use_type_keys=("amd.com/use-gputype",),
            nouse_type_keys=("amd.com/nouse-gputype",),
            exclusive_cores=False,
            family="compute-units",
        ),
        config.amd,
        **_pair("amd"),
        register="hami.io/node-amd-register",
        form="json",
        health=config.amd.count,
        resolve=resolve_amd,
        entry_is_model=True,
        first="2.8",
    )
    yield Backend(
        Vendor("Vastai", **_uuid_keys("vastaitech.com"), exclusive_cores=False, group_field="AIC", family="dies"),
        config.vastai,
        **_pair("Vastai"),
        register="hami.io/node-va-register",
        form="json",
        handshake="hami.io/node-handshake-va",
        health=config.vastai.count,
        resolve=resolve_whole(cores=0),
        first="2.9",
    )
    yield Backend(
        Vendor("Biren", **_uuid_keys("birentech.com"), exclusive_cores=False, family="dies"),
        config.biren,
        **_pair("Biren"),
        register="hami.io/node-biren-register",
        form="json",
        handshake="hami.io/node-handshake-biren",
        health=config.biren.count,
        resolve=resolve_whole(cores=0),
        first="2.10",
    )


def _synthetic(config: HamiConfig) -> Iterable[Backend]:
    """Backends whose inventory HAMi makes up from node capacity or a foreign annotation."""
    yield Backend(
        Vendor("MLU", **_uuid_keys("cambricon.com"), quota=True),
        config.cambricon,
        **_pair("cambricon-mlu"),
        resolve=resolver(unit=256),
        unit=256,
        inventory=inventory.cambricon,
    )
    yield Backend(
        Vendor("Mthreads", **_uuid_keys("mthreads.ai"), node_lock=False, family="one-device"),
        config.mthreads,
        allocated="hami.io/mthreads-vgpu-devices-allocated",
        resolve=resolver(unit=512, cores=0, per_count=True),
        unit=512,
        inventory=inventory.mthreads,
    )
    yield Backend(
        Vendor(
            "Metax-GPU",
            pinnable=False,
            node_lock=False,
            loss_key=METAX_LOSSES,
            score_key=METAX_SCORES,
            family="one-device",
        ),
        config.metax,
        **_pair("metax-gpu"),
        resolve=resolve_whole(cores=100),
        inventory=inventory.metax,
    )
    yield Backend(
        Vendor(
            "Metax-SGPU",
            **_uuid_keys("metax-tech.com"),
            class_key=METAX_APP_CLASS,
            quality_key=METAX_QOS,
            link_key=METAX_TOPOLOGY,
            family="zones",
        ),
        config.metax_shared,
        **_pair("metax-sgpu"),
        resolve=resolve_metax_shared,
        unit=1024,
        inventory=inventory.metax_shared,
    )
    yield Backend(
        Vendor("kunlun", **_XPU_KEYS, node_lock=False, family="whole-wings"),
        config.kunlun,
        allocated="hami.io/kunlun-allocated",
        resolve=resolve_whole(cores=0),
        inventory=inventory.kunlun,
        first="2.7",
    )
    yield Backend(
        Vendor("GCU", pinnable=False, node_lock=False, family="whole"),
        config.enflame,
        **_pair("enflame-gcu"),
        resolve=resolve_whole(cores=100),
        inventory=inventory.gcu,
        first="2.6",
    )
    yield Backend(
        Vendor("Enflame", **_uuid_keys("enflame.com"), node_lock=False, family="profiles"),
        config.enflame_shared,
        allocated="hami.io/enflame-vgpu-devices-allocated",
        resolve=resolve_profiles,
        inventory=inventory.enflame,
        first="2.6",
    )
    yield Backend(
        Vendor(
            "AWSNeuron",
            use_keys=("aws.amazon.com/use-neuron-uuid",),
            nouse_keys=("aws.amazon.com/nouse-neuron-uuid",),
            pinnable=False,
            node_lock=False,
            exclusive_cores=False,
            family="unjudged",
        ),
        config.neuron,
        allocated="hami.io/aws-neuron-devices-allocated",
        resolve=resolve_neuron,
        inventory=inventory.neuron,
        first="2.7",
    )


@lru_cache(maxsize=32)
def backends(config: HamiConfig) -> Mapping[str, Backend]:
    """All backends of an installation by vendor word."""
    return {b.word: b for b in (*_registered(config), *_synthetic(config))}


def vendors_for(config: HamiConfig) -> Mapping[str, Vendor]:
    """The facts that the core needs, by vendor word."""
    return {word: backend.facts for word, backend in backends(config).items()}


VENDORS: Mapping[str, Vendor] = vendors_for(HamiConfig())
"""The facts under the chart's default configuration."""


@lru_cache(maxsize=32)
def managed_resources(config: HamiConfig) -> frozenset[str]:
    """Resource names that HAMi's extender manages, so kube-scheduler does not count them."""
    return frozenset(name for backend in backends(config).values() for name in backend.names.all())


def pin_annotations(
    vendors: Collection[str], uuids: Iterable[str], *, table: Mapping[str, Vendor] = VENDORS
) -> dict[str, str]:
    """The use-UUID annotations that pin a pod with devices of ``vendors`` to exactly ``uuids``.

    One key per vendor is enough (where a backend reads two, both must pass and an absent one passes). Raises ValueError
    for an unknown vendor, one that cannot be pinned, and an empty list (HAMi would take it for "no constraint").
    """
    listed = ",".join(dict.fromkeys(uuids))
    if not listed:
        raise ValueError("a pin needs at least one device UUID")
    pins = {}
    for word in vendors:
        facts = table.get(word)
        if facts is None or not facts.pinnable or not facts.use_keys:
            raise ValueError(f"devices of vendor {word!r} cannot be pinned by UUID")
        pins[facts.use_keys[0]] = listed
    return pins


def nouse_annotation(vendor: str, *, table: Mapping[str, Vendor] = VENDORS) -> str:
    """The annotation to which device exclusions are added; "" where the vendor has none."""
    facts = table.get(vendor)
    return facts.nouse_keys[0] if facts and facts.nouse_keys else ""
