"""How one HAMi installation is configured: resource names, defaults, policies. ``HamiConfig()`` = chart defaults.

HAMi reads the ConfigMap ``<release>-scheduler-device`` (key ``device-config.yaml``) once at start; whoever reads it
here hands over the parsed document, because this layer parses no YAML.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from defragd.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Names:
    """Resource names of one backend; "" = the backend has no such resource."""

    count: str
    memory: str = ""
    cores: str = ""
    percent: str = ""
    priority: str = ""

    def all(self) -> tuple[str, ...]:
        """The names that are set."""
        return tuple(n for n in (self.count, self.memory, self.cores, self.percent, self.priority) if n)


@dataclass(frozen=True, slots=True)
class Template:
    """A hard slice of an Ascend chip."""

    name: str
    memory_mib: int
    cores: int


@dataclass(frozen=True, slots=True)
class AscendChip:
    """One entry of ``vnpus.configs``. ``allocatable_mib`` is what a whole chip gives."""

    word: str
    names: Names
    allocatable_mib: int
    capacity_mib: int
    cores: int
    templates: tuple[Template, ...] = ()
    memory_factor: int = 1
    super_pod: bool = False
    runtime_class: str = ""


@dataclass(frozen=True, slots=True)
class IluvatarChip:
    """One entry of ``iluvatars``."""

    word: str
    names: Names


def _ascend(word: str, allocatable: int, capacity: int, cores: int, *slices: tuple[str, int, int]) -> AscendChip:
    resource = f"huawei.com/{word}"
    return AscendChip(
        word=word,
        names=Names(resource, f"{resource}-memory", f"{resource}-core"),
        allocatable_mib=allocatable,
        capacity_mib=capacity,
        cores=cores,
        templates=tuple(Template(*one) for one in slices),
        super_pod=word == "Ascend910C",
    )


def _iluvatar(word: str) -> IluvatarChip:
    base = f"iluvatar.ai/{word}"
    return IluvatarChip(word, Names(f"{base}-vgpu", f"{base}.vMem", f"{base}.vCore"))


ASCEND_CHIPS = (
    _ascend(
        "Ascend910A", 32768, 32768, 30, ("vir02", 2184, 2), ("vir04", 4369, 4), ("vir08", 8738, 8), ("vir16", 17476, 16)
    ),
    _ascend(
        "Ascend910B2",
        65536,
        65536,
        24,
        ("vir03_1c_8g", 8192, 3),
        ("vir06_1c_16g", 16384, 6),
        ("vir12_3c_32g", 32768, 12),
    ),
    _ascend("Ascend910B3", 65536, 65536, 20, ("vir05_1c_16g", 16384, 5), ("vir10_3c_32g", 32768, 10)),
    _ascend("Ascend910B4-1", 65536, 65536, 20, ("vir05_1c_16g", 16384, 5), ("vir10_3c_32g", 32768, 10)),
    _ascend("Ascend910B4", 32768, 32768, 20, ("vir05_1c_8g", 8192, 5), ("vir10_3c_16g", 16384, 10)),
    _ascend("Ascend310P", 21527, 24576, 8, ("vir01", 3072, 1), ("vir02", 6144, 2), ("vir04", 12288, 4)),
    _ascend("Ascend910C", 65536, 65536, 20, ("vir05_1c_16g", 16384, 5), ("vir10_3c_32g", 32768, 10)),
)
ILUVATAR_CHIPS = tuple(_iluvatar(word) for word in ("MR-V100", "MR-V50", "BI-V150", "BI-V100"))


@dataclass(frozen=True, slots=True, eq=False)
class HamiConfig:
    """Names and defaults of one installation. ``version`` is "2.10" unless something older is known to run.

    Compared by identity: it keys the tables derived from it in the hot path, so keep one per installation.
    """

    version: str = "2.10"
    version_told: bool = False
    """The installation said so (its image); otherwise it is assumed."""
    scheduler_name: str = "hami-scheduler"
    node_policy: str = "binpack"
    device_policy: str = "spread"
    overwrite_default_scheduler: bool = True
    # NVIDIA
    nvidia: Names = Names(
        "nvidia.com/gpu",
        "nvidia.com/gpumem",
        "nvidia.com/gpucores",
        "nvidia.com/gpumem-percentage",
        "nvidia.com/priority",
    )
    default_memory: int = 0
    default_cores: int = 0
    default_count: int = 1
    memory_factor: int = 1
    core_policy: str = "default"
    runtime_class: str = ""
    overwrite_env: bool = False
    # others
    cambricon: Names = Names("cambricon.com/vmlu", "cambricon.com/mlu.smlu.vmemory", "cambricon.com/mlu.smlu.vcore")
    hygon: Names = Names("hygon.com/dcunum", "hygon.com/dcumem", "hygon.com/dcucores")
    hygon_memory_factor: int = 1
    mthreads: Names = Names("mthreads.com/vgpu", "mthreads.com/sgpu-memory", "mthreads.com/sgpu-core")
    mthreads_memory_per_device: tuple[int, ...] = (96,)
    metax: Names = Names("metax-tech.com/gpu")
    metax_shared: Names = Names("metax-tech.com/sgpu", "metax-tech.com/vmemory", "metax-tech.com/vcore")
    enflame: Names = Names("enflame.com/gcu")
    enflame_shared: Names = Names("enflame.com/drs-gcu", "enflame.com/gcu-memory", "enflame.com/gcu-core")
    kunlun: Names = Names("kunlunxin.com/xpu")
    kunlun_shared: Names = Names("kunlunxin.com/vxpu", "kunlunxin.com/vxpu-memory")
    neuron: Names = Names("aws.amazon.com/neuron", cores="aws.amazon.com/neuroncore")
    amd: Names = Names("amd.com/gpu", "amd.com/gpumem", "amd.com/gpucores")
    vastai: Names = Names("vastaitech.com/va")
    biren: Names = Names("birentech.com/gpu")
    ascend: tuple[AscendChip, ...] = ASCEND_CHIPS
    ascend_soft_slicing: bool = False
    iluvatar: tuple[IluvatarChip, ...] = ILUVATAR_CHIPS
    notes: tuple[str, ...] = ()
    """What in the document was not understood and left at its default."""


# section of the document -> (field of HamiConfig, {key of the section: field of Names})
_SECTIONS: dict[str, tuple[tuple[str, dict[str, str]], ...]] = {
    "nvidia": (
        (
            "nvidia",
            {
                "resourceCountName": "count",
                "resourceMemoryName": "memory",
                "resourceCoreName": "cores",
                "resourceMemoryPercentageName": "percent",
                "resourcePriorityName": "priority",
            },
        ),
    ),
    "cambricon": (
        ("cambricon", {"resourceCountName": "count", "resourceMemoryName": "memory", "resourceCoreName": "cores"}),
    ),
    "hygon": (("hygon", {"resourceCountName": "count", "resourceMemoryName": "memory", "resourceCoreName": "cores"}),),
    "mthreads": (
        ("mthreads", {"resourceCountName": "count", "resourceMemoryName": "memory", "resourceCoreName": "cores"}),
    ),
    "metax": (
        ("metax", {"resourceCountName": "count"}),
        (
            "metax_shared",
            {"resourceVCountName": "count", "resourceVMemoryName": "memory", "resourceVCoreName": "cores"},
        ),
    ),
    "enflame": (
        ("enflame", {"resourceNameGCU": "count"}),
        (
            "enflame_shared",
            {"resourceNameDRSGCU": "count", "resourceNameGCUMemory": "memory", "resourceNameGCUCore": "cores"},
        ),
    ),
    "kunlun": (
        ("kunlun", {"resourceCountName": "count"}),
        ("kunlun_shared", {"resourceVCountName": "count", "resourceVMemoryName": "memory"}),
    ),
    "awsneuron": (("neuron", {"resourceCountName": "count", "resourceCoreName": "cores"}),),
    "amd": (("amd", {"resourceCountName": "count", "resourceMemoryName": "memory", "resourceCoreName": "cores"}),),
    "vastai": (("vastai", {"resourceCountName": "count"}),),
    "biren": (("biren", {"resourceCountName": "count"}),),
}

# key of the nvidia section -> (field of HamiConfig, type)
_NVIDIA: dict[str, tuple[str, type]] = {
    "defaultMemory": ("default_memory", int),
    "defaultCores": ("default_cores", int),
    "defaultGPUNum": ("default_count", int),
    "memoryFactor": ("memory_factor", int),
    "gpuCorePolicy": ("core_policy", str),
    "runtimeClassName": ("runtime_class", str),
    "overwriteEnv": ("overwrite_env", bool),
}


def _typed(value: Any, kind: type, place: str, notes: list[str]) -> Any:
    """``value`` when it is of ``kind`` (numbers and booleans also as text), else None and a note."""
    if kind is bool and isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if kind is int and isinstance(value, str) and value.strip().lstrip("-").isdigit():
        return int(value)
    if isinstance(value, kind) and not (kind is int and isinstance(value, bool)):
        return value
    if value is not None:
        notes.append(f"{place}: expected {kind.__name__}, found {value!r}; the default is used")
    return None


def _chips(entries: Any, notes: list[str]) -> tuple[AscendChip, ...] | None:
    if not isinstance(entries, Sequence) or isinstance(entries, str):
        return None
    chips = []
    for place, entry in enumerate(entries):
        where = f"vnpus.configs[{place}]"
        word = entry.get("commonWord") if isinstance(entry, Mapping) else None
        if not isinstance(entry, Mapping) or not isinstance(word, str) or not word:
            notes.append(f"{where}: no commonWord; entry left out")
            continue

        def number(source: Mapping[str, Any], key: str, default: int = 0, where: str = where) -> int:
            found = _typed(source.get(key), int, f"{where}.{key}", notes)
            return default if found is None else int(found)

        slices = [s for s in entry.get("templates") or () if isinstance(s, Mapping)]
        chips.append(
            AscendChip(
                word=word,
                names=Names(
                    str(entry.get("resourceName") or f"huawei.com/{word}"),
                    str(entry.get("resourceMemoryName") or f"huawei.com/{word}-memory"),
                    str(entry.get("resourceCoreName") or f"huawei.com/{word}-core"),
                ),
                allocatable_mib=number(entry, "memoryAllocatable"),
                capacity_mib=number(entry, "memoryCapacity"),
                cores=number(entry, "aiCore"),
                templates=tuple(
                    sorted(
                        (Template(str(s.get("name", "")), number(s, "memory"), number(s, "aiCore")) for s in slices),
                        key=lambda t: t.memory_mib,
                    )
                ),
                memory_factor=number(entry, "memoryFactor", 1) or 1,
                super_pod=entry.get("superPod") is True,
                runtime_class=str(entry.get("runtimeClassName") or ""),
            )
        )
    return tuple(chips)


def parse_device_config(document: Mapping[str, Any], base: HamiConfig | None = None) -> HamiConfig:
    """The parsed ``device-config.yaml`` over ``base``. Unknown sections and keys are ignored, as HAMi does; a value of
    the wrong type keeps its default and is named in ``notes``. Raises ConfigError when it is no mapping at all."""
    if not isinstance(document, Mapping):
        raise ConfigError("device-config.yaml of HAMi: expected a mapping of vendor sections")
    config, notes = base or HamiConfig(), list[str]()
    changes: dict[str, Any] = {}
    for section, targets in _SECTIONS.items():
        found = document.get(section)
        if not isinstance(found, Mapping):
            continue
        for target, keys in targets:
            names = {}
            for key, part in keys.items():
                value = _typed(found.get(key), str, f"{section}.{key}", notes)
                if value:
                    names[part] = value
            if names:
                changes[target] = replace(getattr(config, target), **names)
    nvidia = document.get("nvidia")
    for key, (target, kind) in _NVIDIA.items():
        value = _typed(nvidia.get(key), kind, f"nvidia.{key}", notes) if isinstance(nvidia, Mapping) else None
        if value is not None:
            changes[target] = value
    hygon = document.get("hygon")
    factor = _typed(hygon.get("memoryFactor"), int, "hygon.memoryFactor", notes) if isinstance(hygon, Mapping) else None
    if factor:
        changes["hygon_memory_factor"] = factor
    mthreads = document.get("mthreads")
    if isinstance(mthreads, Mapping) and isinstance(mthreads.get("memoryPerCard"), Sequence):
        sizes = tuple(v for v in mthreads["memoryPerCard"] if isinstance(v, int) and v > 0)
        if sizes:
            changes["mthreads_memory_per_device"] = sizes
    vnpus = document.get("vnpus")
    if isinstance(vnpus, Mapping):
        chips = _chips(vnpus.get("configs"), notes)
        if chips is not None:
            changes["ascend"] = chips
        changes["ascend_soft_slicing"] = vnpus.get("hamiVnpuCore") is True
    if isinstance(document.get("iluvatars"), Sequence) and not isinstance(document["iluvatars"], str):
        changes["iluvatar"] = tuple(
            IluvatarChip(
                str(entry["commonWord"]),
                Names(
                    str(entry.get("resourceCountName") or ""),
                    str(entry.get("resourceMemoryName") or ""),
                    str(entry.get("resourceCoreName") or ""),
                ),
            )
            for entry in document["iluvatars"]
            if isinstance(entry, Mapping) and entry.get("commonWord") and entry.get("resourceCountName")
        )
    return replace(config, **changes, notes=(*config.notes, *notes))
