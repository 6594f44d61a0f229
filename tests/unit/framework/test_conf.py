"""Scheduler-conf: valid files, what a problem costs, and that no content can do harm.

tests/malformed/confs.yaml has the messages.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capcard_sched.actions.allocate import Allocate
from capcard_sched.actions.enqueue import EnqueueArguments
from capcard_sched.framework.api.arguments import accepted_form
from capcard_sched.framework.api.hooks import FIXED_SWITCHES, SWITCHES
from capcard_sched.framework.api.plugin import Plugin
from capcard_sched.framework.api.problems import ConfProblem
from capcard_sched.framework.conf.metrics_section import PrometheusSettings, prometheus_of
from capcard_sched.framework.conf.registry import Registry, RegistryError
from capcard_sched.framework.conf.scheduler_conf import Conf, ConfResult, default_conf, default_text, parse_conf
from capcard_sched.framework.session.action import PlacingArguments
from capcard_sched.plugins.capacity_card.arguments import CapacityCardArguments
from capcard_sched.plugins.gang import Gang
from capcard_sched.testing import registry


class Broken(Plugin):
    name = "broken"

    @classmethod
    def parse_arguments(cls, raw: Any, problems: Any) -> Any:
        raise RuntimeError("no such luck")


GOOD = """
actions: "enqueue, allocate, backfill"
tiers:
- plugins:
  - name: gang
"""


def parse(text: str | bytes) -> ConfResult:
    return parse_conf(text, registry=registry().including([Broken], []))


def entry(text: str) -> str:
    """A conf with one plugin entry, on line 4."""
    return f"actions: allocate\ntiers:\n- plugins:\n  - {text}\n"


def card_arguments(text: str) -> Any:
    """What capacity-card gets with these arguments."""
    return accepted(entry("{name: capacity-card, arguments: {" + text + "}}")).tiers[0][0].arguments


def accepted(text: str) -> Conf:
    result = parse(text)
    assert result.conf is not None, [problem.render() for problem in result.problems]
    return result.conf


def plugins(conf: Conf) -> list[list[str]]:
    return [[option.name for option in tier] for tier in conf.tiers]


# --- valid files ----------------------------------------------------------------------------------------------------


def test_actions_tiers_and_plugins_keep_their_order_and_actions_lose_blanks() -> None:
    tiers = "tiers: [{plugins: [{name: nodeorder}, {name: gang}]}, {plugins: []}, {plugins: [{name: drf}]}]"
    conf = accepted(f'actions: " backfill ,allocate,, allocate "\n{tiers}')
    assert conf.actions == ("backfill", "allocate", "allocate")
    assert plugins(conf) == [["nodeorder", "gang"], [], ["drf"]]


def test_every_switch_is_filled_in_with_the_default_of_the_reference() -> None:
    conf = accepted(GOOD)
    assert conf.tiers[0][0].switches == SWITCHES
    unset = {name for name, value in SWITCHES.items() if not value}
    assert unset == {"enableHierarchy", "EnabledClusterOrder"}


@pytest.mark.parametrize("switch", sorted(SWITCHES))
def test_each_switch_is_read_under_its_irregular_spelling(switch: str) -> None:
    value = not SWITCHES[switch]
    result = parse(f'actions: "allocate"\ntiers: [{{plugins: [{{name: gang, {switch}: {str(value).lower()}}}]}}]')
    assert len(result.problems) == (switch in FIXED_SWITCHES)
    assert result.conf is not None
    assert result.conf.tiers[0][0].switches == {**SWITCHES, switch: value}


def test_arguments_become_the_struct_of_the_plugin() -> None:
    text = "cardUnlimitedCpuMemory: true, nodeOrderWeight: 2, podOwnerReferenceToServiceType: {Job: training}"
    assert card_arguments(text) == CapacityCardArguments(
        card_unlimited_cpu_memory=True, node_order_weight=2.0, pod_owner_reference_to_service_type={"Job": "training"}
    )


def test_null_is_as_good_as_absent_at_every_level() -> None:
    text = GOOD + "    enableJobOrder:\n    arguments:\nconfigurations:\nmetrics:\n"
    result = parse(text)
    assert result.problems == ()
    assert result.conf is not None
    assert result.conf.hash == accepted(GOOD).hash


def test_arguments_of_an_action_come_from_the_first_entry_with_its_name() -> None:
    first, second = (f"{{name: enqueue, arguments: {{inqueueTimeoutSeconds: {each}}}}}" for each in (4, 5))
    conf = accepted(GOOD + f"configurations: [{first}, {second}]")
    timeout = EnqueueArguments(inqueue_timeout_seconds=4)
    assert conf.action_arguments == {"enqueue": timeout, "allocate": PlacingArguments(), "backfill": PlacingArguments()}


def test_metrics_are_strings_for_every_yaml_type() -> None:
    conf = accepted(GOOD + "metrics: {type: prometheus, interval: 30s, tls.insecureSkipVerify: true, address: 5}")
    assert " ".join(conf.metrics.values()) == "prometheus 30s true 5"


@pytest.mark.parametrize("text", ["", "   \n\n", "---\n", "# a comment\n", "{}", '""', "null", b"", b"\xef\xbb\xbf"])
def test_an_empty_document_means_the_built_in_default_and_a_warning(text: str | bytes) -> None:
    result = parse(text)
    assert result.conf == default_conf(registry())
    assert [(problem.severity, problem.path) for problem in result.problems] == [("warning", "")]


def test_the_built_in_default_loads_without_warnings() -> None:
    assert parse(default_text()).problems == ()
    assert default_conf(registry()).actions == ("enqueue", "allocate", "backfill")
    assert default_conf(registry()).action_arguments["enqueue"] == EnqueueArguments(inqueue_timeout_seconds=600)
    switched_off = [
        option.name
        for tier in default_conf(registry()).tiers
        for option in tier
        if not option.switches["enablePreemptable"]
    ]
    assert switched_off == ["gang", "drf"]


def test_the_hash_follows_the_meaning_and_not_the_layout() -> None:
    same = '# comment\ntiers: [{plugins: [{name: "gang", enableJobOrder: true}]}]\nactions: enqueue,allocate,backfill\n'
    assert accepted(GOOD).hash == accepted(same).hash
    for other in (GOOD + "    enableJobOrder: false\n", GOOD.replace("gang", "drf"), GOOD.replace(", backfill", "")):
        assert accepted(GOOD).hash != accepted(other).hash


# --- invalid files: tests/malformed/confs.yaml has the messages -----------------------------------------------------


def test_a_plugin_that_fails_to_read_its_arguments_rejects_the_document() -> None:
    result = parse(entry("name: broken"))
    assert result.conf is None
    assert [problem.render() for problem in result.problems if problem.severity == "error"] == [
        "tiers[0].plugins[0].arguments (line 4): plugin broken cannot read its arguments: RuntimeError: no such luck"
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            "nodeOrderWeight: x, multiCardJobMode: both, overCommitFactor: 0, cardMinimum: allPods, podOwner: 1",
            CapacityCardArguments(card_minimum="allPods"), id="a scalar of the wrong type keeps its default",
        ),
        pytest.param(
            "podOwnerReferenceToServiceType: {Job: training, Pod: 5, ReplicaSet: Inference}",
            CapacityCardArguments(pod_owner_reference_to_service_type={"Job": "training"}),
            id="a wrong entry of a lenient map is dropped alone",
        ),
    ],
)  # fmt: skip
def test_a_wrong_argument_costs_nothing_else(text: str, expected: CapacityCardArguments) -> None:
    assert card_arguments(text) == expected


def test_all_errors_are_reported_at_once_in_the_order_of_the_document() -> None:
    result = parse(
        """
actions: [allocate]
tiers:
- plugins:
  - name: gang
    enableJobOrder: 1
  - enableJobReady: x
- gang
configurations: 5
"""
    )
    assert result.conf is None
    assert [(problem.path, problem.line) for problem in result.problems if problem.severity == "error"] == [
        ("actions", 2),
        ("tiers[0].plugins[0].enableJobOrder", 6),
        ("tiers[0].plugins[1].enableJobReady", 7),
        ("tiers[0].plugins[1].name", 7),
        ("tiers[1]", 8),
        ("configurations", 9),
    ]


def test_the_first_entry_of_a_plugin_listed_twice_counts() -> None:
    first = "{name: capacity-card, enableQueueOrder: false, arguments: {overCommitFactor: 2}}"
    conf = accepted(entry(f"{first}\n- plugins:\n  - {{name: capacity-card}}\n  - {{name: gang}}"))
    assert plugins(conf) == [["capacity-card"], ["gang"]]
    option = conf.option("capacity-card")
    assert option is not None
    assert option.arguments == CapacityCardArguments(over_commit_factor=2)
    assert option.switches["enableQueueOrder"] is False


def test_a_plugin_that_cannot_be_imported_rejects_the_document() -> None:
    class Elsewhere(Registry):
        def plugin(self, name: str) -> type[Plugin] | None:
            raise RegistryError(f"entry point {name} = x:Y (z): cannot be imported: ModuleNotFoundError: x")

    result = parse_conf(entry("name: gang"), registry=Elsewhere.of([Gang], [Allocate]))
    assert result.conf is None
    assert [(problem.path, "cannot be imported" in problem.message) for problem in result.problems] == [
        ("tiers[0].plugins[0].name", True)
    ]


def test_a_problem_is_rendered_on_one_line_with_all_its_parts() -> None:
    problem = ConfProblem("error", "tiers[0]", "expected a map, got a list", "hint", "a map", 3)
    assert problem.render() == "tiers[0] (line 3): expected a map, got a list; hint; accepted: a map"
    assert ConfProblem("error", "", "wrong").render() == "scheduler-conf: wrong"


def test_messages_stay_short_and_printable_for_any_content_of_the_file() -> None:
    result = parse(entry('{name: "a\\nb\\e[31m' + "x" * 5000 + '", "\\u202e' + "k" * 5000 + '": 1}'))
    for problem in result.problems:
        assert problem.render().isprintable()
        assert len(problem.render()) < 600


FORMS: list[tuple[Any, str]] = [
    (bool, "true or false"),
    (str, "a string"),
    (int, "an integer"),
    (Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)], "an integer >= 0 and <= 2147483647"),
    (Annotated[float, msgspec.Meta(gt=0.1)], "a number > 0.1"),
    (Annotated[float, msgspec.Meta(ge=0, le=1)], "a number >= 0 and <= 1"),
    (Literal["b", "a"], "one of a, b"),
    (dict[str, Annotated[int, msgspec.Meta(ge=1)]], "a map of strings to an integer >= 1"),
    (tuple[str, ...] | None, "a list, each entry a string"),
]


@pytest.mark.parametrize("type, words", FORMS, ids=[words for _, words in FORMS])
def test_the_accepted_form_is_written_in_words_and_whole_numbers(type: Any, words: str) -> None:
    assert accepted_form(type) == words


# --- metrics: the supported source, and messages about unsupported ones -----------------------------------------------


def _read(section: str) -> tuple[PrometheusSettings | None, list[str]]:
    result = parse(f"{GOOD}metrics: {section}\n")
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
    conf = accepted(f"{GOOD}metrics: {{type: elasticsearch, elasticsearch: {{password: secret, username: me}}}}\n")
    assert conf.metrics == {"type": "elasticsearch", "elasticsearch.username": "me"}


# --- nothing can crash it -------------------------------------------------------------------------------------------

WORDS = st.sampled_from(
    ["actions", "tiers", "plugins", "name", "arguments", "configurations", "metrics", "gang", "capacity-card", "shape",
     "nodeOrderWeight", "enableJobOrder", "allocate", "podOwnerReferenceToServiceType", "drf", "proportion"]
)  # fmt: skip
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | WORDS | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS | st.text(max_size=3), inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(WORDS, VALUES, max_size=4))
def test_any_document_is_accepted_or_rejected_with_a_reason(value: dict[str, Any]) -> None:
    result = parse(msgspec.json.encode(value))  # JSON is YAML, but for a few characters
    assert (result.conf is None) == any(problem.severity == "error" for problem in result.problems)


@given(
    st.text(alphabet=st.sampled_from("abn:-[]{}&*!|>'\"%@`#,? \n\t0.<\\\0é\ud800"), max_size=60)
    | st.binary(max_size=60)
)
def test_any_text_and_any_bytes_are_accepted_or_rejected_with_a_reason(content: str | bytes) -> None:
    result = parse(content)
    assert result.conf is not None or result.problems
    if isinstance(content, str) and "\ud800" in content:
        assert "half of a surrogate pair" in result.problems[0].message
