"""The chart rendered over several value files: names, labels, rights, security, switches, notes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from defragd.cli.commands.run import command as run_command
from defragd.policy.load import load_policies
from defragd.settings import load_settings
from tests.ground import build, chart

# Needs Helm, which is built once into a cache as the control plane is.
pytestmark = pytest.mark.controlplane

HERE = Path(__file__).parent
CHART = HERE.parents[1] / "chart"
FILES = ("defaults", "everything", "cert-manager", "small-1.24")
KUBE = {"small-1.24": "1.24.0"}
CLUSTER_KINDS = {"ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition", "MutatingWebhookConfiguration"}
Object = dict[str, Any]


def helm(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    run = subprocess.run([str(build.helm()), *arguments], capture_output=True, text=True, timeout=60)
    assert not check or run.returncode == 0, run.stderr
    return run


def template(name: str, *settings: str, kube: str = "") -> list[Object]:
    more = [word for setting in settings for word in ("--set", setting)]
    version = ["--kube-version", kube or KUBE.get(name, "1.31.0")]
    values = ["-f", str(HERE / "values" / f"{name}.yaml")]
    run = helm("template", "gpu-descheduler", str(CHART), "-n", "kube-system", *values, *version, *more)
    return [body for body in yaml.safe_load_all(run.stdout) if body]


@pytest.fixture(scope="module", params=FILES)
def rendered(request: pytest.FixtureRequest) -> tuple[str, list[Object]]:
    return request.param, template(request.param)


def only(objects: list[Object], kind: str, suffix: str = "") -> Object:
    found = [o for o in objects if o["kind"] == kind and o["metadata"]["name"].endswith(suffix)]
    assert len(found) == 1, [o["metadata"]["name"] for o in found]
    return found[0]


def kinds(objects: list[Object]) -> set[str]:
    return {o["kind"] for o in objects}


def pod_of(objects: list[Object]) -> Object:
    pod: Object = only(objects, "Deployment")["spec"]["template"]
    return pod


# -- form --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FILES)
def test_lint_is_clean(name: str) -> None:
    helm("lint", str(CHART), "--strict", "-f", str(HERE / "values" / f"{name}.yaml"))


def test_objects_are_named_once_and_labelled(rendered: tuple[str, list[Object]]) -> None:
    _, objects = rendered
    keys = [(o["kind"], o["metadata"].get("namespace"), o["metadata"]["name"]) for o in objects]
    assert len(set(keys)) == len(keys)
    for body in objects:
        if body["metadata"]["name"].endswith("-extra"):
            continue
        labels = body["metadata"]["labels"]
        assert labels["app.kubernetes.io/name"] == "gpu-descheduler"
        assert labels["app.kubernetes.io/instance"] == "gpu-descheduler"
        assert labels["app.kubernetes.io/managed-by"] == "Helm"
        assert labels["helm.sh/chart"].startswith("gpu-descheduler-")
        assert (body["kind"] in CLUSTER_KINDS) == ("namespace" not in body["metadata"])


def test_common_labels_reach_every_object() -> None:
    objects = [o for o in template("everything") if not o["metadata"]["name"].endswith("-extra")]
    assert {o["metadata"]["labels"].get("team") for o in objects} == {"gpu"}
    assert only(objects, "ServiceMonitor")["metadata"]["labels"]["release"] == "prometheus"


def test_selectors_do_not_depend_on_values_that_people_change() -> None:
    def selector(objects: list[Object]) -> Any:
        return only(objects, "Deployment")["spec"]["selector"]

    plain = template("defaults")
    assert selector(plain) == selector(template("everything"))
    labels = pod_of(plain)["metadata"]["labels"]
    assert selector(plain)["matchLabels"].items() <= labels.items()
    assert labels["app"] == "gpu-descheduler-webhook"


@pytest.mark.parametrize(
    ("setting", "place"),
    [
        ("replicaCounts=2", "replicaCounts"),
        ("image.repo=x", "/image"),
        ("webhook.certManager.enable=true", "/webhook/certManager"),
        ("api.service.kind=x", "/api/service"),
        ("mode=Auto", "/mode"),
        ("replicaCount=two", "/replicaCount"),
        ("api.reads=Closed", "/api/reads"),
        ("policies.x=1", "/policies/x"),
        ("networkPolicy.apiServerPorts={0}", "/networkPolicy/apiServerPorts/0"),
    ],
)
def test_wrong_values_are_refused_with_their_place(setting: str, place: str) -> None:
    run = helm("template", "x", str(CHART), "--set", setting, check=False)
    assert run.returncode != 0 and place in run.stderr, run.stderr


def test_derived_files_are_current() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "tests.chart.generate", "--check"], capture_output=True, text=True, cwd=CHART.parent
    )
    assert run.returncode == 0, run.stdout


def test_version_is_the_packages() -> None:
    from defragd import __version__

    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == __version__


# -- rights ------------------------------------------------------------------------------------------------------------


def test_rights_are_narrow() -> None:
    objects = template("defaults")
    rules = [(o, rule) for o in objects if o["kind"] in ("Role", "ClusterRole") for rule in o["rules"]]
    for _, rule in rules:
        assert not any("*" in rule[part] for part in ("apiGroups", "resources", "verbs"))
        assert rule["resources"] and rule["verbs"]
    daemon = [rule for o, rule in rules if not o["metadata"]["name"].endswith(("-view", "-edit"))]
    for rule in daemon:
        if {"pods", "pods/eviction", "pods/binding", "nodes"} & set(rule["resources"]):
            assert set(rule["verbs"]) <= {"get", "list", "watch", "patch", "create"}
            assert rule["resources"] == ["pods/eviction"] or "create" not in rule["verbs"]
        assert not {"impersonate", "escalate", "bind", "deletecollection"} & set(rule["verbs"])
        if "secrets" in rule["resources"]:
            assert rule.get("resourceNames") or rule["verbs"] == ["create"]
    secrets = [o["kind"] for o, rule in rules if "secrets" in rule["resources"]]
    assert set(secrets) == {"Role"}, "Secrets of one namespace only"


def test_scaling_is_granted_only_when_surges_are_wanted() -> None:
    def scaling(*settings: str) -> list[dict[str, Any]]:
        roles = [body for body in chart.render(*settings) if body["kind"] == "ClusterRole"]
        return [rule for role in roles for rule in role.get("rules", ()) if "deployments/scale" in rule["resources"]]

    assert scaling() == []
    (rule,) = scaling("surge.enabled=true")
    assert (rule["verbs"], rule["resources"]) == (["patch"], ["deployments/scale"])


def test_nodes_are_written_only_when_devices_may_be_cordoned() -> None:
    def nodes(*settings: str) -> list[list[str]]:
        roles = [body for body in chart.render(*settings) if body["kind"] == "ClusterRole"]
        rules = [rule for role in roles for rule in role.get("rules", ()) if "nodes" in rule["resources"]]
        return [rule["verbs"] for rule in rules if set(rule["verbs"]) - {"get", "list", "watch"}]

    assert nodes() == []
    assert nodes("rbac.cordonDevices=true") == [["patch"]]


def test_people_get_rights_through_the_built_in_roles() -> None:
    objects = template("defaults")
    for role, verbs in (("view", {"get", "list", "watch"}), ("edit", {"create", "update", "patch", "delete"})):
        found = only(objects, "ClusterRole", f"-{role}")
        assert found["metadata"]["labels"][f"rbac.authorization.k8s.io/aggregate-to-{role}"] == "true"
        assert verbs <= set(found["rules"][0]["verbs"])


# -- pods --------------------------------------------------------------------------------------------------------------


def test_pods_are_restricted(rendered: tuple[str, list[Object]]) -> None:
    spec = pod_of(rendered[1])["spec"]
    outer = spec["securityContext"]
    assert outer["runAsNonRoot"] and outer["runAsUser"] == 65532
    assert outer["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not any(spec.get(key) for key in ("hostNetwork", "hostPID", "hostIPC"))
    ours = spec["containers"][0]
    assert ours["securityContext"] == {
        "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
    }  # fmt: skip
    assert all(set(v) - {"name"} <= {"configMap", "emptyDir", "secret", "projected"} for v in spec["volumes"])
    assert {m["name"] for m in ours["volumeMounts"]} <= {v["name"] for v in spec["volumes"]}


def test_probes_ports_and_services_agree(rendered: tuple[str, list[Object]]) -> None:
    _, objects = rendered
    container = pod_of(objects)["spec"]["containers"][0]
    ports = {p["name"]: p["containerPort"] for p in container["ports"]}
    assert f"--api-address=0.0.0.0:{ports['api']}" in container["args"]
    assert f"--webhook-address=0.0.0.0:{ports['webhook']}" in container["args"]
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"]["port"] in ports
    for service in (o for o in objects if o["kind"] == "Service"):
        assert {p["targetPort"] for p in service["spec"]["ports"]} <= set(ports)
    hook = only(objects, "MutatingWebhookConfiguration")["webhooks"][0]
    service = only(objects, "Service", "-webhook")
    assert hook["clientConfig"]["service"]["name"] == service["metadata"]["name"]
    env = {e["name"]: e.get("value") for e in container["env"]}
    assert env["WEBHOOK_SERVICE"] == service["metadata"]["name"]


def test_the_daemon_accepts_what_the_chart_gives_it(rendered: tuple[str, list[Object]], tmp_path: Path) -> None:
    name, objects = rendered
    text = only(objects, "ConfigMap", "-config")["data"]["config.yaml"]
    (tmp_path / "config.yaml").write_text(text)
    settings = load_settings(str(tmp_path / "config.yaml"))
    assert settings.mode == ("DryRun" if name == "everything" else "Policy")
    assert settings.certificates.managed == (name != "cert-manager")
    assert settings.api.writes == (name != "small-1.24")
    assert settings.api.reads == ("Authorized" if name == "everything" else "Open")
    known = {option for p in run_command.params for option in p.opts}
    args = pod_of(objects)["spec"]["containers"][0]["args"]
    assert args[0] == "run" and {a.split("=")[0] for a in args[1:]} <= known
    policies = [o for o in objects if o["kind"] == "ConfigMap" and o["metadata"]["name"].endswith("-policies")]
    assert len(policies) == (0 if name == "cert-manager" else 1)
    for file, policy in (policies[0]["data"] if policies else {}).items():
        (tmp_path / file).write_text(policy)
        found = load_policies(tmp_path / file)
        assert not found.errors and len(found.policies) == 1
        assert found.policies[0].name == ("weekly" if name == "everything" else "nightly-consolidation")


def test_replicas_survive_a_drain() -> None:
    objects = template("defaults")
    assert only(objects, "PodDisruptionBudget")["spec"]["maxUnavailable"] == 1
    spread = pod_of(objects)["spec"]["topologySpreadConstraints"][0]
    assert spread["topologyKey"] == "kubernetes.io/hostname" and spread["whenUnsatisfiable"] == "ScheduleAnyway"
    assert only(objects, "Deployment")["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    assert "PodDisruptionBudget" not in kinds(template("small-1.24"))


def test_a_changed_configuration_rolls_the_pods_and_changed_policies_do_not() -> None:
    def stamp(*settings: str) -> str:
        return str(pod_of(template("defaults", *settings))["metadata"]["annotations"]["checksum/config"])

    assert stamp() != stamp("config.logFormat=json") != stamp("mode=DryRun")
    assert stamp() == stamp("policies.nightly-consolidation.spec.mode=Auto"), "policies are reloaded live"


# -- switches ----------------------------------------------------------------------------------------------------------


def test_crds_are_the_repositorys_and_stay() -> None:
    crds = [o for o in template("defaults") if o["kind"] == "CustomResourceDefinition"]
    assert len(crds) == 2
    for crd in crds:
        assert crd["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
        source = yaml.safe_load((CHART.parent / "crds" / f"{crd['spec']['names']['plural']}.yaml").read_text())
        assert crd["spec"] == source["spec"]
    loose = [o for o in template("cert-manager") if o["kind"] == "CustomResourceDefinition"]
    assert all("helm.sh/resource-policy" not in (o["metadata"].get("annotations") or {}) for o in loose)
    assert "CustomResourceDefinition" not in kinds(template("small-1.24"))


def test_monitoring_is_off_and_comes_on() -> None:
    extra = {"ServiceMonitor", "PodMonitor", "PrometheusRule", "NetworkPolicy", "Certificate", "Issuer"}
    assert not extra & kinds(template("defaults"))
    objects = template("everything")
    assert extra - {"Certificate", "Issuer"} <= kinds(objects)
    rules = only(objects, "PrometheusRule")["spec"]["groups"]
    alerts = [rule for group in rules for rule in group["rules"]]
    assert alerts
    assert all(a["annotations"]["runbook_url"].startswith("https://wiki.example/defragd#defragd") for a in alerts)
    source = yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())
    assert [r["expr"] for r in alerts] == [r["expr"] for g in source["groups"] for r in g["rules"]]
    board = only(objects, "ConfigMap", "-dashboard")
    assert board["metadata"]["labels"]["grafana_dashboard"] == "1" and board["metadata"]["annotations"] == {
        "folder": "gpu"
    }
    assert board["data"]["defragd.json"].strip() == (CHART / "files" / "dashboard.json").read_text().strip()


def test_network_policy_lets_the_api_server_in_and_us_to_it() -> None:
    objects = template("everything")
    policy = only(objects, "NetworkPolicy")["spec"]
    ports = {p["name"] for p in pod_of(objects)["spec"]["containers"][0]["ports"]}
    webhook, api = policy["ingress"]
    assert webhook == {"ports": [{"port": "webhook", "protocol": "TCP"}]} and "webhook" in ports
    assert api["from"] == [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}]
    egress = {(p["port"], p["protocol"]) for rule in policy["egress"] for p in rule["ports"]}
    assert egress == {(53, "UDP"), (53, "TCP"), (6444, "TCP"), (31993, "TCP")}
    assert policy["podSelector"] == only(objects, "Deployment")["spec"]["selector"]


def test_cert_manager_makes_the_secret_the_daemon_reads() -> None:
    objects = template("cert-manager")
    certificate = only(objects, "Certificate")
    hook = only(objects, "MutatingWebhookConfiguration")
    name = f"kube-system/{certificate['metadata']['name']}"
    assert hook["metadata"]["annotations"]["cert-manager.io/inject-ca-from"] == name
    assert certificate["spec"]["secretName"] == "gpu-descheduler-webhook-tls"
    service = only(objects, "Service", "-webhook")["metadata"]["name"]
    assert f"{service}.kube-system.svc" in certificate["spec"]["dnsNames"]
    assert certificate["spec"]["issuerRef"] == {"kind": "Issuer", "name": only(objects, "Issuer")["metadata"]["name"]}
    assert "namespaceSelector" not in hook["webhooks"][0]


def test_the_webhook_never_stands_in_anybodys_way(rendered: tuple[str, list[Object]]) -> None:
    name, objects = rendered
    hook = only(objects, "MutatingWebhookConfiguration")["webhooks"][0]
    assert (hook["failurePolicy"], hook["sideEffects"], hook["reinvocationPolicy"]) == (
        "Ignore", "NoneOnDryRun", "IfNeeded",
    )  # fmt: skip
    assert 1 <= hook["timeoutSeconds"] <= 3 and hook["admissionReviewVersions"] == ["v1"]
    if name != "cert-manager":
        away = hook["namespaceSelector"]["matchExpressions"][1]["values"]
        assert "kube-system" in away and len(set(away)) == len(away)


def test_old_clusters_get_no_newer_fields() -> None:
    old, new = template("defaults", kube="1.24.0"), template("defaults", kube="1.37.0")
    assert "matchConditions" not in only(old, "MutatingWebhookConfiguration")["webhooks"][0]
    assert "unhealthyPodEvictionPolicy" not in only(old, "PodDisruptionBudget")["spec"]
    assert only(new, "MutatingWebhookConfiguration")["webhooks"][0]["matchConditions"][0]["name"] == "unbound"
    assert only(new, "PodDisruptionBudget")["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
    refused = helm("template", "x", str(CHART), "--kube-version", "1.23.0", check=False)
    assert refused.returncode != 0 and "1.24" in refused.stderr


def test_extra_objects_are_templates() -> None:
    assert only(template("everything"), "ConfigMap", "-extra")["metadata"]["name"] == "gpu-descheduler-extra"
    spec = pod_of(template("everything"))["spec"]
    assert [c["name"] for c in spec["initContainers"]] == ["plugins"]
    assert [c["name"] for c in spec["containers"]] == ["defragd", "side"]
    assert pod_of(template("defaults", "hostNetwork=true"))["spec"]["dnsPolicy"] == "ClusterFirstWithHostNet"


# -- notes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ([], "Nothing is moved: every policy is in dry run."),
        (["policies.nightly-consolidation.spec.mode=Auto"], "These policies MOVE PODS: nightly-consolidation (Auto)."),
        (["policies.nightly-consolidation.spec.mode=Auto", "mode=DryRun"], "Nothing is moved: mode=DryRun."),
        (["existingPoliciesConfigMap=mine"], "Policies come from ConfigMap mine"),
    ],
)
def test_notes_tell_whether_pods_are_moved(settings: list[str], says: str) -> None:
    more = [word for setting in settings for word in ("--set", setting)]
    run = helm("install", "gpu-descheduler", str(CHART), "-n", "gpu", "--dry-run=client", *more)
    notes = run.stdout.partition("NOTES:")[2]
    assert says in notes
    assert ("MOVE PODS" in notes) == ("MOVE PODS" in says)
    assert "kubectl annotate namespace gpu defragd.io/paused=" in notes and "get defragruns" in notes
