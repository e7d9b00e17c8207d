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
    groups: bool = False
    """Devices may name network groups, which decide the choice of several devices and add to the node score."""
    pairs: bool = False
    """More than one device means whole modules of two."""
    topology_maps: bool = False
    """The node's annotations rate numbers of devices, which dominates the node score."""
    family: str = "shared"
    """Which fit procedure applies (hami.vendors documents the families)."""
