"""What a plan says about itself beside its figures: the holes before and after it, for people who think in GiB."""

from __future__ import annotations

import numpy as np

from defragd.core.arrays import Books, Fleet


def hole_note(fleet: Fleet, before: Books, after: Books) -> str:
    """Idle memory in sum and the largest piece of it on one device, before and after; "" without usable devices."""
    if not fleet.device_open.any():
        return ""
    old, new = (_idle(fleet, books) for books in (before, after))
    biggest = f"{_gib(old.max())} -> {_gib(new.max())}" if old.max() != new.max() else _gib(new.max())
    total = _gib(new.sum()) if old.sum() == new.sum() else f"{_gib(old.sum())} -> {_gib(new.sum())}"
    return f"idle device memory: {total} in sum, largest hole {biggest}"


def _idle(fleet: Fleet, books: Books) -> np.ndarray:
    """D: MiB that a pod could still get on each usable device with a slot left."""
    free = np.maximum(fleet.memory - books.memory, 0)
    return np.where(fleet.device_open & (books.slots < fleet.slots), free, 0)


def _gib(mib: np.integer) -> str:
    return f"{int(mib) / 1024:.1f}".removesuffix(".0") + " GiB"
