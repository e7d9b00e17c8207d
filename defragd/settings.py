"""The daemon's configuration: defaults < YAML file (``--config``) < environment ``DEFRAGD_*`` < flags.

Nested names use ``__`` in the environment (``DEFRAGD_API__ADDRESS``). Unknown keys of the file are errors with line and
nearest name. `Settings.redacted` is what is logged once at start and shown by the API. ``defaults`` and ``caps`` are
the installation's word over all policies: what they get where they say nothing, and what none may exceed.
"""

from __future__ import annotations

import difflib
import ipaddress
import os
import re
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal
from urllib.parse import urlsplit, urlunsplit

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, ValidationError, field_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict
from pydantic_settings.exceptions import SettingsError

from defragd.core.duration import format_duration, parse_duration
from defragd.errors import ConfigError

API_VERSION = "config.defragd/v1"
KIND = "Configuration"
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", re.ASCII)


def _duration(value: Any) -> timedelta:
    if isinstance(value, timedelta):
        return value
    if not isinstance(value, str):
        raise ValueError(f"a duration with a unit is expected, such as {value}s")
    return parse_duration(value)


def _address(value: Any) -> str:
    """``HOST:PORT`` or ``:PORT``; IPv6 in brackets. Port 0 means any free one (tests)."""
    if not isinstance(value, str):
        raise ValueError("an address HOST:PORT is expected, such as 0.0.0.0:8083")
    host, colon, port = value.strip().rpartition(":")
    if not colon or not (port.isascii() and port.isdigit() and int(port) <= 65535):
        raise ValueError(f'"{value[:60]}" is no address; write HOST:PORT, such as 0.0.0.0:8083')
    if host.startswith("["):
        try:
            ipaddress.IPv6Address(host.strip("[]"))
        except ValueError:
            raise ValueError(f'"{host[:60]}" is no IPv6 address') from None
    elif not re.fullmatch(r"[A-Za-z0-9.\-]*", host):
        raise ValueError(f'"{host[:60]}" is no host name or address (IPv6 goes into brackets)')
    return f"{host or '0.0.0.0'}:{port}"


Duration = Annotated[timedelta, BeforeValidator(_duration), PlainSerializer(format_duration, return_type=str)]
Address = Annotated[str, BeforeValidator(_address)]
Count = Annotated[int, Field(ge=1, le=1_000_000)]


def split_address(address: str) -> tuple[str, int]:
    """("host", port) of a checked address; brackets of IPv6 are taken off."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


class _Group(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class ApiSettings(_Group):
    """Plain HTTP: API, UI, metrics, health."""

    address: Address = "0.0.0.0:8083"
    """Where to listen."""
    writes: bool = True
    """Offer plan, approve, pause and cancel; each call is authorised by Kubernetes."""
    reads: Literal["Open", "Authorized"] = "Open"
    """Who may read API and UI: everybody who reaches the port, or whoever may list defragruns (by their token)."""


class WebhookSettings(_Group):
    """HTTPS, ``/mutate`` only."""

    address: Address = "0.0.0.0:8443"
    """Where to listen."""
    url: str | None = None
    """Out of a cluster: the one address of all replicas; the daemon registers its own webhook configuration with it."""
    mode: Literal["auto", "gate", "pin"] = "auto"
    """auto: scheduling gates where the API server has them, else pinning at admission."""

    @field_validator("url")
    @classmethod
    def _is_https(cls, value: str | None) -> str | None:
        if value is not None:
            parts = urlsplit(value)
            if parts.scheme != "https" or not parts.hostname:
                raise ValueError(f'"{value[:80]}" is no https:// address, such as https://10.0.0.5:8443/mutate')
        return value


class CertificateSettings(_Group):
    """The webhook's certificate."""

    managed: bool = True
    """We make and rotate it; false: somebody else (cert-manager) fills the Secret."""


class HamiSettings(_Group):
    """Where HAMi's own configuration and metrics are."""

    namespace: str = "kube-system"
    """Namespace of HAMi's scheduler."""
    device_config_map: str = "hami-scheduler-device"
    """ConfigMap with HAMi's device-config.yaml."""
    metrics: str | None = None
    """URL or file with the metrics of HAMi's scheduler, to cross-check the books. None: not checked."""
    metrics_every: Duration = timedelta(seconds=15)
    """How often they are read."""
    metrics_grace: Duration = timedelta(seconds=60)
    """How long they may differ from the pods' annotations before a device is distrusted; HAMi's figures lag by 15 s."""


class PlannerSettings(_Group):
    """The child process that plans."""

    time_limit: Duration = timedelta(seconds=30)
    """Wall time of one plan; the best plan so far counts."""
    max_data_age: Duration = timedelta(seconds=90)
    """Older data lead to no plan and no eviction."""


class CapSettings(_Group):
    """Hard caps over all policies; null: not capped."""

    total: Count | None = None
    """Moves of one run."""
    concurrent: Count | None = None
    """Moves in flight."""
    per_day: Count | None = None
    """Moves in any 24 hours."""
    per_workload: Count | None = None
    """Moves in flight of one workload."""
    per_source_node: Count | None = None
    """Moves in flight from one node."""
    per_namespace: Count | None = None
    """Moves in flight in one namespace."""
    modes: list[Literal["DryRun", "Approve", "Auto"]] = ["DryRun", "Approve", "Auto"]
    """Modes that policies may use."""


class Settings(BaseSettings):
    """Everything that `defragd run` can be told."""

    model_config = SettingsConfigDict(
        env_prefix="DEFRAGD_",
        env_nested_delimiter="__",
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
        env_ignore_empty=True,
    )
    file_values: ClassVar[dict[str, Any]] = {}

    mode: Literal["Policy", "DryRun"] = "Policy"
    """DryRun: no policy acts, whatever its own mode says. Policy: each decides."""
    kubeconfig: str | None = None
    """Kubeconfig file; None: $KUBECONFIG, the pod's own account, ~/.kube/config."""
    context: str | None = None
    """Context of the kubeconfig."""
    namespace: str = "kube-system"
    """Namespace of our own objects (Lease, Secret, runs)."""
    policies: str | None = None
    """Directory (or file) of policies."""
    leader_elect: bool = True
    """False: this process acts without a Lease; never with more than one replica."""
    debug: bool = False
    """Log at debug level."""
    log_format: Literal["auto", "json", "console"] = "auto"
    """auto: JSON unless the output is a terminal."""
    shutdown_grace: Duration = timedelta(seconds=20)
    """How long a running step may take when the daemon is stopped."""
    api: ApiSettings = Field(default_factory=ApiSettings)
    webhook: WebhookSettings = Field(default_factory=WebhookSettings)
    certificates: CertificateSettings = Field(default_factory=CertificateSettings)
    hami: HamiSettings = Field(default_factory=HamiSettings)
    planner: PlannerSettings = Field(default_factory=PlannerSettings)
    caps: CapSettings = Field(default_factory=CapSettings)
    defaults: dict[str, Any] = Field(default_factory=dict)
    """A partial policy ``spec`` that lies under every policy."""

    @field_validator("namespace")
    @classmethod
    def _is_a_namespace(cls, value: str) -> str:
        if not _LABEL.fullmatch(value):
            raise ValueError(f'"{value[:70]}" is no namespace name')
        return value

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings, env_settings, _FileSource(settings_cls))

    def redacted(self) -> dict[str, Any]:
        """The effective values as plain JSON, without credentials in URLs (keys in camelCase, as in the file)."""
        found = _camel_keys(self.model_dump(mode="json"), "defaults")
        for group, name in (("webhook", "url"), ("hami", "metrics")):
            if found[group][name]:
                found[group][name] = _without_secrets(found[group][name])
        return found


class _FileSource(PydanticBaseSettingsSource):
    """Values of the YAML file, read before (see `load_settings`)."""

    def get_field_value(self, field: Any, field_name: str) -> tuple[Any, str, bool]:
        return Settings.file_values.get(field_name), field_name, False

    def __call__(self) -> dict[str, Any]:
        return Settings.file_values


def load_settings(config: str | None = None, flags: Mapping[str, Any] | None = None) -> Settings:
    """The effective settings. ``flags`` are nested values of set flags only ({"api": {"address": ...}}).

    Raises ConfigError: one line per fault with file, line and nearest name, or the variable, or the flag.
    """
    values, places = _read_file(config) if config else ({}, {})
    given = {name: value for name, value in (flags or {}).items() if value is not None}
    Settings.file_values = values
    try:
        return Settings(**given)
    except ValidationError as error:
        lines = [_line(tuple(item["loc"]), item, config, places, given) for item in error.errors(include_url=False)]
        raise ConfigError("\n".join(lines)) from None
    except SettingsError as error:
        raise ConfigError(f"environment: {' '.join(str(error).split())}; values of groups are JSON") from None
    finally:
        Settings.file_values = {}


def _read_file(path: str) -> tuple[dict[str, Any], dict[tuple[str, ...], tuple[int, int]]]:
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        value = yaml.safe_load(text)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: is not UTF-8 text") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        line = f"{mark.line + 1}:{mark.column + 1}" if mark else "1:1"
        raise ConfigError(f"{path}:{line}: not readable as YAML: {error.problem}") from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise ConfigError(f"{path}: not readable as YAML: {' '.join(str(error).split())[:200]}") from None
    if value is None:
        return {}, {}
    if not isinstance(value, dict):
        raise ConfigError(f"{path}:1:1: the configuration is an object (name: value)")
    for name, expected in (("apiVersion", API_VERSION), ("kind", KIND)):
        if value.pop(name, expected) != expected:
            raise ConfigError(f"{path}: {name} must be {expected}")
    places: dict[tuple[str, ...], tuple[int, int]] = {}
    _walk(path, root, (), places)
    return _snake_keys(value), places


def _walk(path: str, node: Any, at: tuple[str, ...], places: dict[tuple[str, ...], tuple[int, int]]) -> None:
    if not isinstance(node, yaml.MappingNode) or len(at) > 20:
        return
    for key, value in node.value:
        here = (*at, _snake(str(key.value)))
        place = (key.start_mark.line + 1, key.start_mark.column + 1)
        if here in places:
            raise ConfigError(f"{path}:{place[0]}:{place[1]}: {key.value} appears twice; remove one of the two")
        places[here] = place
        if at or here[0] != "defaults":
            _walk(path, value, here, places)


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])([A-Z])", lambda m: f"_{m[1].lower()}", name)


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)


def _snake_keys(value: dict[Any, Any]) -> dict[str, Any]:
    out = {}
    for key, item in value.items():
        name = _snake(str(key))
        inner = _snake_keys(item) if isinstance(item, dict) and name != "defaults" else item
        # A group that is written but empty counts as absent.
        if not (item is None and name in _GROUPS):
            out[name] = inner
    return out


def _camel_keys(value: dict[str, Any], keep: str) -> dict[str, Any]:
    return {
        _camel(key): _camel_keys(item, keep) if isinstance(item, dict) and key != keep else item
        for key, item in value.items()
    }


_GROUPS = frozenset({"api", "webhook", "certificates", "hami", "planner", "caps", "defaults"})


def _line(
    loc: tuple[int | str, ...],
    item: Mapping[str, Any],
    config: str | None,
    places: Mapping[tuple[str, ...], tuple[int, int]],
    flags: Mapping[str, Any],
) -> str:
    path = tuple(str(part) for part in loc if isinstance(part, str))
    name = ".".join(_camel(part) for part in path)
    inner = (item.get("ctx") or {}).get("error")
    said = str(inner) if inner is not None else str(item["msg"]).replace("Input should be", "must be")
    said = said[:1].lower() + said[1:] if said[:1] != '"' else said
    if item["type"] == "extra_forbidden":
        said = f"unknown field{_nearest(path)}"
    variable = "DEFRAGD_" + "__".join(path).upper()
    if _has(flags, path):
        return f"--{'-'.join(path).replace('_', '-')}: {said}"
    if variable in os.environ:
        return f"{variable}: {said}"
    spot = next((places[path[:n]] for n in range(len(path), 0, -1) if path[:n] in places), None)
    where = f"{config}:{spot[0]}:{spot[1]}: " if spot and config else ""
    return f"{where}{name}: {said}"


def _has(values: Mapping[str, Any], path: tuple[str, ...]) -> bool:
    current: Any = values
    for part in path:
        if not isinstance(current, Mapping) or part not in current:
            return False
        current = current[part]
    return True


def _nearest(path: tuple[str, ...]) -> str:
    model: Any = Settings
    for part in path[:-1]:
        found = model.model_fields.get(part)
        model = found.annotation if found is not None else None
        if not (isinstance(model, type) and issubclass(model, BaseModel)):
            return ""
    names = [_camel(name) for name in model.model_fields]
    close = difflib.get_close_matches(_camel(path[-1]), names, n=1, cutoff=0.6)
    return f', did you mean "{close[0]}"?' if close else f"; fields here: {', '.join(names)}"


def _without_secrets(url: str) -> str:
    parts = urlsplit(url)
    if not parts.scheme or "@" not in parts.netloc:
        return url
    return urlunsplit(parts._replace(netloc=f"***@{parts.netloc.rpartition('@')[2]}"))
