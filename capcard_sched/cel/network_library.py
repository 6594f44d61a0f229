"""The functions of Kubernetes on IP addresses, CIDRs and URLs."""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_interface
from typing import Any, Final
from urllib.parse import urlsplit

from capcard_sched.cel.text_library import parses
from capcard_sched.cel.values import Address, EvaluationError, Link, Network
from capcard_sched.model.quoting import quoted

Charge = Callable[[int], None]
_IP, _NET, _URL = Address, Network, Link


def _address(text: str) -> IPv4Address | IPv6Address | None:
    try:
        found = ip_address(text)
    except ValueError:
        return None
    mapped = isinstance(found, IPv6Address) and (found.ipv4_mapped is not None or found.scope_id is not None)
    return None if mapped else found


def _ip(_: Charge, text: str) -> Address:
    found = _address(text)
    if found is None:
        raise EvaluationError(f"{quoted(text)} is not an IP address")
    return Address(found)


def _network(text: str) -> Network | None:
    address, slash, bits = text.partition("/")
    if not slash or not bits.isdecimal() or _address(address) is None:
        return None
    try:
        found = ip_interface(text)
    except ValueError:
        return None
    return Network(found.ip, found.network)


def _cidr(_: Charge, text: str) -> Network:
    found = _network(text)
    if found is None:
        raise EvaluationError(f"{quoted(text)} is not a CIDR")
    return found


def _contains_ip(charge: Charge, network: Network, value: Any) -> bool:
    address = parses(_ip)(charge, value).value if type(value) is str else value.value
    return address in network.value


def _contains_cidr(charge: Charge, network: Network, value: Any) -> bool:
    other = parses(_cidr)(charge, value) if type(value) is str else value
    same = network.value.version == other.value.version
    return same and network.value.prefixlen <= other.value.prefixlen and other.value.network_address in network.value


def _link(text: str) -> Link | None:
    try:
        found = urlsplit(text)
        _ = found.port
    except ValueError:
        return None
    return Link(found) if found.scheme or text.startswith("/") else None


def _url(_: Charge, text: str) -> Link:
    found = _link(text)
    if found is None:
        raise EvaluationError(f"{quoted(text)} is not a URL")
    return found


def _host(link: Link) -> str:
    return link.value.netloc.rpartition("@")[2]


def _query(_: Charge, link: Link) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for part in link.value.query.split("&") if link.value.query else ():
        key, _sign, value = part.partition("=")
        found.setdefault(key, []).append(value)
    return found


NETWORK_FUNCTIONS: Final[dict[str, list[tuple[tuple[Any, ...], Callable[..., Any]]]]] = {
    "ip": [((str,), parses(_ip))],
    "isIP": [((str,), parses(lambda _, text: _address(text) is not None))],
    "cidr": [((str,), parses(_cidr))],
    "isCIDR": [((str,), parses(lambda _, text: _network(text) is not None))],
    "url": [((str,), parses(_url))],
    "isURL": [((str,), parses(lambda _, text: _link(text) is not None))],
    "ip.isCanonical": [((str,), parses(lambda _, text: str(_ip(_, text).value) == text))],
}
NETWORK_METHODS: Final[dict[str, list[tuple[tuple[Any, ...], Callable[..., Any]]]]] = {
    "family": [((_IP,), lambda _, value: value.value.version)],
    "isUnspecified": [((_IP,), lambda _, value: value.value.is_unspecified)],
    "isLoopback": [((_IP,), lambda _, value: value.value.is_loopback)],
    "isLinkLocalUnicast": [((_IP,), lambda _, value: value.value.is_link_local)],
    "isLinkLocalMulticast": [
        (
            (_IP,),
            lambda _, value: (
                value.value in ip_interface("224.0.0.0/24").network
                if value.value.version == 4
                else value.value.packed[:2] == b"\xff\x02"
            ),
        )
    ],
    "isGlobalUnicast": [
        (
            (_IP,),
            lambda _, value: (
                not (
                    value.value.is_unspecified
                    or value.value.is_loopback
                    or value.value.is_multicast
                    or value.value.is_link_local
                    or str(value.value) == "255.255.255.255"
                )
            ),
        )
    ],
    "containsIP": [((_NET, (str, _IP)), _contains_ip)],
    "containsCIDR": [((_NET, (str, _NET)), _contains_cidr)],
    "ip": [((_NET,), lambda _, value: Address(value.address))],
    "masked": [((_NET,), lambda _, value: Network(value.value.network_address, value.value))],
    "prefixLength": [((_NET,), lambda _, value: value.value.prefixlen)],
    "getScheme": [((_URL,), lambda _, value: value.value.scheme)],
    "getHost": [((_URL,), lambda _, value: _host(value))],
    "getHostname": [((_URL,), lambda _, value: value.value.hostname or "")],
    "getPort": [((_URL,), lambda _, value: "" if value.value.port is None else str(value.value.port))],
    "getEscapedPath": [((_URL,), lambda _, value: value.value.path)],
    "getQuery": [((_URL,), parses(_query))],
}
