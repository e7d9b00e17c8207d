"""Reads the metrics of HAMi's scheduler: from its address or from a saved file, as a `hami.scheduler_books.Page`.

Large pages are taken line by line and parsed in small portions, so that the webhook in the same process is not held up.
"""

from __future__ import annotations

import base64
import math
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from http.client import HTTPException
from itertools import islice
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from prometheus_client.parser import text_string_to_metric_families

from defragd.errors import ClusterError, ConfigError
from defragd.hami.scheduler_books import Entry, Page, Place

MIB = 1024 * 1024
TIMEOUT = 5.0
MOST_BYTES = 64 * MIB
PORTION = 500
BREATH = 0.001
"""Seconds between two portions."""

FIELDS: Mapping[str, tuple[str, int]] = {
    "hami_gpu_memory_limit_bytes": ("memory_limit_mib", MIB),
    "hami_gpu_core_limit_ratio": ("core_limit", 1),
    "hami_gpu_shared_count": ("slots", 1),
    "hami_gpu_memory_allocated_bytes": ("memory_mib", MIB),
    "hami_gpu_core_allocated_ratio": ("cores", 1),
    "GPUDeviceMemoryLimit": ("memory_limit_mib", MIB),
    "GPUDeviceCoreLimit": ("core_limit", 1),
    "GPUDeviceSharedNum": ("slots", 1),
    "GPUDeviceMemoryAllocated": ("memory_mib", MIB),
    "GPUDeviceCoreAllocated": ("cores", 1),
}
"""Metric -> (field of an entry, divisor). The second half are the names up to HAMi 2.8."""
HOLDERS = ("hami_vgpu_memory_allocated_bytes", "vGPUMemoryAllocated")
NODE, DEVICE = ("node", "nodeid", "nodename"), ("device_uuid", "deviceuuid")
NAMESPACE, POD = ("namespace", "podnamespace"), ("pod", "podname")


def read(source: str, *, timeout: float = TIMEOUT) -> Page:
    """``source``: an http(s) URL or a file. Raises ConfigError (a file that is not there, an odd address) or
    ClusterError (nobody answers, or not with metrics): one line each."""
    lines = _lines(source, timeout)
    entries: dict[Place, dict[str, int]] = {}
    holders: dict[str, list[str]] = {}
    wanted = _wanted(lines, holders)
    while portion := "".join(islice(wanted, PORTION)):
        for name, labels, value in _samples(source, portion):
            field, divisor = FIELDS[name]
            place = (_label(labels, NODE), _label(labels, DEVICE))
            if all(place) and math.isfinite(value):
                entries.setdefault(place, {})[field] = round(value / divisor)
        time.sleep(BREATH)
    if not entries and not lines.build_info:  # HAMi's own page is empty before it knows a device, or does not lead
        raise ClusterError(f"{shown(source)} answers, but shows no metric of HAMi's scheduler")
    found = {place: Entry(**values) for place, values in entries.items()}
    return Page(found, _Holders(source, holders))


def shown(source: str) -> str:
    """The source without credentials."""
    parts = urlsplit(source)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])) if "@" in parts.netloc else source


class _Lines:
    """Lines of the page; remembers whether HAMi's build information was among them."""

    def __init__(self, lines: Iterable[bytes]) -> None:
        self._lines = lines
        self.build_info = False

    def __iter__(self) -> Iterator[str]:
        total = 0
        for raw in self._lines:
            total += len(raw)
            if total > MOST_BYTES:
                raise ClusterError(f"more than {MOST_BYTES // MIB} MiB of metrics")
            line = raw.decode("utf-8", "replace")
            self.build_info = self.build_info or line.startswith("hami_build_info")
            yield line if line.endswith("\n") else line + "\n"


def _lines(source: str, timeout: float) -> _Lines:
    scheme = urlsplit(source).scheme.lower() if "://" in source else ""
    if not scheme:
        try:
            with open(source, "rb") as file:
                return _Lines(file.read(MOST_BYTES + 1).splitlines(keepends=True))
        except OSError as error:
            raise ConfigError(f"HAMi's metrics {source}: cannot be read: {error.strerror}") from None
    if scheme not in ("http", "https"):
        raise ConfigError(f"HAMi's metrics {shown(source)}: want a file or an http(s) address")
    return _Lines(_fetch(source, timeout))


def _fetch(url: str, timeout: float) -> list[bytes]:
    parts = urlsplit(url)
    user, _, host = parts.netloc.rpartition("@")
    headers = {"Accept": "text/plain"}
    if user:
        headers["Authorization"] = "Basic " + base64.b64encode(unquote(user).encode()).decode()
    plain = urlunsplit(parts._replace(netloc=host))
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    end = time.monotonic() + 4 * timeout
    try:
        with opener.open(urllib.request.Request(plain, headers=headers), timeout=timeout) as answer:
            found = []
            while chunk := answer.read1(1 << 18):
                found.append(chunk)
                if time.monotonic() > end or sum(map(len, found)) > MOST_BYTES:
                    raise ClusterError(f"HAMi's metrics {plain}: the answer is too long or too slow")
    except urllib.error.HTTPError as error:
        error.close()
        raise ClusterError(f"HAMi's metrics {plain}: HTTP {error.code}") from None
    except (OSError, HTTPException, ValueError) as error:
        why = getattr(error, "reason", None) or error
        raise ClusterError(f"HAMi's metrics {plain}: {why}") from None
    return b"".join(found).splitlines(keepends=True)


def _wanted(lines: Iterable[str], holders: dict[str, list[str]]) -> Iterator[str]:
    """The lines worth parsing now; those about pods are put aside by the text of their device."""
    for line in lines:
        name = line.partition("{")[0]
        if name in FIELDS:
            yield line
        elif name in HOLDERS:
            for label in DEVICE:
                _, found, rest = line.partition(f'{label}="')
                if found:
                    holders.setdefault(rest.partition('"')[0], []).append(line)
                    break


def _samples(source: str, text: str) -> list[tuple[str, Mapping[str, str], float]]:
    try:
        return [(s.name, s.labels, s.value) for family in text_string_to_metric_families(text) for s in family.samples]
    except (ValueError, KeyError, IndexError) as error:
        raise ClusterError(f"{shown(source)}: is no exposition text of Prometheus: {error}") from None


class _Holders:
    """Pods on one device by HAMi's word; parsed when asked, which is seldom."""

    def __init__(self, source: str, lines: Mapping[str, list[str]]) -> None:
        self._source, self._lines = source, lines

    def __call__(self, place: Place) -> Mapping[str, int]:
        found: dict[str, int] = {}
        try:
            samples: Any = _samples(self._source, "".join(self._lines.get(place[1], ())))
        except ClusterError:
            return found
        for _, labels, value in samples:
            if _label(labels, NODE) == place[0] and math.isfinite(value):
                key = f"{_label(labels, NAMESPACE)}/{_label(labels, POD)}"
                found[key] = found.get(key, 0) + round(value / MIB)
        return found


def _label(labels: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((labels[name] for name in names if labels.get(name)), "")
