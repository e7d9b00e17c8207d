"""Writes what is derived in the chart: values.schema.json, the table in README.md, the dashboard, the policy
reference, and the copies of the CRDs.

    python -m tests.chart.generate [--check]

Types come from the defaults in values.yaml; OPEN names the objects whose keys are the user's, KINDS what a default
cannot tell. `--check` changes nothing and exits 1 when a file is out of date.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import yaml

from tests.chart import dashboard, policy_reference

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "chart"

OPEN = {
    "config", "policies", "serviceAccount.annotations", "api.service.annotations", "resources", "nodeSelector",
    "affinity", "commonLabels", "podAnnotations", "podLabels", "serviceMonitor.labels", "podMonitor.labels",
    "prometheusRule.labels", "dashboard.annotations", "webhook.certManager.issuerRef",
}  # fmt: skip

STRING_MAP = {"type": "object", "additionalProperties": {"type": "string"}}
KINDS: dict[str, dict[str, Any]] = {
    "api.reads": {"enum": ["Open", "Authorized"]},
    "replicaCount": {"type": "integer", "minimum": 0, "maximum": 20},
    "image.pullPolicy": {"enum": ["Always", "IfNotPresent", "Never"]},
    "mode": {"enum": ["DryRun", "Policy"]},
    "webhook.port": {"type": "integer", "minimum": 1, "maximum": 65535},
    "api.port": {"type": "integer", "minimum": 1, "maximum": 65535},
    "webhook.timeoutSeconds": {"type": "integer", "minimum": 1, "maximum": 10},
    "api.service.type": {"enum": ["ClusterIP", "NodePort", "LoadBalancer"]},
    "podDisruptionBudget.maxUnavailable": {"type": ["integer", "string"]},
    "terminationGracePeriodSeconds": {"type": "integer", "minimum": 10, "maximum": 3600},
    "imagePullSecrets": {"type": "array", "items": {"type": "object"}},
    "webhook.excludeNamespaces": {"type": "array", "items": {"type": "string"}},
    "networkPolicy.apiServerPorts": {"type": "array", "items": {"type": "integer", "minimum": 1, "maximum": 65535}},
    "extraArgs": {"type": "array", "items": {"type": "string"}},
    "policies": {"type": "object", "additionalProperties": {"type": ["object", "null"]}},
    "commonLabels": STRING_MAP,
    "podAnnotations": STRING_MAP,
    "podLabels": STRING_MAP,
    "nodeSelector": STRING_MAP,
}


def schema_of(value: Any, path: str, docs: dict[str, str]) -> dict[str, Any]:
    """The JSON Schema of one value, from its default; objects are closed unless OPEN says otherwise."""
    out: dict[str, Any] = {"description": docs[path]} if path in docs else {}
    if path in KINDS:
        return out | KINDS[path]
    if isinstance(value, dict):
        out["type"] = "object"
        if path not in OPEN:
            out["additionalProperties"] = False
            out["properties"] = {
                key: schema_of(item, f"{path}.{key}" if path else key, docs) for key, item in value.items()
            }
        return out
    kinds = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array"}
    return out | {"type": kinds[type(value)]}


def documented(text: str) -> dict[str, str]:
    """`# -- sentence` above a key documents it: {dotted path: sentence}."""
    docs: dict[str, str] = {}
    stack: list[tuple[int, str]] = []
    pending: list[str] = []
    for line in text.splitlines():
        stripped = line.strip()
        if stripped.startswith("# -- "):
            pending = [stripped[5:]]
        elif stripped.startswith("#") and pending:
            pending.append(stripped[1:].strip())
        elif match := re.match(r"^( *)([A-Za-z][\w-]*):", line):
            indent = len(match[1])
            while stack and stack[-1][0] >= indent:
                stack.pop()
            stack.append((indent, match[2]))
            if pending:
                docs[".".join(key for _, key in stack)] = " ".join(pending)
            pending = []
        else:
            pending = []
    return docs


def rows(value: Any, path: str, docs: dict[str, str]) -> list[str]:
    """Table rows of every documented value, in the order of the file."""
    out: list[str] = []
    if path in docs:
        default = json.dumps(value) if path != "policies" else "one nightly dry run"
        out.append(f"| `{path}` | `{default}` | {docs[path]} |")
    if isinstance(value, dict) and path not in OPEN:
        for key, item in value.items():
            out += rows(item, f"{path}.{key}" if path else key, docs)
    return out


def files() -> dict[Path, str]:
    """Every derived file and what it must contain."""
    text = (CHART / "values.yaml").read_text()
    values, docs = yaml.safe_load(text), documented(text)
    schema = {"$schema": "https://json-schema.org/draft-07/schema#", "title": "Values of the gpu-descheduler chart"}
    schema |= schema_of(values, "", docs)
    schema["properties"]["global"] = {"type": "object", "description": "Set by parent charts."}
    table = "\n".join(["| value | default | what |", "|---|---|---|", *rows(values, "", docs)])
    readme = (CHART / "README.md").read_text()
    begin, end = "<!-- values: begin -->", "<!-- values: end -->"
    head, rest = readme.split(begin)
    readme = f"{head}{begin}\n{table}\n{end}{rest.split(end)[1]}"
    out = {
        CHART / "values.schema.json": json.dumps(schema, indent=2) + "\n",
        CHART / "README.md": readme,
    }
    out[CHART / "files" / "dashboard.json"] = dashboard.text()
    out[CHART / "docs" / "policies.md"] = policy_reference.text()
    for crd in sorted((ROOT / "crds").glob("*.yaml")):
        out[CHART / "files" / "crds" / crd.name] = crd.read_text()
    return out


def main(arguments: list[str]) -> int:
    stale = [path for path, text in files().items() if not path.exists() or path.read_text() != text]
    for path in stale:
        print(f"{path.relative_to(ROOT)}: out of date, run `python -m tests.chart.generate`")
        if "--check" not in arguments:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(files()[path])
    return int(bool(stale) and "--check" in arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
