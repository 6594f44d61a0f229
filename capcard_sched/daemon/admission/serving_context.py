"""The TLS context of the admission server, and the handshake by which it checks its own certificate."""

from __future__ import annotations

import ssl
import tempfile
from pathlib import Path
from typing import Final

from capcard_sched.daemon.common_options import ServeError

#: Times that each side of a handshake gets its turn: TLS 1.2 and 1.3 need fewer.
_FLIGHTS: Final = 8


class ServingContext:
    """The TLS context of the server. `load` replaces the certificate of later handshakes."""

    def __init__(self, client_authorities: Path | None = None) -> None:
        """With `client_authorities`, PEM, clients without a certificate of theirs are refused in the handshake.

        Raises ServeError.
        """
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        if client_authorities is not None:
            try:
                self._context.load_verify_locations(client_authorities)
            except (OSError, ssl.SSLError) as error:
                raise ServeError(f"--client-ca-file {client_authorities}: {error}") from None
            self._context.verify_mode = ssl.CERT_REQUIRED
        self._loaded: tuple[bytes, bytes] | None = None
        #: Trusts what the API server trusts, and the host that it connects to.
        self._client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._host: str | None = None

    @property
    def loaded(self) -> bool:
        return self._loaded is not None

    def context(self) -> ssl.SSLContext:
        return self._context

    def load(self, certificate: bytes, key: bytes, authorities: str = "", host: str = "") -> bool:
        """Use another certificate; False when it is the one in use. Raises ServeError when the texts are not a pair.

        `authorities`, PEM, and `host` are those of the API server; without them it is known to trust the certificate.
        """
        if self._loaded == (certificate, key):
            return False
        with tempfile.TemporaryDirectory() as folder:  # the ssl module reads files only
            paths = Path(folder, "tls.crt"), Path(folder, "tls.key")
            for path, text in zip(paths, (certificate, key), strict=True):
                path.touch(mode=0o600)
                path.write_bytes(text)
            try:
                self._context.load_cert_chain(*paths)
                client = ssl.create_default_context(cadata=authorities or certificate.decode())
            except (OSError, ValueError, ssl.SSLError) as error:
                raise ServeError(f"TLS certificate: {error}") from None
        if not authorities:
            client.check_hostname = False
            client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        self._loaded, self._client, self._host = (certificate, key), client, host or None
        return True

    def problem(self) -> str:
        """Why a client refuses the certificate in use, or "": the result of a handshake in memory."""
        toward_server, toward_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = self._client.wrap_bio(toward_client, toward_server, server_hostname=self._host)
        server = self._context.wrap_bio(toward_server, toward_client, server_side=True)
        for _ in range(_FLIGHTS):
            for side in (client, server):
                try:
                    side.do_handshake()
                except ssl.SSLWantReadError:
                    continue
                except ssl.SSLCertVerificationError as error:
                    # The client presents no certificate: only its verification of the server's certificate counts.
                    return f"a handshake fails: {error.verify_message}" if side is client else ""
                except ssl.SSLError as error:
                    return f"a handshake fails: {error.reason}" if side is client else ""
                else:
                    if side is client:
                        return ""
        return "a handshake does not end"
