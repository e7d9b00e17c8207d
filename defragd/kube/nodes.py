"""The one thing ever written to a Node: annotations, by a patch that fails when the node changed since it was read."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from defragd.errors import ClusterError, Forbidden, MissingResource
from defragd.kube.client import MERGE_PATCH, Client
from defragd.kube.writes import Fence
from defragd.ports import Outcome, Written

Change = Callable[[Mapping[str, str]], Mapping[str, str | None] | None]


class KubeNodes:
    """ports.NodeWriter."""

    def __init__(self, client: Client, fence: Fence) -> None:
        self._client, self._fence = client, fence

    def annotate(self, name: str, change: Change) -> Written:
        """``change`` gets the node's annotations as they are now and gives those to write (None values are removed), or
        None for nothing. Conflict: look again."""
        path = f"/api/v1/nodes/{name}"
        try:
            meta = self._client.get_json(path).get("metadata") or {}
        except MissingResource as error:
            return Written(Outcome.GONE, str(error))
        except Forbidden as error:
            return Written(Outcome.REFUSED, str(error))
        except ClusterError as error:
            return Written(Outcome.UNKNOWN, str(error))
        annotations = change(meta.get("annotations") or {})
        if annotations is None:
            return Written(Outcome.OK)
        self._fence.check(f"annotations of node {name}")
        patch = {"metadata": {"resourceVersion": meta.get("resourceVersion"), "annotations": dict(annotations)}}
        return self._client.write_raw("PATCH", path, patch, content_type=MERGE_PATCH)[0]
