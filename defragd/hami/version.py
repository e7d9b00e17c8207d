"""Which HAMi runs: told by what it writes, or by its image tag where that is readable (reference section 9)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

_TAG = re.compile(r"v?([0-9]{1,3})\.([0-9]{1,4})")
NEEDED = (2, 10)


@lru_cache(maxsize=64)
def version_of(text: str) -> tuple[int, int]:
    """(major, minor) of a version or image tag, (0, 0) when there is none in it."""
    match = _TAG.search(text.rsplit(":", 1)[-1])
    return (int(match[1]), int(match[2])) if match else (0, 0)


def guess_version(nodes: Iterable[Mapping[str, str]], pods: Iterable[Mapping[str, str]] = (), image: str = "") -> str:
    """ "2.10", or a range such as "2.8-2.9" or "<=2.7", or "" where nothing tells. ``nodes`` and ``pods`` are their
    annotations; the image tag of the scheduler, where known, decides."""
    if version_of(image) != (0, 0):
        return "{}.{}".format(*version_of(image))
    text = json_form = False
    for node in nodes:
        register = node.get("hami.io/node-nvidia-register", "")
        if '"migProfiles"' in register:
            return "2.10"
        json_form = json_form or register.lstrip().startswith("[")
        text = text or (":" in register and not register.lstrip().startswith("["))
    for pod in pods:
        if "hami.io/vgpu-mig-allocations" in pod:
            return "2.10"
        if "],NVIDIA," in pod.get("hami.io/vgpu-devices-allocated", ""):
            return "2.8-2.9" if json_form else "<=2.7"
    if text:
        return "<=2.7"
    return ">=2.8" if json_form else ""


def handshake(value: str | None) -> tuple[str, str]:
    """("requesting" | "reported" | "deleted" | "absent" | "other", the time text). Times are in HAMi's local zone, so
    they are shown, not compared."""
    if not value:
        return "absent", ""
    for word in ("Requesting", "Reported", "Deleted"):
        if word in value:
            return word.lower(), value.partition(word)[2].strip("_ ")
    return "other", value


def shortcomings(version: str) -> tuple[str, ...]:
    """What is not possible below 2.10, in sentences for people; empty when nothing is known to be missing."""
    if not version or version.startswith(">") or version_of(version) >= NEEDED:
        return ()
    said = [
        "HAMi below 2.10 ignores nouse lists beside a use list, and a present but empty use list matches no device",
        "HAMi below 2.10 has no device cordon and gives no detailed reasons",
        "HAMi below 2.10 orders devices differently: unpinned forecasts are not exact",
    ]
    if version_of(version.lstrip("<=")) < (2, 8):
        said.append("HAMi 2.7 and older registers NVIDIA devices as text; a newer scheduler does not read it")
    return tuple(said)


def scheduler_image(obj: Mapping[str, Any]) -> str:
    """Image of the scheduler container in a HAMi scheduler Deployment, "" where it cannot be told."""
    for container in obj.get("spec", {}).get("template", {}).get("spec", {}).get("containers", ()):
        image = str(container.get("image", ""))
        if "hami" in image.lower():
            return image
    return ""
