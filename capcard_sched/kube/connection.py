"""Address and credentials of the API server, from a kubeconfig or a service account.

The `kubernetes` library is imported only where `plain_credentials` does not suffice: it runs exec plugins and
tracks the expiry of their tokens. `kube.client` sends the requests.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import msgspec

from capcard_sched.kube.plain_credentials import PlainConfiguration, plain_kubeconfig, plain_service_account

#: Folder with the credentials of a pod's service account.
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_DEFAULT_KUBECONFIG = "~/.kube/config"
_SCHEMES = ("http://", "https://")


class ConnectionConfigError(Exception):
    """The kubeconfig, the service account or a flag does not identify an API server."""


class Connection(msgspec.Struct, frozen=True):
    """Address, TLS settings and credentials of one API server."""

    #: URL without a trailing slash, such as `https://10.96.0.1:443`.
    server: str
    #: None for plain http.
    ssl: ssl.SSLContext | None
    #: Returns the current bearer token ("Basic ..." for user and password), None without one. May block: it reads files
    #: and runs exec plugins.
    token: Callable[[], str | None]
    #: Namespace of the context or the service account.
    namespace: str
    #: Fetches a new token after the server rejected the current one. May block. Raises ConnectionConfigError.
    renew: Callable[[], None] = lambda: None
    #: `proxy-url` of the kubeconfig; environment variables are ignored.
    proxy: str | None = None
    #: `tls-server-name` of the kubeconfig: the expected name in the certificate.
    server_name: str | None = None


class _Login:
    """The library's configuration, with a function that loads it again."""

    def __init__(self, load: Callable[[], Any]) -> None:
        self._load = load
        self.configuration = load()

    def token(self) -> str | None:
        # The call runs the library's hook, which reads an old token file again and renews an expired token.
        try:
            value: str | None = self.configuration.get_api_key_with_prefix("BearerToken")
        except Exception as error:  # credential plugins and files raise anything
            raise ConnectionConfigError(f"cannot read the token: {error}") from error
        if not value:
            return None
        scheme, _, token = value.strip().partition(" ")
        return token.strip() if scheme.lower() == "bearer" else value.strip()

    def renew(self) -> None:
        self.configuration = self._load()


def load_connection(
    kubeconfig: Path | str | None = None, master: str | None = None, context: str | None = None
) -> Connection:
    """Load `kubeconfig` (a path, or several as in KUBECONFIG), else KUBECONFIG, else ~/.kube/config, else in-cluster.

    `master` replaces the server of the kubeconfig; alone, it means that server without credentials. Blocks. Raises
    ConnectionConfigError.
    """
    if master and not master.startswith(_SCHEMES):
        raise ConnectionConfigError(
            f"master {master!r} is not an address; accepted: http://host:port, https://host:port"
        )
    path = _kubeconfig_path(kubeconfig)
    if path:
        return _from_kubeconfig(path, master, context)
    if context:
        raise ConnectionConfigError(f"context {context!r} is set, but there is no kubeconfig")
    if master:
        context_of_master = ssl_context() if master.startswith("https://") else None
        return Connection(master.rstrip("/"), context_of_master, lambda: None, "default")
    return in_cluster()


def _kubeconfig_path(kubeconfig: Path | str | None) -> str:
    path = str(kubeconfig or "") or os.environ.get("KUBECONFIG") or ""
    return _DEFAULT_KUBECONFIG if not path and Path(_DEFAULT_KUBECONFIG).expanduser().is_file() else path


def load_address(kubeconfig: Path | str | None = None, context: str | None = None) -> tuple[str, str]:
    """Server and namespace of the connection that `load_connection` loads, without its credentials.

    Runs no exec plugin. Raises ConnectionConfigError.
    """
    path = _kubeconfig_path(kubeconfig)
    if not path:
        found = load_connection(None, None, context)
        return found.server, found.namespace
    if (plain := plain_kubeconfig(path, context)) is not None:
        return plain.host, plain.namespace or "default"
    from kubernetes.config.kube_config import KubeConfigMerger

    try:
        document = KubeConfigMerger(path).config  # type: ignore[no-untyped-call]
        chosen = document["contexts"].get_with_name(context or document["current-context"])["context"]
        cluster = document["clusters"].get_with_name(chosen["cluster"])["cluster"]
        return str(cluster["server"]).rstrip("/"), chosen.safe_get("namespace") or "default"
    except Exception:  # noqa: BLE001 - malformed YAML makes the library raise anything
        found = _from_kubeconfig(path, None, context)  # raises the error of the same file
        return found.server, found.namespace


def in_cluster(folder: Path = SERVICE_ACCOUNT) -> Connection:
    """Use the service account of the pod that this process runs in. Raises ConnectionConfigError."""

    def load() -> Any:
        if (plain := plain_service_account(folder)) is not None:
            return plain
        from kubernetes.client import Configuration
        from kubernetes.config import ConfigException
        from kubernetes.config.incluster_config import InClusterConfigLoader

        configuration = Configuration(proxy="")
        try:
            loader = InClusterConfigLoader(  # type: ignore[no-untyped-call]
                str(folder / "token"), str(folder / "ca.crt"), environ=os.environ
            )
            loader.load_and_set(configuration)  # type: ignore[no-untyped-call]
        except (ConfigException, OSError) as error:
            raise ConnectionConfigError(
                f"no kubeconfig is given, KUBECONFIG is not set, {_DEFAULT_KUBECONFIG} does not exist, and there is no "
                f"service account of a pod: {error}"
            ) from error
        return configuration

    try:
        namespace = (folder / "namespace").read_text(encoding="utf-8").strip()
    except OSError:
        namespace = ""
    return _connection(_Login(load), "", namespace)


def _from_kubeconfig(path: str, master: str | None, context: str | None) -> Connection:
    namespace = ""

    def load() -> Any:
        nonlocal namespace
        if (plain := plain_kubeconfig(path, context)) is not None:
            namespace = plain.namespace
            return plain
        from kubernetes.client import Configuration
        from kubernetes.config import ConfigException
        from kubernetes.config.kube_config import KubeConfigLoader, KubeConfigMerger

        configuration = Configuration(proxy="")
        try:
            document = KubeConfigMerger(path).config  # type: ignore[no-untyped-call]
            if document is None:
                raise ConnectionConfigError(f"kubeconfig {path}: no such file")
            loader = KubeConfigLoader(  # type: ignore[no-untyped-call]
                document, active_context=context, config_base_path=None
            )
            loader.load_and_set(configuration)  # type: ignore[no-untyped-call]
            chosen = document["contexts"].get_with_name(context or document["current-context"])["context"]
            namespace = chosen.safe_get("namespace") or ""
            user = document["users"].get_with_name(chosen["user"], safe=True) if chosen.safe_get("user") else None
        except ConnectionConfigError:
            raise
        except Exception as error:  # malformed YAML makes the library raise anything
            if isinstance(error, ConfigException):
                raise ConnectionConfigError(f"kubeconfig {path}: {error}") from error
            if isinstance(error, TypeError | AttributeError | KeyError):
                raise ConnectionConfigError(
                    f"kubeconfig {path}: not a kubeconfig; accepted: a YAML document with clusters, users, "
                    "contexts and current-context"
                ) from error
            raise ConnectionConfigError(f"kubeconfig {path}: {type(error).__name__}: {error}") from error
        plugin = user["user"].safe_get("exec") if user is not None else None
        if plugin and not configuration.cert_file and not configuration.get_api_key_with_prefix("BearerToken"):
            raise ConnectionConfigError(f"kubeconfig {path}: exec plugin {plugin['command']!r} returned no credentials")
        return configuration

    login = _Login(load)
    return _connection(login, master or "", namespace)


def _connection(login: _Login, master: str, namespace: str) -> Connection:
    found = login.configuration
    server = (master or found.host or "").rstrip("/")
    if not server.startswith(_SCHEMES):
        raise ConnectionConfigError(
            f"server {server!r} is not an address; accepted: http://host:port, https://host:port"
        )
    if found.proxy and not found.proxy.startswith(_SCHEMES):
        raise ConnectionConfigError(
            f"proxy-url {found.proxy!r} is not supported; accepted: http://host:port, https://host:port"
        )
    context = None
    if server.startswith("https://"):
        with _certificate_files(found) as files:
            context = ssl_context(*files, verify=found.verify_ssl)
    return Connection(
        server=server,
        ssl=context,
        token=login.token,
        namespace=namespace or "default",
        renew=login.renew,
        proxy=found.proxy or None,
        server_name=found.tls_server_name or None,
    )


def _certificate_files(found: Any) -> AbstractContextManager[list[str | None]]:
    """Files of the authority, the client's certificate and its key."""
    if isinstance(found, PlainConfiguration):
        return found.certificate_files()
    return nullcontext([found.ssl_ca_cert, found.cert_file, found.key_file])


def ssl_context(
    ca_file: str | None = None, cert_file: str | None = None, key_file: str | None = None, *, verify: bool = True
) -> ssl.SSLContext:
    """TLS settings for an API server. Without `ca_file` the system's certificate authorities are trusted.

    Raises ConnectionConfigError when a file cannot be read.
    """
    try:
        context = ssl.create_default_context(cafile=ca_file)
        if cert_file:
            context.load_cert_chain(cert_file, key_file)
    except (OSError, ssl.SSLError) as error:
        names = ", ".join(name for name in (ca_file, cert_file, key_file) if name)
        raise ConnectionConfigError(f"certificates in {names or 'the system'} cannot be read: {error}") from error
    # Certificate authorities of cluster installers often lack the extensions that RFC 5280 requires.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.set_alpn_protocols(["http/1.1"])
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
