"""The MutatingWebhookConfiguration `scheduling.hami.placement.com`: what it must say, and bringing it there.

In a cluster the chart owns the object and only ``caBundle`` is ours; with --webhook-url all of it is.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import msgspec

from defragd.kube.client import Client
from defragd.kube.wire import ObjectMeta, Wire
from defragd.ports import Written

NAME = "scheduling.hami.placement.com"
"""Sorts after HAMi's own webhook, so that ours sees the finished pod."""
HOOK_NAME = "hold.scheduling.hami.placement.com"
PATH = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
FIELD_MANAGER = "defragd"
APPLY_PATCH = "application/apply-patch+yaml"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
CONDITIONS_SINCE = (1, 28)


class ClientConfigWire(Wire):
    url: str | None = None
    ca_bundle: str | None = None


class WebhookWire(Wire):
    name: str = ""
    client_config: ClientConfigWire = msgspec.field(default_factory=ClientConfigWire)
    failure_policy: str | None = None
    timeout_seconds: int | None = None
    reinvocation_policy: str | None = None
    side_effects: str | None = None
    object_selector: dict[str, Any] | None = None
    namespace_selector: dict[str, Any] | None = None
    match_conditions: list[dict[str, Any]] | None = None


class ConfigWire(Wire):
    metadata: ObjectMeta
    webhooks: list[WebhookWire] | None = None


def desired(url: str, bundle: bytes, *, namespaces: Sequence[str], conditions: bool) -> dict[str, Any]:
    """``namespaces`` are left alone (kube-system and ours): our own pods must start while our webhook is down."""
    ignore = {"key": "hami.io/webhook", "operator": "NotIn", "values": ["ignore"]}
    away = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": sorted(set(namespaces))}
    hook: dict[str, Any] = {
        "name": HOOK_NAME,
        "admissionReviewVersions": ["v1"],
        "clientConfig": {"url": url, "caBundle": base64.b64encode(bundle).decode()},
        "failurePolicy": "Ignore",
        "matchPolicy": "Equivalent",
        "reinvocationPolicy": "IfNeeded",
        "sideEffects": "NoneOnDryRun",
        "timeoutSeconds": 2,
        "namespaceSelector": {"matchExpressions": [ignore, away]},
        "objectSelector": {"matchExpressions": [ignore]},
        "rules": [
            {
                "apiGroups": [""],
                "apiVersions": ["v1"],
                "operations": ["CREATE"],
                "resources": ["pods"],
                "scope": "Namespaced",
            }
        ],
    }
    if conditions:
        # Mirror pods and pods bound by hand: there is nothing left to decide for them.
        unbound = "!has(object.spec.nodeName) || object.spec.nodeName == ''"
        hook["matchConditions"] = [{"name": "unbound", "expression": unbound}]
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": NAME, "labels": {"app.kubernetes.io/name": "gpu-descheduler"}},
        "webhooks": [hook],
    }


def bundle_of(config: ConfigWire | None) -> bytes:
    """The authorities the API server trusts for us now; b"" where any of our hooks has none."""
    hooks = (config.webhooks if config else None) or []
    found = [_decode(hook.client_config.ca_bundle) for hook in hooks]
    return found[0] if found and all(found) and len(set(found)) == 1 else b""


def agrees(config: ConfigWire | None, wanted: dict[str, Any]) -> bool:
    """Whether the object on the server says what ``wanted`` says, in the fields that matter."""
    hooks = (config.webhooks if config else None) or []
    if len(hooks) != 1:
        return False
    have, want = hooks[0], wanted["webhooks"][0]
    return bool(
        have.name == want["name"]
        and have.client_config.url == want["clientConfig"]["url"]
        and have.client_config.ca_bundle == want["clientConfig"]["caBundle"]
        and have.failure_policy == want["failurePolicy"]
        and have.timeout_seconds == want["timeoutSeconds"]
        and have.reinvocation_policy == want["reinvocationPolicy"]
        and have.side_effects == want["sideEffects"]
        and have.object_selector == want["objectSelector"]
        and have.namespace_selector == want["namespaceSelector"]
        and (have.match_conditions or None) == want.get("matchConditions")
    )


def put_right(client: Client, wanted: dict[str, Any], present: ConfigWire | None) -> Written:
    """Create the object, or replace exactly the version that was read, whoever made it (409: somebody was faster).

    It is created by an apply, which names the object in its URL: so rights on this one name suffice.
    """
    if present is None:
        query = {"fieldManager": FIELD_MANAGER, "force": "true"}
        return client.write("PATCH", f"{PATH}/{NAME}", wanted, content_type=APPLY_PATCH, query=query)
    meta = present.metadata
    body = {
        **wanted,
        "metadata": {
            "name": NAME,
            "resourceVersion": meta.resource_version,
            "labels": {**(meta.labels or {}), **wanted["metadata"]["labels"]},
            "annotations": meta.annotations or {},
        },
    }
    return client.write("PUT", f"{PATH}/{NAME}", body, query={"fieldManager": FIELD_MANAGER})


def patch_bundle(client: Client, config: ConfigWire, bundle: bytes) -> Written:
    """Only ``caBundle`` of every hook, on exactly the version that was read (409 when somebody was faster)."""
    text = base64.b64encode(bundle).decode()
    body = {
        "metadata": {"resourceVersion": config.metadata.resource_version},
        "webhooks": [{"name": hook.name, "clientConfig": {"caBundle": text}} for hook in config.webhooks or ()],
    }
    query = {"fieldManager": FIELD_MANAGER}
    return client.write("PATCH", f"{PATH}/{NAME}", body, content_type=STRATEGIC_PATCH, query=query)


def _decode(text: str | None) -> bytes:
    try:
        return base64.b64decode(text or "", validate=True)
    except ValueError:
        return b""
