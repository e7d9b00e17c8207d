"""Where the API server is and who we are: kubeconfig (exec plug-ins, certificates, tokens) or the pod's own account.

The official client does this part; nothing of it is used beyond the `Configuration` it fills, and it is imported only
when needed because importing it takes half a second.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import urllib3
import yaml

from defragd.errors import ConfigError, Unreachable

_RELOAD_PAUSE = 10.0
"""Seconds between two reloads after a 401, so that a revoked account does not run an exec plug-in in a loop."""


class Credentials:
    """Server URL, connection pool and authorization header; reloads itself when a token was renewed on disk.

    Raises ConfigError (exit 2) for a kubeconfig that cannot be read or used.
    """

    def __init__(self, path: str | None, context: str | None = None, *, pool_size: int = 40) -> None:
        self._path, self._context, self._pool_size = path, context, pool_size
        self._lock = threading.Lock()
        self._reloaded = time.monotonic()
        self.source = _source(path)
        self._config = self._load()
        self.pool = self._build_pool()

    @property
    def server(self) -> str:
        return str(self._config.host).rstrip("/")

    @property
    def namespace(self) -> str:
        """The namespace of the pod we run in, "" outside of a cluster."""
        try:
            return Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace").read_text(encoding="utf-8").strip()
        except OSError:
            return ""

    def headers(self) -> dict[str, str]:
        """Authorization header, refreshed by the client's own hook when the token is near its end."""
        with self._lock:
            try:
                settings = self._config.auth_settings()
            except Exception as err:
                # Exec plug-ins and auth providers raise anything; all of it means: no credentials now.
                raise Unreachable(f"{self.source}: credentials could not be renewed: {_one_line(err)}") from err
        return {str(item["key"]): str(item["value"]) for item in settings.values() if item.get("value")}

    def reload(self) -> bool:
        """After a 401: read everything again. False when that was done a moment ago already."""
        with self._lock:
            now = time.monotonic()
            if now - self._reloaded < _RELOAD_PAUSE:
                return False
            self._reloaded = now
            self._config = self._load()
            self.pool = self._build_pool()
        return True

    def _load(self) -> Any:
        from kubernetes.client import Configuration
        from kubernetes.config import ConfigException, load_incluster_config, load_kube_config

        config = Configuration()
        try:
            if self.source == "in-cluster":
                load_incluster_config(client_configuration=config)
            else:
                _check_file(self.source, self._context)
                load_kube_config(
                    config_file=self.source, context=self._context, client_configuration=config, persist_config=False
                )
        except ConfigError:
            raise
        except yaml.YAMLError as err:
            raise ConfigError(f"kubeconfig {self.source} is not YAML: {_one_line(err)}") from err
        except (ConfigException, OSError, ValueError, TypeError, KeyError, AttributeError) as err:
            raise ConfigError(
                f"kubeconfig {self.source} cannot be used: {_one_line(err)}; check it with kubectl config view"
            ) from err
        if not str(config.host).startswith(("https://", "http://")):
            raise ConfigError(f"kubeconfig {self.source}: server {config.host!r} is no http(s) URL")
        return config

    def _build_pool(self) -> urllib3.PoolManager:
        config = self._config
        args: dict[str, Any] = {
            "cert_reqs": "CERT_REQUIRED" if config.verify_ssl else "CERT_NONE",
            "ca_certs": config.ssl_ca_cert,
            "cert_file": config.cert_file,
            "key_file": config.key_file,
            "maxsize": self._pool_size,
            "block": False,
            "retries": False,
        }
        if getattr(config, "ca_cert_data", None):
            args["ca_cert_data"] = config.ca_cert_data
        if config.assert_hostname is not None:
            args["assert_hostname"] = config.assert_hostname
        if getattr(config, "tls_server_name", None):
            args["server_hostname"] = config.tls_server_name
        if not config.verify_ssl:
            # The user chose it in the kubeconfig; one warning for every request says nothing new.
            urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
        try:
            if config.proxy and not _bypasses(self.server, config.no_proxy or ""):
                return urllib3.ProxyManager(config.proxy, proxy_headers=config.proxy_headers, **args)
            return urllib3.PoolManager(**args)
        except (OSError, ValueError) as err:
            raise ConfigError(f"kubeconfig {self.source}: certificate or key unusable: {_one_line(err)}") from err


def _source(path: str | None) -> str:
    """The file that is read, or "in-cluster". A given path is never replaced by something else."""
    if path:
        return os.path.expanduser(path)
    if os.environ.get("KUBECONFIG"):
        return os.environ["KUBECONFIG"]
    if os.environ.get("KUBERNETES_SERVICE_HOST"):
        return "in-cluster"
    home = os.path.expanduser("~/.kube/config")
    if os.path.exists(home):
        return home
    raise ConfigError("no cluster given: pass --kubeconfig FILE, set KUBECONFIG, or run inside a cluster")


def _check_file(source: str, context: str | None) -> None:
    """One clear line for the usual mistakes; the client's own messages name neither file nor cause."""
    for name in source.split(os.pathsep):
        if not name:
            continue
        try:
            text = Path(name).read_text(encoding="utf-8")
        except FileNotFoundError as err:
            if os.pathsep in source:
                continue  # kubectl skips missing files of a list, too
            raise ConfigError(f"kubeconfig {name} does not exist; check the path given with --kubeconfig") from err
        except (OSError, UnicodeDecodeError) as err:
            raise ConfigError(f"kubeconfig {name} cannot be read: {_one_line(err)}") from err
        loaded = yaml.safe_load(text)
        if not isinstance(loaded, dict) or not loaded.get("clusters"):
            raise ConfigError(f"kubeconfig {name} names no cluster; it should have clusters, users and contexts")
        if os.pathsep not in source:
            _check_user(name, loaded, context)


def _check_user(path: str, config: dict[str, Any], context: str | None) -> None:
    """A context whose user is missing would be anonymous to the client and end in a puzzling 403."""
    chosen = context or config.get("current-context")
    contexts, users = config.get("contexts"), config.get("users")
    for entry in contexts if isinstance(contexts, list) else []:
        if not isinstance(entry, dict) or entry.get("name") != chosen:
            continue
        user = (entry.get("context") or {}).get("user")
        names = [item.get("name") for item in users or () if isinstance(item, dict)] if isinstance(users, list) else []
        if user and user not in names:
            raise ConfigError(f"kubeconfig {path}: context {chosen!r} names user {user!r}, which is not under users")


def _bypasses(server: str, no_proxy: str) -> bool:
    host = urllib3.util.parse_url(server).host or ""
    names = [item.strip().lstrip(".") for item in no_proxy.split(",") if item.strip()]
    return any(name == "*" or host == name or host.endswith("." + name) for name in names)


def _one_line(err: BaseException) -> str:
    return " ".join(str(err).split())[:300] or type(err).__name__
