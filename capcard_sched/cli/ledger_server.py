"""Reads reports of the ledger from a running `web`."""

from __future__ import annotations

import http.client
import ssl
from typing import TYPE_CHECKING, Final, TypeVar
from urllib.parse import urlencode, urlsplit

import msgspec

from capcard_sched.cli.exit_codes import BadInputError
from capcard_sched.input_files import read_input
from capcard_sched.ledger.job_history import JobLife
from capcard_sched.ledger.usage_report import UsageReport
from capcard_sched.web.ledger_documents import LedgerHistory, LedgerUsage
from capcard_sched.web.views import WebError

if TYPE_CHECKING:
    from pathlib import Path

_T = TypeVar("_T", LedgerUsage, LedgerHistory)

#: Seconds: a report of a large ledger takes some.
_TIMEOUT: Final = 60.0
#: Bytes of the longest response.
_MOST_BYTES: Final = 1 << 28
_FORM: Final = "expected http://HOST:PORT or https://HOST:PORT, the address of `web`"


class LedgerServer:
    """The documents `/api/v1/ledger/...` of one server. Follows no redirects: they would send the token elsewhere."""

    def __init__(self, url: str, token_file: Path | None = None) -> None:
        """`token_file`: a bearer token of the cluster. Raises BadInputError."""
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise BadInputError(f"--server: {url}: {error}: {_FORM}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment or "@" in url:
            raise BadInputError(f"--server: {url}: {_FORM}")
        self._url, self._path = url, parts.path.rstrip("/")
        self._connection = (
            http.client.HTTPSConnection(parts.hostname, port, timeout=_TIMEOUT, context=ssl.create_default_context())
            if parts.scheme == "https"
            else http.client.HTTPConnection(parts.hostname, port, timeout=_TIMEOUT)
        )
        self._headers = {"Accept": "application/json"}
        if token_file is not None:
            self._headers["Authorization"] = f"Bearer {_token(token_file)}"

    def usage(self, since: str, by: str) -> UsageReport:
        """The report of a period such as `30d`. Raises BadInputError."""
        found = self._read("usage", {"since": since, "by": by}, LedgerUsage)
        return msgspec.convert(found, UsageReport, from_attributes=True)

    def history(self, since: str, name: str, namespace: str) -> tuple[list[JobLife], float]:
        """The lives of jobs of a period, and its end in Unix seconds. Raises BadInputError."""
        found = self._read("history", {"since": since, "name": name, "namespace": namespace}, LedgerHistory)
        return msgspec.convert(found.lives, list[JobLife], from_attributes=True), found.until / 1000

    def _read(self, document: str, query: dict[str, str], kind: type[_T]) -> _T:
        address = f"{self._path}/api/v1/ledger/{document}?{urlencode(query)}"
        try:
            self._connection.request("GET", address, headers=self._headers)
            with self._connection.getresponse() as response:
                status, body = response.status, response.read(_MOST_BYTES + 1)
        except (OSError, http.client.HTTPException) as error:
            text = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise BadInputError(f"--server: {self._url}: {text}") from None
        finally:
            self._connection.close()
        if len(body) > _MOST_BYTES:
            raise BadInputError(f"--server: {self._url}: a response of more than {_MOST_BYTES >> 20} MiB")
        try:
            if status == http.HTTPStatus.OK:
                return msgspec.json.decode(body, type=kind)
            text = msgspec.json.decode(body, type=WebError).message
        except (msgspec.DecodeError, UnicodeDecodeError):
            text = f"HTTP {status}: not a response of `web`"
        hint = "; --token-file FILE gives a token" if status == http.HTTPStatus.UNAUTHORIZED else ""
        raise BadInputError(f"--server: {self._url}: {text}{hint}")


def _token(file: Path) -> str:
    """The token of a file. Raises BadInputError."""
    try:
        token = read_input(file).decode("ascii").strip()
    except OSError as error:
        raise BadInputError(f"--token-file: {file}: {error.strerror}") from None
    except UnicodeDecodeError:
        token = ""
    if not token or not token.isprintable() or " " in token:
        raise BadInputError(f"--token-file: {file}: not a token: expected one word of ASCII characters")
    return token
