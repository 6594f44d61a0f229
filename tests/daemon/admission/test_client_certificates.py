"""With `--client-ca-file`, a client without a certificate of that authority is refused before its request is read."""

from __future__ import annotations

import asyncio
import datetime as dt
import ssl
from pathlib import Path

import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from capcard_sched.daemon.admission.certificates import renewed
from capcard_sched.daemon.admission.serving_context import ServingContext
from capcard_sched.daemon.common_options import ServeError
from capcard_sched.daemon.flag_values import AddressFlag
from capcard_sched.daemon.observability.server import HttpServer

_NOW = dt.datetime.now(dt.UTC)
_BODY = b"x" * 100_000
_REQUEST = b"POST /review HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(_BODY)


class Authority:
    """Issues certificates of clients."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name = folder, name
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._certificate = self._issue(self._key, None)
        self.bundle = folder / f"{name}.crt"
        self.bundle.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))

    def client(self, *, days: int = 1) -> Path:
        """A file with certificate and key, valid for `days` from now on; below 0: expired for so long."""
        key = ec.generate_private_key(ec.SECP256R1())
        pem = self._issue(key, self._certificate.subject, days).public_bytes(serialization.Encoding.PEM)
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        path = self._folder / f"{self._name}-client{days}.pem"
        path.write_bytes(pem + private)
        return path

    def _issue(self, key: ec.EllipticCurvePrivateKey, issuer: x509.Name | None, days: int = 1) -> x509.Certificate:
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, self._name if issuer is None else "apiserver")])
        builder = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(issuer or name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(_NOW - dt.timedelta(days=30))
            .not_valid_after(_NOW + dt.timedelta(days=days))
            .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        )
        if issuer is not None:
            builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        return builder.sign(self._key, hashes.SHA256())


async def _reply(port: int, authorities: str, certificate: Path | None) -> bytes:
    """What a client gets for a request, b"" for one whose connection is closed."""
    context = ssl.create_default_context(cadata=authorities)
    if certificate is not None:
        context.load_cert_chain(certificate)
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="localhost")
        try:
            writer.write(_REQUEST + _BODY)
            await writer.drain()
            return await reader.read()
        finally:
            writer.close()
    except (ssl.SSLError, ConnectionError):
        return b""


@pytest.mark.parametrize(
    "client, served",
    [("own", True), ("none", False), ("of another authority", False), ("expired", False)],
)
async def test_only_clients_of_the_authority_are_served(client: str, served: bool, tmp_path: Path) -> None:
    own, other = Authority(tmp_path, "own"), Authority(tmp_path, "other")
    certificates = {
        "own": own.client(),
        "none": None,
        "of another authority": other.client(),
        "expired": own.client(days=-1),
    }
    known = renewed(None, ("localhost",), _NOW)
    tls = ServingContext(own.bundle)
    tls.load(known.certificate.encode(), known.key.encode(), known.authorities, "localhost")
    requests: list[int] = []

    async def page(request: web.Request) -> web.Response:
        requests.append(len(await request.read()))
        return web.Response(text="reviewed")

    address = AddressFlag("127.0.0.1", 0)
    server = HttpServer(address, {}, posts={"/review": page}, body_bytes=len(_BODY), tls=tls)
    await server.start()
    try:
        async with asyncio.timeout(60):
            reply = await _reply(server.port, known.authorities, certificates[client])
            if not served:  # the server accepts the next connection
                assert (await _reply(server.port, known.authorities, certificates["own"])).endswith(b"reviewed")
    finally:
        await server.stop()
    assert reply.endswith(b"reviewed") is served
    assert requests == [len(_BODY)], "one request was read"


@pytest.mark.parametrize("text", ["", "no PEM"])
def test_a_bundle_that_cannot_be_read_ends_the_start(text: str, tmp_path: Path) -> None:
    bundle = tmp_path / "ca.crt"
    if text:
        bundle.write_text(text)
    with pytest.raises(ServeError, match=f"--client-ca-file {bundle}: "):
        ServingContext(bundle)
