"""Which HAMi runs, told by what it writes; what is not possible with an old one is said."""

from __future__ import annotations

import pytest

from defragd.hami.version import guess_version, handshake, scheduler_image, shortcomings, version_of

REGISTER = "hami.io/node-nvidia-register"
ALLOCATED = "hami.io/vgpu-devices-allocated"


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("v2.10.0", (2, 10)),
        ("projecthami/hami:v2.7.1", (2, 7)),
        ("registry:5000/hami:v2.9.0-rc1", (2, 9)),
        ("2.8", (2, 8)),
        ("<=2.7", (2, 7)),
        ("latest", (0, 0)),
        ("", (0, 0)),
    ],
)
def test_version_of(text, version) -> None:
    assert version_of(text) == version


@pytest.mark.parametrize(
    ("nodes", "pods", "image", "version"),
    [
        ([{REGISTER: '[{"migProfiles":[]}]'}], [], "", "2.10"),
        ([{REGISTER: '[{"id":"a"}]'}], [], "", ">=2.8"),
        ([{REGISTER: "a,1,1,1,NVIDIA,0,true:"}], [], "", "<=2.7"),
        ([{}], [{"hami.io/vgpu-mig-allocations": "[]"}], "", "2.10"),
        ([{REGISTER: "[]"}], [{ALLOCATED: "GPU-a[1-0],NVIDIA,1,1:;"}], "", "2.8-2.9"),
        ([{}], [], "", ""),
        ([{REGISTER: '[{"id":"a"}]'}], [], "projecthami/hami:v2.9.0", "2.9"),
    ],
)
def test_guess(nodes, pods, image, version) -> None:
    assert guess_version(nodes, pods, image) == version


def test_old_versions_have_named_shortcomings() -> None:
    assert shortcomings("2.10") == shortcomings("") == shortcomings(">=2.8") == ()
    assert any("nouse" in line for line in shortcomings("2.9"))
    assert any("text" in line for line in shortcomings("<=2.7"))


def test_handshake() -> None:
    assert handshake("Requesting_2026-01-01 00:00:00") == ("requesting", "2026-01-01 00:00:00")
    assert handshake("Deleted_2026-01-01 00:00:00")[0] == "deleted"
    assert handshake(None) == ("absent", "")
    assert handshake("?") == ("other", "?")


def test_image_of_the_scheduler() -> None:
    images = ("registry.example/kube-scheduler:v1.31", "registry.example/projecthami/hami:v2.10.0")
    containers = [{"image": image} for image in images]
    deployment = {"spec": {"template": {"spec": {"containers": containers}}}}
    assert scheduler_image(deployment) == "registry.example/projecthami/hami:v2.10.0"
    assert scheduler_image({}) == ""
