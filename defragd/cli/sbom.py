"""What is installed beside us, as a software bill of materials (CycloneDX 1.5, JSON), from the packages' own metadata.

Whoever runs the image can ask it: no tool, no network, and what is listed is what is there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from typing import Any

from defragd import __version__

ROOT = "defragd"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def document() -> dict[str, Any]:
    """The bill: us, and every installed package that we need directly or through another one."""
    found = dict(_needed(ROOT))
    ours = _component(ROOT, "application", found[ROOT])
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": ours},
        "components": [_component(name, "library", found[name]) for name in sorted(found) if name != ROOT],
        "dependencies": [
            {"ref": _purl(name, item), "dependsOn": [_purl(n, found[n]) for n in _names(item) if n in found]}
            for name, item in sorted(found.items())
        ],
    }


def _needed(root: str) -> Iterator[tuple[str, Distribution | None]]:
    seen: set[str] = set()
    waiting = [root]
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        try:
            item = distribution(name)
        except PackageNotFoundError:
            if name == root:  # run from the source tree
                yield name, None
            continue  # needed on other platforms only
        yield name, item
        waiting += _names(item)


def _names(item: Distribution | None) -> list[str]:
    """Normalised names of what it requires; what only extras ask for is left out."""
    found = set()
    for text in (item.requires if item else None) or ():
        match = _NAME.match(text)
        if match and not re.search(r";.*\bextra\s*==", text):
            found.add(re.sub(r"[-_.]+", "-", match[0]).lower())
    return sorted(found)


def _purl(name: str, item: Distribution | None) -> str:
    return f"pkg:pypi/{name}@{item.version if item else __version__}"


def _component(name: str, kind: str, item: Distribution | None) -> dict[str, Any]:
    ref = _purl(name, item)
    found = {"type": kind, "bom-ref": ref, "name": name, "version": item.version if item else __version__, "purl": ref}
    text = _licence(item)
    return {**found, "licenses": [{"license": {"name": text}}]} if text else found


def _licence(item: Distribution | None) -> str:
    """The SPDX expression, the field, or the classifiers, whichever the package has."""
    if item is None:
        return ""

    def said(field: str) -> list[str]:
        return [str(text).strip() for text in item.metadata.get_all(field) or ()]

    classified = [text.rpartition(" :: ")[2] for text in said("Classifier") if text.startswith("License ::")]
    short = [text for text in said("License") if text and "\n" not in text and len(text) < 80]
    return next(iter((*said("License-Expression"), *short)), ", ".join(classified))
