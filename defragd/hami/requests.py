"""Resolves what the containers of a pod ask of HAMi's backends (reference section 2.1)."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from defragd.core.model import EMPTY, DeviceRequest
from defragd.hami.backend import Amounts
from defragd.hami.config import HamiConfig
from defragd.hami.vendors import backends

Pairs = tuple[tuple[str, "str | int | float"], ...]


class ContainerNeeds(NamedTuple):
    """The part of a container that resolution looks at; hashable, so equal replicas are resolved once."""

    limits: Pairs = ()
    requests: Pairs = ()
    init: bool = False
    sidecar: bool = False


@lru_cache(maxsize=64)
def _by_resource(config: HamiConfig) -> dict[str, str]:
    """Resource name -> vendor words to try, by the resource that starts a request."""
    found: dict[str, str] = {}
    for word, backend in backends(config).items():
        for name in (backend.names.count, backend.names.memory, backend.names.cores):
            if name:
                found[name] = word
    return found


@lru_cache(maxsize=4096)
def resolve_container(needs: ContainerNeeds, config: HamiConfig) -> tuple[tuple[str, int, int, int, int], ...]:
    """(word, count, MiB, percent, cores) for each backend the container asks."""
    starts = _by_resource(config)
    words = dict.fromkeys(starts[name] for name, _ in (*needs.limits, *needs.requests) if name in starts)
    if not words:
        return ()
    limits: Amounts = dict(needs.limits) if needs.limits else EMPTY
    requests: Amounts = dict(needs.requests) if needs.requests else EMPTY
    table = backends(config)
    out = []
    for word in table:
        if word in words:
            found = table[word].resolve(limits, requests, table[word], config)
            if found is not None:
                out.append((word, *found))
    return tuple(out)


@lru_cache(maxsize=8192)
def resolve_requests(containers: tuple[ContainerNeeds, ...], config: HamiConfig) -> tuple[DeviceRequest, ...]:
    """Requests of all containers in HAMi's order: init containers first, then app containers."""
    return tuple(_requests(containers, config))


def _requests(containers: Iterable[ContainerNeeds], config: HamiConfig) -> Iterable[DeviceRequest]:
    for number, needs in enumerate(containers):
        for word, count, memory, percent, cores in resolve_container(needs, config):
            yield DeviceRequest(
                container=number,
                init=needs.init,
                sidecar=needs.sidecar,
                vendor=word,
                count=count,
                memory_mib=memory,
                memory_pct=percent,
                cores=cores,
            )
