"""The serving certificate of the webhooks and its authority: issued, kept in a Secret, and renewed without a restart.

The replicas share one Secret. The first replica that finds it missing or close to its end writes it; the others read
it. The API server learns the authority from `caBundle` of the webhook configurations.
"""

from __future__ import annotations

import base64
import contextlib
import datetime as dt
import ipaddress
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from capcard_sched.kube.client import ApiError, Client, get
from capcard_sched.kube.paths import collection_path, object_path
from capcard_sched.model.kinds import Kind
from capcard_sched.model.timestamps import parse_time

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Days an authority and a serving certificate are valid. They are renewed when a third of the time is left.
AUTHORITY_DAYS: Final = 3650
SERVING_DAYS: Final = 365
#: Clocks of API servers and replicas may differ by this much.
_SKEW: Final = dt.timedelta(hours=1)
_CONFIGURATIONS: Final = tuple(
    Kind(f"{name}WebhookConfiguration", "admissionregistration.k8s.io/v1", f"{name.lower()}webhookconfigurations")
    for name in ("Mutating", "Validating")
)
#: Attempts of one update before the next period: others write the same objects.
_ATTEMPTS: Final = 5


class ServingCertificate(msgspec.Struct, frozen=True):
    """PEM texts as they are kept in the Secret. `authorities` may hold several, the one in use first."""

    certificate: str
    key: str
    authorities: str
    authority_key: str


def renewed(known: ServingCertificate | None, hosts: Sequence[str], now: dt.datetime) -> ServingCertificate:
    """`known`, or a successor when it is missing, malformed, for other names, not valid yet, or in its last third.

    A new authority is put before the former one, so that servers with either certificate are trusted until the former
    one ends.
    """
    authority = _authority(known, now)
    if authority is None:
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = _issue("capcard-sched-admission-ca", key, None, (), now, AUTHORITY_DAYS)
        former = [each for each in _certificates(known) if each.not_valid_before_utc <= now < each.not_valid_after_utc]
        authorities = "".join(_pem(each) for each in (certificate, *former))
        authority = certificate, key
    elif known is not None and _is_current(known, hosts, now, authority[0]):
        return known
    else:
        assert known is not None
        authorities = known.authorities
    key = ec.generate_private_key(ec.SECP256R1())
    serving = _issue(hosts[0], key, authority, hosts, now, SERVING_DAYS)
    return ServingCertificate(_pem(serving), _private(key), authorities, _private(authority[1]))


def _authority(
    known: ServingCertificate | None, now: dt.datetime
) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey] | None:
    """The authority in use with its key, while a serving certificate ends before it does."""
    certificates = _certificates(known)
    if known is None or not certificates:
        return None
    try:
        key = serialization.load_pem_private_key(known.authority_key.encode(), password=None)
    except (ValueError, TypeError):
        return None
    first = certificates[0]
    ends = now + dt.timedelta(days=SERVING_DAYS)
    if not isinstance(key, ec.EllipticCurvePrivateKey) or first.public_key() != key.public_key():
        return None
    return (first, key) if first.not_valid_before_utc <= now and first.not_valid_after_utc > ends else None


def _is_current(known: ServingCertificate, hosts: Sequence[str], now: dt.datetime, authority: x509.Certificate) -> bool:
    try:
        certificate = x509.load_pem_x509_certificate(known.certificate.encode())
        key = serialization.load_pem_private_key(known.key.encode(), password=None)
        certificate.verify_directly_issued_by(authority)
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except Exception:  # noqa: BLE001 - whatever cannot be read is replaced
        return False
    if key.public_key() != certificate.public_key() or {*names} != {*_names(hosts)}:
        return False
    third = (certificate.not_valid_after_utc - certificate.not_valid_before_utc) / 3
    return certificate.not_valid_before_utc <= now and certificate.not_valid_after_utc - now > third


def _certificates(known: ServingCertificate | None) -> list[x509.Certificate]:
    if known is None:
        return []
    try:
        return x509.load_pem_x509_certificates(known.authorities.encode())
    except ValueError:
        return []


def _names(hosts: Sequence[str]) -> list[x509.GeneralName]:
    found: list[x509.GeneralName] = []
    for host in hosts:
        try:
            found.append(x509.IPAddress(ipaddress.ip_address(host)))
        except ValueError:
            found.append(x509.DNSName(host))
    return found


def _issue(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: tuple[x509.Certificate, ec.EllipticCurvePrivateKey] | None,
    hosts: Sequence[str],
    now: dt.datetime,
    days: int,
) -> x509.Certificate:
    """A certificate signed by `issuer`, or by itself; one without hosts is an authority."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if issuer is None else issuer[0].subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + dt.timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=not hosts, path_length=None), critical=True)
    )
    if hosts:
        builder = builder.add_extension(x509.SubjectAlternativeName(_names(hosts)), critical=False)
        builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    return builder.sign(key if issuer is None else issuer[1], hashes.SHA256())


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _private(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()


_object: Final = msgspec.json.Decoder(dict[str, Any]).decode


# --- on the API server ----------------------------------------------------------------------------------------------


async def ensure_certificate(
    client: Client, namespace: str, name: str, hosts: Sequence[str], now: dt.datetime
) -> ServingCertificate:
    """The certificate of the Secret, renewed and written when it is due. Raises ApiError and Unreachable.

    The clock of the API server, which the Secret shows, corrects a clock that is behind it, and after a write one
    that is ahead: a certificate for another time would be refused.
    """
    path = object_path("Secret", namespace, name)
    for attempt in range(_ATTEMPTS):
        secret = await get(client, path, _object)
        known = None if secret is None else _decode(secret)
        now = max(now, _last_write(secret)) if secret is not None else now
        wanted = renewed(known, hosts, now)
        if wanted == known:
            return wanted
        body = msgspec.json.encode(_encode(namespace, name, wanted, secret))
        try:
            if secret is None:
                response = await client.request("POST", collection_path("Secret", namespace), body=body)
            else:
                response = await client.request("PUT", path, body=body)
        except ApiError as error:
            if error.status != HTTPStatus.CONFLICT or attempt == _ATTEMPTS - 1:
                raise
        else:
            written = _last_write(_object(response))
            if abs(now - written) <= _SKEW:
                return wanted
            now = written
    return wanted


def _last_write(secret: dict[str, Any]) -> dt.datetime:
    """The time of the API server when a Secret was last written."""
    metadata = secret["metadata"]
    stamps = [metadata.get("creationTimestamp"), *(each.get("time") for each in metadata.get("managedFields") or ())]
    return dt.datetime.fromtimestamp(max(map(parse_time, stamps)), dt.UTC)


async def publish_authorities(client: Client, name: str, authorities: str) -> int:
    """Write `caBundle` of every webhook in the configurations called `name`; the number of configurations changed.

    A configuration that does not exist is left out. Raises ApiError and Unreachable.
    """
    bundle = base64.b64encode(authorities.encode()).decode()
    changed = 0
    for kind in _CONFIGURATIONS:
        path = object_path(kind, "", name)
        found = await get(client, path, _object)
        webhooks = (found or {}).get("webhooks") or []
        stale = [index for index, hook in enumerate(webhooks) if hook["clientConfig"].get("caBundle") != bundle]
        if not stale:
            continue
        operations: list[dict[str, Any]] = []
        for index in stale:
            operations += [
                {"op": "test", "path": f"/webhooks/{index}/name", "value": webhooks[index]["name"]},
                {"op": "add", "path": f"/webhooks/{index}/clientConfig/caBundle", "value": bundle},
            ]
        body = msgspec.json.encode(operations)
        with contextlib.suppress(ApiError):  # the configuration changed meanwhile: the next period sees it
            await client.request("PATCH", path, body=body, content_type="application/json-patch+json")
            changed += 1
    return changed


_FIELDS: Final = {"tls.crt": "certificate", "tls.key": "key", "ca.crt": "authorities", "ca.key": "authority_key"}


def _decode(secret: dict[str, Any]) -> ServingCertificate:
    data = secret.get("data") or {}
    texts = {}
    for key, field in _FIELDS.items():
        try:
            texts[field] = base64.b64decode(data.get(key, ""), validate=True).decode()
        except ValueError:
            texts[field] = ""
    return ServingCertificate(**texts)


def _encode(namespace: str, name: str, wanted: ServingCertificate, secret: dict[str, Any] | None) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": name, "namespace": namespace, "labels": {"app": "capcard-sched-admission"}}
    if secret is not None:
        metadata = secret["metadata"]  # with the resourceVersion: a concurrent writer makes this one start again
    data = {key: base64.b64encode(getattr(wanted, field).encode()).decode() for key, field in _FIELDS.items()}
    kind = "kubernetes.io/tls" if secret is None else secret.get("type", "Opaque")
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": kind, "data": data}
