"""The scheduler-conf's `metrics`: the source of measured node load."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import msgspec

from capcard_sched.framework.api.problems import nearest, shown, shown_text
from capcard_sched.model.timestamps import DurationError, parse_duration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from capcard_sched.framework.api.problems import ConfProblems

TYPE: Final = "type"
ADDRESS: Final = "address"
INTERVAL: Final = "interval"
INSECURE: Final = "tls.insecureSkipVerify"
NODE_LABEL: Final = "prometheus.nodeLabel"
#: Every key in Volcano's spelling; the last one is an extension.
KEYS: Final = (
    TYPE,
    ADDRESS,
    INTERVAL,
    INSECURE,
    "elasticsearch.index",
    "elasticsearch.username",
    "elasticsearch.password",
    "elasticsearch.hostnameFieldName",
    NODE_LABEL,
)
PROMETHEUS: Final = "prometheus"
#: Sources of Volcano that are not supported.
_OTHERS: Final = ("prometheus_adapt", "prometheus_adaptor", "elasticsearch")

#: Unused, so it does not reach dumps and recordings.
_UNUSED: Final = frozenset({"elasticsearch.password"})

_DEFAULT_INTERVAL: Final = 30.0
_ADDRESS_FORM: Final = "a URL such as http://prometheus.monitoring:9090"
_INTERVAL_FORM: Final = "a duration above 0 such as 30s"
_URL: Final = re.compile(
    r"https?://(?:[^/?#@\s]*@)?(?:\[[0-9a-fA-F:.]+\]|[^/?#@\s:\[\]]+)(?::(?P<port>[0-9]{1,5}))?(?:/[^?#\s]*)?"
)
_LABEL: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")


class PrometheusSettings(msgspec.Struct, frozen=True):
    """A Prometheus with node load."""

    #: URL up to the path before `/api/v1`, without a trailing slash.
    address: str
    #: Seconds between two queries.
    interval: float = _DEFAULT_INTERVAL
    #: Whether certificates are not verified.
    insecure: bool = False
    #: The label of the series that names the node, with or without a port.
    node_label: str = "instance"


def read_metrics(raw: Mapping[str, Any], problems: ConfProblems) -> dict[str, str]:
    """The section as strings under `KEYS`; parts in map form (`tls: {...}`) are under dotted keys.

    A value of a wrong structure is an error. Everything that prevents the measurement of load is a warning.
    """
    found: dict[str, str] = {}
    for key, value in _flat(raw):
        path = ("metrics", key)
        if key not in KEYS:
            problems.warning(path, "unknown key; it is ignored", hint=nearest(key, KEYS))
        elif isinstance(value, (dict, list)):
            problems.error(path, f"expected a string, got {shown(value)}")
        elif value is not None and key not in _UNUSED:
            found[key] = str(value).lower() if isinstance(value, bool) else str(value)
    if found and not problems.rejected:
        _check(found, problems)
    return found


def _flat(raw: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in raw.items():
        if isinstance(value, dict) and any(known.startswith(f"{key}.") for known in KEYS):
            yield from ((f"{key}.{name}", inner) for name, inner in value.items())
        else:
            yield key, value


def _check(found: Mapping[str, str], problems: ConfProblems) -> None:
    source = found.get(TYPE, PROMETHEUS)
    if source != PROMETHEUS:
        hint = nearest(source, (PROMETHEUS,))
        if source in _OTHERS:
            hint = "point address at a Prometheus that scrapes the nodes' exporters"
        problems.warning(
            ("metrics", TYPE),
            f'source "{shown_text(source)}" is not read here: no load of nodes is measured',
            hint=hint,
            accepted=PROMETHEUS,
        )
        return
    if ADDRESS not in found:
        message = "no address: no load of nodes is measured"
        problems.warning(("metrics", ADDRESS), message, accepted=_ADDRESS_FORM)
    for key, readable, form, consequence in (
        (ADDRESS, read_address, _ADDRESS_FORM, "no load of nodes is measured"),
        (INTERVAL, _interval, _INTERVAL_FORM, "30s is used"),
        (INSECURE, _truth, "true or false", "certificates are checked"),
        (NODE_LABEL, _label, "the name of a label", "instance is used"),
    ):
        _check_value(found, key, readable, form, consequence, problems)


def _check_value(
    found: Mapping[str, str],
    key: str,
    readable: Callable[[str], object],
    form: str,
    consequence: str,
    problems: ConfProblems,
) -> None:
    if key in found and readable(found[key]) is None:
        message = f'cannot be read: "{shown_text(without_password(found[key]))}"; {consequence}'
        problems.warning(("metrics", key), message, accepted=form)


def prometheus_of(metrics: Mapping[str, str]) -> PrometheusSettings | None:
    """The Prometheus of a checked section, with defaults for invalid values; None for none."""
    address = read_address(metrics.get(ADDRESS, ""))
    if metrics.get(TYPE, PROMETHEUS) != PROMETHEUS or address is None:
        return None
    return PrometheusSettings(
        address,
        _interval(metrics.get(INTERVAL, "")) or _DEFAULT_INTERVAL,
        bool(_truth(metrics.get(INSECURE, ""))),
        _label(metrics.get(NODE_LABEL, "")) or PrometheusSettings("").node_label,
    )


def read_address(text: str) -> str | None:
    """The URL of a Prometheus up to the path before `/api/v1`; None for another text."""
    match = _URL.fullmatch(text)
    return text.rstrip("/") if match is not None and 0 < int(match["port"] or 80) < 65536 else None


def _interval(text: str) -> float | None:
    try:
        seconds = parse_duration(text)
    except DurationError:
        return None
    return seconds if seconds > 0 else None


def _truth(text: str) -> bool | None:
    return {"true": True, "false": False}.get(text.lower())


def _label(text: str) -> str | None:
    return text if _LABEL.fullmatch(text) else None


def without_password(text: str) -> str:
    return re.sub(r"//[^/@]*@", "//", text)
