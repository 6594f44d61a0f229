"""Serving certificates: what is kept, what is renewed, and what a client trusts afterwards."""

from __future__ import annotations

import datetime as dt
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography import x509

from capcard_sched.daemon.admission.certificates import (
    AUTHORITY_DAYS,
    SERVING_DAYS,
    ServingCertificate,
    renewed,
)
from capcard_sched.daemon.admission.serving_context import ServingContext

NOW = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
HOSTS = ("admission.capcard-system.svc", "127.0.0.1")


def days(count: float) -> dt.datetime:
    return NOW + dt.timedelta(days=count)


def authorities(known: ServingCertificate) -> list[x509.Certificate]:
    return x509.load_pem_x509_certificates(known.authorities.encode())


def serving(known: ServingCertificate) -> x509.Certificate:
    return x509.load_pem_x509_certificate(known.certificate.encode())


def test_a_certificate_is_kept_until_the_last_third_of_its_time() -> None:
    first = renewed(None, HOSTS, NOW)
    assert renewed(first, HOSTS, days(0)) is first
    assert renewed(first, HOSTS, days(SERVING_DAYS * 0.66)) is first
    second = renewed(first, HOSTS, days(SERVING_DAYS * 0.67))
    assert second.certificate != first.certificate
    assert second.authorities == first.authorities


def test_a_serving_certificate_is_signed_by_the_first_authority_and_names_the_hosts() -> None:
    found = renewed(None, HOSTS, NOW)
    serving(found).verify_directly_issued_by(authorities(found)[0])
    names = serving(found).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == [HOSTS[0]]
    assert [str(each) for each in names.get_values_for_type(x509.IPAddress)] == [HOSTS[1]]


def test_the_former_authority_is_trusted_beside_a_new_one_until_it_ends() -> None:
    first = renewed(None, HOSTS, NOW)
    late = days(AUTHORITY_DAYS - SERVING_DAYS + 1)
    second = renewed(first, HOSTS, late)
    assert len(authorities(second)) == 2
    serving(second).verify_directly_issued_by(authorities(second)[0])
    assert authorities(second)[1] == authorities(first)[0]
    third = renewed(msgspec.structs.replace(second, authority_key=""), HOSTS, days(AUTHORITY_DAYS + 1))
    assert authorities(first)[0] not in authorities(third)


def test_other_hosts_renew_the_certificate() -> None:
    first = renewed(None, HOSTS, NOW)
    assert renewed(first, ("other.svc",), NOW).certificate != first.certificate


@pytest.mark.parametrize("field", ["certificate", "key", "authorities", "authority_key"])
@pytest.mark.parametrize("text", ["", "no PEM", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"])
def test_a_malformed_secret_is_replaced(field: str, text: str) -> None:
    broken = msgspec.structs.replace(renewed(None, HOSTS, NOW), **{field: text})
    found = renewed(broken, HOSTS, NOW)
    assert found != broken
    serving(found).verify_directly_issued_by(authorities(found)[0])
    assert renewed(found, HOSTS, NOW) is found


def test_a_key_of_another_certificate_is_replaced() -> None:
    first, other = renewed(None, HOSTS, NOW), renewed(None, HOSTS, NOW)
    assert renewed(msgspec.structs.replace(first, key=other.key), HOSTS, NOW).key not in {first.key, other.key}


@pytest.mark.parametrize("ahead", [1, SERVING_DAYS, 2 * AUTHORITY_DAYS])
def test_a_certificate_of_a_clock_that_stood_ahead_is_replaced(ahead: float) -> None:
    first = renewed(None, HOSTS, NOW)
    wrong = renewed(msgspec.structs.replace(first, certificate=""), HOSTS, days(ahead))
    found = renewed(wrong, HOSTS, NOW)
    assert serving(found).not_valid_before_utc <= NOW < serving(found).not_valid_after_utc
    assert authorities(found)[0].not_valid_before_utc <= NOW < authorities(found)[0].not_valid_after_utc
    serving(found).verify_directly_issued_by(authorities(found)[0])
    assert renewed(found, HOSTS, NOW) is found


_MESSAGES = [
    ("valid", {}, ""),
    ("from the future", {"now": dt.timedelta(days=30)}, "a handshake fails: certificate is not yet valid"),
    ("over", {"now": dt.timedelta(days=-AUTHORITY_DAYS)}, "a handshake fails: certificate has expired"),
    ("of another authority", {"authorities": "other"}, "a handshake fails: certificate signature failure"),
    ("for another host", {"host": "other.svc"}, "a handshake fails: Hostname mismatch*"),
    ("from a file", {"authorities": "", "host": ""}, ""),
    (
        "from a file, from the future",
        {"authorities": "", "host": "", "now": dt.timedelta(days=30)},
        "a handshake fails: certificate is not yet valid",
    ),
]


@pytest.mark.parametrize("needs_client", [False, True], ids=["", "clients need a certificate"])
@pytest.mark.parametrize("given, message", [row[1:] for row in _MESSAGES], ids=[row[0] for row in _MESSAGES])
def test_a_handshake_with_the_own_certificate_shows_its_problem(
    given: dict[str, Any], message: str, needs_client: bool, tmp_path: Path
) -> None:
    now = dt.datetime.now(dt.UTC)
    known = renewed(None, HOSTS, now + given.get("now", dt.timedelta()))
    trusted = {"other": renewed(None, HOSTS, now).authorities}.get(
        given.get("authorities", "own"), given.get("authorities", known.authorities)
    )
    bundle = tmp_path / "ca.crt"
    bundle.write_text(known.authorities)
    context = ServingContext(bundle if needs_client else None)
    assert context.load(known.certificate.encode(), known.key.encode(), trusted, given.get("host", HOSTS[0]))
    assert fnmatchcase(context.problem(), message), context.problem()
