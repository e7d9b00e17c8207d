"""Kubernetes quantities, exactly: parse to fractions, tell whole numbers, write the API server's canonical form.

The API server stores ``"4000"`` as ``"4k"`` and ``"16384Mi"`` as ``"16Gi"``; whoever reads a limit with ``int()``
misses it. HAMi takes only values that are whole numbers (``resource.Quantity.AsInt64``).
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache

_BINARY = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_SUFFIX = {power: suffix for suffix, power in _DECIMAL.items()}
_SHAPE = re.compile(r"([+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))(Ki|Mi|Gi|Ti|Pi|Ei|[numkMGTPE]|[eE][+-]?[0-9]{1,3})?")
_MAX_INT64 = 2**63 - 1
_MOST = 2**53
"""Host amounts beyond this (8 PiB, 9e12 CPUs) are nonsense; cut there, sums over a cluster stay far inside int64."""


@lru_cache(maxsize=8192)
def _parse(text: str) -> tuple[Fraction, str] | None:
    match = _SHAPE.fullmatch(text) if len(text) < 100 else None
    if match is None:
        return None
    number, suffix = Fraction(match[1]), match[2] or ""
    if suffix in _BINARY:
        return number * 1024 ** _BINARY[suffix], "binary"
    if suffix in _DECIMAL:
        return number * Fraction(10) ** _DECIMAL[suffix], "decimal"
    return number * Fraction(10) ** int(suffix[1:]), "exponent"


def parse(value: str | int | float | None) -> Fraction | None:
    """The exact value, or None for what is no quantity. JSON numbers are taken as written."""
    if value is None or isinstance(value, bool):
        return None
    found = _parse(value if isinstance(value, str) else str(value))
    return found[0] if found else None


@lru_cache(maxsize=8192)
def _whole(text: str) -> int | None:
    found = _parse(text)
    if found is None or found[0].denominator != 1 or abs(found[0].numerator) > _MAX_INT64:
        return None
    return found[0].numerator


def whole(value: str | int | float | None) -> int | None:
    """The value when it is a whole number that fits int64, else None (HAMi then sees no usable number)."""
    if value is None or isinstance(value, bool):
        return None
    return _whole(value if isinstance(value, str) else str(value))


@lru_cache(maxsize=8192)
def _ceil(text: str, per_unit: int) -> int:
    found = _parse(text)
    return max(-_MOST, min(_MOST, -(-found[0] * per_unit // 1))) if found else 0


def milli(value: str | int | float | None) -> int:
    """CPU in thousandths, rounded up as kube-scheduler does; 0 for what is no quantity."""
    return 0 if value is None else _ceil(value if isinstance(value, str) else str(value), 1000)


def units(value: str | int | float | None) -> int:
    """Bytes or counts, rounded up; 0 for what is no quantity."""
    return 0 if value is None else _ceil(value if isinstance(value, str) else str(value), 1)


def canonical(value: str | int | float) -> str:
    """The form in which the API server stores and returns the quantity; text that is none comes back unchanged.

    The largest suffix that needs no fraction is used; what was binary stays binary from 1024 up.
    """
    text = value if isinstance(value, str) else str(value)
    found = _parse(text)
    if found is None:
        return text
    amount, kind = found
    if kind == "binary" and abs(amount) >= 1024:
        whole_amount = -(-amount // 1)
        power = 0
        while power < 6 and whole_amount % 1024 == 0:
            whole_amount //= 1024
            power += 1
        return f"{whole_amount}{['', 'Ki', 'Mi', 'Gi', 'Ti', 'Pi', 'Ei'][power]}"
    nanos = -(-amount * 10**9 // 1)
    if nanos == 0:
        return "0"
    power = -9
    while power < 18 and nanos % 1000 == 0:
        nanos //= 1000
        power += 3
    if kind == "exponent":
        return str(nanos) if power == 0 else f"{nanos}e{power}"
    return f"{nanos}{_SUFFIX[power]}"
