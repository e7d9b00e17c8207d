"""Settings: which source wins, and what wrong values say."""

from __future__ import annotations

from datetime import timedelta

import pytest

from defragd.errors import ConfigError
from defragd.settings import Settings, load_settings, split_address


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    import os

    for name in list(os.environ):
        if name.startswith("DEFRAGD_"):
            monkeypatch.delenv(name)


def test_defaults_file_environment_flags_in_this_order(tmp_path, monkeypatch):
    path = tmp_path / "c.yaml"
    assert load_settings().api.address == "0.0.0.0:8083"
    path.write_text("api: {address: ':1', writes: false}\nplanner: {timeLimit: 45s}\n")
    assert load_settings(str(path)).api.address == "0.0.0.0:1"
    monkeypatch.setenv("DEFRAGD_API__ADDRESS", ":2")
    found = load_settings(str(path))
    assert (found.api.address, found.api.writes) == ("0.0.0.0:2", False)
    found = load_settings(str(path), {"api": {"address": ":3"}, "debug": None})
    assert (found.api.address, found.api.writes, found.debug) == ("0.0.0.0:3", False, False)
    assert found.planner.time_limit == timedelta(seconds=45)
    assert load_settings().planner.time_limit == timedelta(seconds=30)


def test_the_charts_configuration_is_taken(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(
        "apiVersion: config.defragd/v1\nkind: Configuration\nmode: DryRun\napi: {writes: true}\ncaps:\n"
        "certificates: {managed: false}\nhami: {namespace: kube-system, deviceConfigMap: hami-scheduler-device}\n"
        "defaults: {budgets: {perWorkload: 2}}\n"
    )
    found = load_settings(str(path))
    assert (found.mode, found.certificates.managed, found.hami.device_config_map) == (
        "DryRun",
        False,
        "hami-scheduler-device",
    )
    assert found.defaults == {"budgets": {"perWorkload": 2}}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("api:\n  adress: ':1'\n", ':2:3: api.adress: unknown field, did you mean "address"?'),
        ("polices: x\n", ':1:1: polices: unknown field, did you mean "policies"?'),
        ("api: {address: here}\n", '"here" is no address'),
        ("api: {address: 'h:70000'}\n", "is no address"),
        ("api: {address: 'a b:80'}\n", "no host name"),
        ("webhook: {url: 'http://x/mutate'}\n", "no https:// address"),
        ("caps: {total: 0}\n", "caps.total: must be greater than or equal to 1"),
        ("planner: {timeLimit: 5}\n", "with a unit"),
        ("planner: {timeLimit: soon}\n", '"soon" is no duration'),
        ("mode: auto\n", "must be 'Policy' or 'DryRun'"),
        ("namespace: Kube_System\n", "is no namespace name"),
        ("api: 5\n", "api: "),
        ("- a\n", "the configuration is an object"),
        ("a: [\n", "not readable as YAML"),
        ("debug: true\ndebug: false\n", ":2:1: debug appears twice"),
        ("kind: Deployment\n", "kind must be Configuration"),
    ],
)
def test_wrong_files(tmp_path, text, says):
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_settings(str(path))
    assert says in str(caught.value) and str(caught.value).startswith(str(path))


def test_the_place_of_an_error_is_the_variable_or_the_flag(monkeypatch):
    monkeypatch.setenv("DEFRAGD_CAPS__PER_DAY", "-1")
    with pytest.raises(ConfigError, match=r"^DEFRAGD_CAPS__PER_DAY: must be"):
        load_settings()
    monkeypatch.delenv("DEFRAGD_CAPS__PER_DAY")
    with pytest.raises(ConfigError, match=r"^--webhook-url: "):
        load_settings(None, {"webhook": {"url": "ftp://x"}})
    monkeypatch.setenv("DEFRAGD_CAPS", "no json")
    with pytest.raises(ConfigError, match=r"^environment: "):
        load_settings()
    with pytest.raises(ConfigError, match="cannot be read"):
        load_settings("/nowhere/c.yaml")


def test_variables_that_kubernetes_sets_for_services_do_not_matter(monkeypatch):
    monkeypatch.setenv("DEFRAGD_PORT", "tcp://10.0.0.1:8083")
    monkeypatch.setenv("DEFRAGD_SERVICE_HOST", "10.0.0.1")
    assert load_settings() == Settings()


def test_redacted_shows_everything_but_credentials():
    shown = load_settings(None, {"webhook": {"url": "https://me:secret@host:8443/mutate"}}).redacted()
    assert shown["webhook"]["url"] == "https://***@host:8443/mutate"
    assert shown["planner"]["timeLimit"] == "30s" and "leaderElect" in shown


def test_addresses_split():
    assert split_address("0.0.0.0:8083") == ("0.0.0.0", 8083)
    assert split_address("[::1]:0") == ("::1", 0)
