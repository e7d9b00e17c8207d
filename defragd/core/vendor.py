"""What differs between HAMi's device backends, as facts. The tables themselves are in `defragd.hami.vendors`;
the core knows no vendor by name and gets this mapping (word -> facts) as a value."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Vendor:
    """One backend. ``use_keys``/``nouse_keys`` are pod annotations that select devices by UUID (all must pass)."""

    word: str
    use_keys: tuple[str, ...] = ()
    nouse_keys: tuple[str, ...] = ()
    use_type_keys: tuple[str, ...] = ()
    nouse_type_keys: tuple[str, ...] = ()
    pinnable: bool = True
    """A UUID annotation pins exactly; where not, pods of this vendor are fixed."""
    cordon: bool = False
    """The backend honours hami.io/device-cordon."""
    quota: bool = False
    numa_bind: bool = False
    topology: bool = False
    mig: bool = False
    node_lock: bool = True
    exclusive_cores: bool = True
    """Cores 100 on a 100-core device needs it empty, and a device with all cores booked takes no 0-core pod."""
    group_field: str = ""
    """Field of a device's own data that names its group; groups decide the choice of several devices."""
    group_weight: int = 1
    pairs: bool = False
    """More than one device means whole modules of two."""
    soft_key: str = ""
    soft_value: str = ""
    soft_node_key: str = ""
    """Pod annotation (and its value) that asks for soft slicing, and the node annotation that allows it."""
    loss_key: str = ""
    score_key: str = ""
    """Node annotations that rate numbers of devices; they dominate the node score."""
    class_key: str = ""
    quality_key: str = ""
    link_key: str = ""
    """Pod annotations: class of the pod, quality of service, wish for linked devices."""
    family: str = "shared"
    """Which fit procedure applies (hami.vendors documents the families)."""
