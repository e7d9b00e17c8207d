"""What HAMi's scheduler Deployment says: version and flags, in the forms that charts and hands write them."""

from __future__ import annotations

from typing import Any

import pytest

from defragd.hami.config import HamiConfig
from defragd.hami.installation import flags, with_deployments
from defragd.hami.translate import assemble


def deployment(*words: str, image: str = "projecthami/hami:v2.9.0", field: str = "command") -> dict[str, Any]:
    kube = {"image": "registry.example/kube-scheduler:v1.31.0", "command": ["kube-scheduler", "--config=/config"]}
    ours = {"image": image, field: ["scheduler", "--device-config-file=/device-config.yaml", *words]}
    return {"spec": {"template": {"spec": {"containers": [kube, ours]}}}}


@pytest.mark.parametrize(
    ("words", "node", "device"),
    [
        ((), "binpack", "spread"),
        (("--node-scheduler-policy=spread", "--gpu-scheduler-policy=binpack"), "spread", "binpack"),
        (("--node-scheduler-policy", "spread", "--gpu-scheduler-policy", "mutex,binpack"), "spread", "mutex,binpack"),
        (("-node-scheduler-policy=spread --leader-elect",), "spread", "spread"),
    ],
)
def test_policies_by_flag(words: tuple[str, ...], node: str, device: str) -> None:
    for field in ("command", "args"):
        config = with_deployments(HamiConfig(), [{}, deployment(*words, field=field)])
        assert (config.node_policy, config.device_policy, config.version) == (node, device, "2.9")
        snapshot = assemble(nodes={}, pods={}, config=config)
        assert (snapshot.node_policy, snapshot.device_policy) == (node, device)


def test_flags_without_a_value() -> None:
    found = flags(deployment("--leader-elect", "--scheduler-name=gpu", "-v=4"))
    assert found == {
        "device-config-file": "/device-config.yaml",
        "leader-elect": "true",
        "scheduler-name": "gpu",
        "v": "4",
    }


def test_what_cannot_be_told_stays() -> None:
    config = HamiConfig()
    assert with_deployments(config, [{}, {"spec": {"template": {"spec": {"containers": [{"name": "x"}]}}}}]) is config
    found = with_deployments(config, [deployment("--force-overwrite-default-scheduler=false", image="hami:latest")])
    assert found.version == "2.10"
    assert not found.overwrite_default_scheduler
