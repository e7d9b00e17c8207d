"""What commands have in common: where the cluster is read from, which policy, what time it is."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from defragd.core.duration import parse_duration
from defragd.errors import ConfigError

if TYPE_CHECKING:
    from defragd.core.snapshot import Snapshot
    from defragd.hami.config import HamiConfig
    from defragd.policy.loaded import LoadedPolicy, PolicySet

F = TypeVar("F", bound=Callable[..., Any])


class Moment(click.ParamType):  # type: ignore[type-arg]
    """RFC 3339 with an offset."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if isinstance(value, datetime):
            return value
        try:
            when = datetime.fromisoformat(str(value).strip())
        except ValueError:
            self.fail(f'"{value}" is no time; write it like 2026-12-01T02:00:00Z', param, ctx)
        if when.tzinfo is None:
            self.fail(f'"{value}" has no offset; write it like 2026-12-01T02:00:00Z', param, ctx)
        if not 1970 < when.year < 2200:
            self.fail(f'"{value}" is not between the years 1971 and 2199', param, ctx)
        return when.astimezone(UTC)


class Seconds(click.ParamType):  # type: ignore[type-arg]
    """A positive duration such as 30s, in seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        try:
            seconds = parse_duration(str(value)).total_seconds()
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if seconds <= 0:
            self.fail(f'"{value}" must be more than 0', param, ctx)
        return seconds


def cluster_options(*, snapshot: bool = True, metrics: bool = False) -> Callable[[F], F]:
    """``--snapshot``, ``--kubeconfig``, ``--context``, ``--hami-namespace``, ``--hami-config``; ``--hami-metrics``."""

    def decorate(function: F) -> F:
        options = [
            click.option("--kubeconfig", metavar="FILE", help="Read the cluster of this kubeconfig."),
            click.option("--context", metavar="NAME", help="Context of the kubeconfig."),
            click.option(
                "--hami-namespace",
                default="kube-system",
                show_default=True,
                metavar="NS",
                help="Where HAMi's device configuration is.",
            ),
            click.option(
                "--hami-config", metavar="FILE", help="HAMi's device-config.yaml; default the cluster's, or HAMi's own."
            ),
        ]
        if not snapshot:
            options = options[:2]
        elif metrics:
            options.append(
                click.option(
                    "--hami-metrics",
                    metavar="URL|FILE",
                    help="Metrics of HAMi's scheduler: devices whose books they contradict are not believed.",
                )
            )
        if snapshot:
            options.insert(
                0,
                click.option(
                    "--snapshot", metavar="FILE", help='Read a saved List instead of a cluster; "-" is stdin.'
                ),
            )
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


now_option = click.option(
    "--now", type=Moment(), metavar="TIME", help="Judge as if it were this time (RFC 3339); default the present."
)
policies_option = click.option(
    "--policies", metavar="DIR", multiple=True, help="Directory or file of policies, for --policy NAME."
)


def read_cluster(
    snapshot: str | None,
    kubeconfig: str | None,
    context: str | None,
    hami_namespace: str = "kube-system",
    hami_config: str | None = None,
    hami_metrics: str | None = None,
) -> Snapshot:
    """The cluster as a value. Raises ConfigError, SnapshotError or ClusterError."""
    found = _read_cluster(snapshot, kubeconfig, context, hami_namespace, hami_config)
    return cross_checked(found, hami_metrics) if hami_metrics else found


def cross_checked(snapshot: Snapshot, source: str) -> Snapshot:
    """The snapshot with devices distrusted whose books differ from those of HAMi's metrics; one look decides. Metrics
    that cannot be reached are said and left out; a file that is not there is an error."""
    from defragd.cli.printers import warn
    from defragd.errors import ClusterError
    from defragd.hami.scheduler_books import BookCheck, doubted
    from defragd.obs.hami_metrics import read

    try:
        page = read(source)
    except ClusterError as error:
        warn([f"{error}; the books are not cross-checked"])
        return snapshot
    if not page.entries:
        warn(["HAMi's metrics show no device; the books are not cross-checked"])
    return doubted(snapshot, BookCheck(grace=timedelta(0)).look(snapshot, page, datetime.now(UTC)))


def _read_cluster(
    snapshot: str | None, kubeconfig: str | None, context: str | None, hami_namespace: str, hami_config: str | None
) -> Snapshot:
    config = read_hami_config(hami_config) if hami_config else None
    if snapshot is not None:
        if kubeconfig or context:
            raise ConfigError("give either --snapshot or --kubeconfig, not both")
        from defragd.kube.snapshot_file import load

        return load(snapshot, config=config)
    from defragd.hami.config import HamiConfig
    from defragd.kube.client import Client
    from defragd.kube.cluster import read_snapshot
    from defragd.kube.discovery import read_installation

    client = Client.from_kubeconfig(kubeconfig, context)
    try:
        config = config or read_installation(client, hami_namespace, "hami-scheduler-device")
        return read_snapshot(client, config=config or HamiConfig())
    finally:
        client.close()


def read_hami_config(path: str) -> HamiConfig:
    """HAMi's device-config.yaml as a file. Raises ConfigError."""
    import yaml

    from defragd.hami.config import parse_device_config

    try:
        document = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: not readable as YAML: {' '.join(str(error).split())[:200]}") from None
    if not isinstance(document, dict):
        raise ConfigError(f"{path}: is no device-config.yaml of HAMi (a mapping of vendor sections)")
    return parse_device_config(document)


def present(now: datetime | None, snapshot: Snapshot | None = None) -> datetime:
    """``--now``, else when the file says it was made, else the clock."""
    if now is not None:
        return now
    if snapshot is not None and snapshot.taken_at is not None:
        return snapshot.taken_at
    return datetime.now(UTC)


def shipped_policies() -> Path | None:
    """The ready examples: in the wheel, or beside the package in a source tree."""
    package = Path(__file__).resolve().parents[1]
    for path in (package / "data" / "policies", package.parent / "policies"):
        if path.is_dir():
            return path
    return None


def is_file(reference: str) -> bool:
    """Meant as a file (or, with a slash, a directory), not as a policy's name."""
    return "/" in reference or reference.endswith((".yaml", ".yml", ".json")) or Path(reference).is_file()


def find_policy(reference: str, policies: tuple[str, ...] = ()) -> tuple[LoadedPolicy, PolicySet]:
    """A policy by file, or by name among ``--policies`` and the shipped ones. Raises PolicyError or ConfigError."""
    from defragd.policy.load import load_policies, require

    if is_file(reference):
        found = load_policies(reference)
        usable = require(found)
        if len(usable) != 1:
            names = ", ".join(policy.name for policy in usable) or "none"
            raise ConfigError(
                f"{reference}: holds {len(usable)} policies ({names}); use --policies {reference} --policy NAME"
            )
        return usable[0], found
    known: list[str] = []
    if policies:
        found = load_policies(list(policies))
        policy = found.get(reference)
        twice = [str(problem) for problem in found.errors if f'"{reference}" is the name of the policy' in str(problem)]
        if policy is not None and twice:
            raise ConfigError("\n".join(twice))
        if policy is not None:
            return policy, found
        require(found)
        known += [policy.name for policy in found.policies]
    shipped = shipped_policies()
    if shipped is not None:
        found = load_policies(shipped)
        policy = found.get(reference)
        if policy is not None:
            return policy, found
        broken = [problem for problem in found.errors if Path(problem.source).stem == reference]
        if broken:
            raise ConfigError("\n".join(str(problem) for problem in broken))
        known += [policy.name for policy in found.policies]
    from defragd.policy.problems import nearest

    hint = nearest(reference, sorted(set(known)))
    raise ConfigError(f'no policy "{reference}" in {_where(policies)}{hint.replace("fields here", "known")}')


def _where(policies: tuple[str, ...]) -> str:
    return " and ".join([*policies, "the shipped policies"])
