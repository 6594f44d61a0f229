"""Credentials without the `kubernetes` library: of service accounts, and of kubeconfigs with certificates or tokens.

The import of the library takes a quarter of the CPU time of a start. It remains responsible for several files, exec
plugins and auth providers, and for whatever has a mistake, with its messages: the result is None for all of these.
"""

from __future__ import annotations

import base64
import os
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Any, Final

import msgspec

from capcard_sched.model.yaml_reader import YamlError, read_document

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: Seconds until the token file of a service account is read again, as in the library.
_TOKEN_SECONDS: Final = 60.0
_HTTPS: Final = "https"


class _KubeconfigCluster(msgspec.Struct, rename="kebab"):
    server: str
    certificate_authority: str | None = None
    certificate_authority_data: str | None = None
    insecure_skip_tls_verify: bool = False
    tls_server_name: str | None = None
    proxy_url: str | None = None


class _KubeconfigUser(msgspec.Struct, rename="kebab", forbid_unknown_fields=True):
    client_certificate: str | None = None
    client_certificate_data: str | None = None
    client_key: str | None = None
    client_key_data: str | None = None
    token: str | None = None
    token_file: str | None = msgspec.field(default=None, name="tokenFile")
    username: str | None = None
    password: str | None = None


class _KubeconfigContext(msgspec.Struct):
    cluster: str
    user: str | None = None
    namespace: str | None = None


class _NamedCluster(msgspec.Struct):
    name: str
    cluster: Any


class _NamedUser(msgspec.Struct):
    name: str
    user: Any


class _NamedContext(msgspec.Struct):
    name: str
    context: Any


class _Kubeconfig(msgspec.Struct, rename="kebab"):
    clusters: list[_NamedCluster]
    contexts: list[_NamedContext]
    users: list[_NamedUser] = []
    current_context: str = ""


class PlainConfiguration:
    """The fields of the library's `Configuration` that a connection reads."""

    def __init__(self, host: str, token: Callable[[], str | None], namespace: str = "") -> None:
        """`token`: returns it with its scheme; may block and raise."""
        self.host = host
        self.namespace = namespace
        self.verify_ssl = True
        self.tls_server_name: str | None = None
        self.proxy: str | None = None
        #: File or content: of the authority, the client's certificate and its key.
        self._certificates: tuple[str | bytes | None, ...] = (None, None, None)
        self._token = token

    def get_api_key_with_prefix(self, _name: str) -> str | None:
        """The token after its scheme, as in the library."""
        return self._token()

    def use_certificates(self, *certificates: str | bytes | None) -> None:
        """Files or contents, as in `certificate_files`."""
        self._certificates = certificates

    @contextmanager
    def certificate_files(self) -> Iterator[list[str | None]]:
        """Files of the authority, the client's certificate and its key; those of contents are removed at the end."""
        with ExitStack() as stack:
            names: list[str | None] = []
            for each in self._certificates:
                if isinstance(each, bytes):
                    file = stack.enter_context(NamedTemporaryFile())
                    file.write(each)
                    file.flush()
                    names.append(file.name)
                else:
                    names.append(each)
            yield names


def plain_kubeconfig(path: str, context: str | None) -> PlainConfiguration | None:
    """The configuration of one kubeconfig."""
    file = Path(path).expanduser()
    try:
        config = msgspec.convert(read_document(file.read_bytes()).value, _Kubeconfig)
        names = [context or config.current_context]
        chosen = msgspec.convert(
            _only([each.context for each in config.contexts if each.name in names]), _KubeconfigContext
        )
        cluster = msgspec.convert(
            _only([each.cluster for each in config.clusters if each.name == chosen.cluster]), _KubeconfigCluster
        )
        users = [each.user for each in config.users if each.name == chosen.user]
        user = msgspec.convert(_only(users), _KubeconfigUser) if chosen.user and users else _KubeconfigUser()
        return _configured(Path(os.path.abspath(file)).parent, chosen, cluster, user)  # noqa: PTH100 - as the library
    except (OSError, ValueError, YamlError, msgspec.ValidationError):
        return None


def _only(found: list[Any]) -> Any:
    if len(found) != 1:
        raise ValueError(len(found))
    return found[0]


def _configured(
    folder: Path, context: _KubeconfigContext, cluster: _KubeconfigCluster, user: _KubeconfigUser
) -> PlainConfiguration:
    """Raises OSError and ValueError where the library reports a problem, or has a rule that is not here."""
    token = (
        user.token
        if user.token is not None or user.token_file is None
        else (folder / user.token_file).read_text(encoding="utf-8")
    )
    if token:
        token = f"Bearer {token}"
    elif user.username is not None and user.password is not None:
        token = f"Basic {base64.b64encode(f'{user.username}:{user.password}'.encode('latin-1')).decode()}"
    found = PlainConfiguration(cluster.server.rstrip("/"), lambda: token or None, context.namespace or "")
    found.verify_ssl = not cluster.insecure_skip_tls_verify
    found.tls_server_name, found.proxy = cluster.tls_server_name, cluster.proxy_url
    if found.host.startswith(_HTTPS):
        found.use_certificates(
            _certificate(folder, cluster.certificate_authority, cluster.certificate_authority_data),
            _certificate(folder, user.client_certificate, user.client_certificate_data),
            _certificate(folder, user.client_key, user.client_key_data),
        )
    return found


def _certificate(folder: Path, file: str | None, data: str | None) -> str | bytes | None:
    if data is not None:
        return base64.b64decode(data, validate=True) or None
    if file is None:
        return None
    path = os.path.normpath(folder / file)
    if not os.path.isfile(path):  # noqa: PTH113 - a string is returned
        raise FileNotFoundError(path)
    return path


def plain_service_account(folder: Path) -> PlainConfiguration | None:
    """The configuration of a pod: the address in its environment, and the files of its service account."""
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT")
    authority = folder / "ca.crt"
    try:
        token = _TokenFile(folder / "token")
        if not host or not port or not authority.read_text(encoding="utf-8"):
            return None
    except (OSError, ValueError):
        return None
    found = PlainConfiguration(
        f"https://[{host}]:{port}" if set(host) & {":", "%"} else f"https://{host}:{port}", token
    )
    found.use_certificates(str(authority), None, None)
    return found


class _TokenFile:
    """A token that is replaced in its file before it expires."""

    def __init__(self, path: Path) -> None:
        """Raises OSError and ValueError."""
        self._path = path
        self._read()

    def __call__(self) -> str:
        if time.monotonic() - self._read_at >= _TOKEN_SECONDS:
            self._read()
        return self._token

    def _read(self) -> None:
        text = self._path.read_text(encoding="utf-8")
        if not text:
            raise ValueError(f"{self._path} is empty")
        self._token, self._read_at = f"Bearer {text}", time.monotonic()
