"""The scheduler-conf's `metrics`: the supported source, and messages about unsupported ones."""

from __future__ import annotations

import pytest

from capcard_sched.framework.conf.metrics_section import PrometheusSettings, prometheus_of
from capcard_sched.framework.conf.scheduler_conf import parse_conf
from capcard_sched.testing import registry

GOOD = 'actions: "allocate"\ntiers: [{plugins: [{name: usage}]}]\n'


def _read(section: str) -> tuple[PrometheusSettings | None, list[str]]:
    result = parse_conf(f"{GOOD}metrics: {section}\n", registry=registry())
    assert result.conf is not None, result.problems
    return prometheus_of(result.conf.metrics), [problem.render() for problem in result.problems]


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        pytest.param(
            '{type: prometheus, address: "http://p:9090/", interval: 1m}', PrometheusSettings("http://p:9090", 60.0),
            id="as in the reference's guide",
        ),
        pytest.param('{address: "https://p/sub"}', PrometheusSettings("https://p/sub"), id="prometheus is the default"),
        pytest.param(
            '{address: "https://p", tls.insecureSkipVerify: "true"}', PrometheusSettings("https://p", insecure=True),
            id="a dotted key",
        ),
        pytest.param(
            '{address: "https://p", tls: {insecureSkipVerify: true}}', PrometheusSettings("https://p", insecure=True),
            id="the same as a map",
        ),
        pytest.param(
            '{type: prometheus, address: "http://10.0.0.1:9090", interval: 30s, tls: {insecureSkipVerify: "false"}, '
            'elasticsearch: {index: "i", username: "", password: "", hostnameFieldName: "host.hostname"}}',
            PrometheusSettings("http://10.0.0.1:9090"), id="every key at once, as guides print them",
        ),
        pytest.param('{address: "http://[::1]:9090"}', PrometheusSettings("http://[::1]:9090"), id="an IPv6 address"),
        pytest.param('{address: "http://u:p@h/x/"}', PrometheusSettings("http://u:p@h/x"), id="a user and a path"),
        pytest.param(
            '{address: "http://p", prometheus.nodeLabel: node}', PrometheusSettings("http://p", node_label="node"),
            id="a label of its own",
        ),
    ],
)  # fmt: skip
def test_a_prometheus_is_read(section: str, expected: PrometheusSettings) -> None:
    assert _read(section) == (expected, [])


@pytest.mark.parametrize("source", ["prometheus_adapt", "prometheus_adaptor", "elasticsearch"])
def test_an_unsupported_source_names_the_supported_one_and_the_file_loads(source: str) -> None:
    settings, problems = _read(
        f"{{type: {source}, address: 'http://x', elasticsearch: {{password: secret, index: i}}}}"
    )
    assert settings is None
    assert len(problems) == 1
    assert problems[0].startswith("metrics.type")
    for words in (f'source "{source}" is not read here', "no load of nodes is measured", "accepted: prometheus"):
        assert words in problems[0]


def test_a_misspelt_source_gets_a_hint() -> None:
    assert 'did you mean "prometheus"?' in _read("{type: promethues, address: 'http://x'}")[1][0]


@pytest.mark.parametrize(
    ("section", "path", "words"),
    [
        ("{type: prometheus}", "metrics.address", "no address: no load of nodes is measured"),
        ("{address: 'p:9090'}", "metrics.address", "accepted: a URL such as http://"),
        ("{address: 'http://'}", "metrics.address", "cannot be read"),
        ("{address: 'http://p:99999'}", "metrics.address", "cannot be read"),
        ("{address: 'ftp://user:secret@p/'}", "metrics.address", '"ftp://p/"'),
        ("{address: 'http://p', interval: soon}", "metrics.interval", 'cannot be read: "soon"; 30s is used'),
        ("{address: 'http://p', interval: 0s}", "metrics.interval", "a duration above 0"),
        ("{address: 'http://p', tls: {insecureSkipVerify: maybe}}", "metrics", "certificates are checked"),
        ("{address: 'http://p', tls: {insecure: true}}", "metrics", 'did you mean "tls.insecureSkipVerify"?'),
        ("{address: 'http://p', prometheus.nodeLabel: 'a-b'}", "metrics", "instance is used"),
    ],
)
def test_an_unreadable_field_is_reported_with_its_path_and_the_rest_is_used(
    section: str, path: str, words: str
) -> None:
    settings, problems = _read(section)
    assert len(problems) == 1, problems
    assert problems[0].startswith(path)
    assert words in problems[0]
    assert settings in (None, PrometheusSettings("http://p"))


def test_no_section_names_no_source_and_is_no_problem() -> None:
    assert _read("{}") == (None, [])


def test_an_unused_password_is_not_kept() -> None:
    text = f"{GOOD}metrics: {{type: elasticsearch, elasticsearch: {{password: secret, username: me}}}}\n"
    conf = parse_conf(text, registry=registry()).conf
    assert conf is not None
    assert conf.metrics == {"type": "elasticsearch", "elasticsearch.username": "me"}
