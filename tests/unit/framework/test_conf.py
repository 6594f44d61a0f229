"""Scheduler-conf: valid files, messages about invalid ones, and that no content can do harm."""

from typing import Annotated, Any, Literal, NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capcard_sched.framework.api.arguments import LENIENT
from capcard_sched.framework.api.hooks import SWITCHES
from capcard_sched.framework.api.plugin import Plugin
from capcard_sched.framework.api.problems import ConfProblem
from capcard_sched.framework.conf.registry import Registry
from capcard_sched.framework.conf.scheduler_conf import Conf, ConfResult, default_conf, default_text, parse_conf
from capcard_sched.framework.session.action import Action


class Shape(msgspec.Struct, frozen=True):
    utilization: int
    score: int


class CardArguments(msgspec.Struct, frozen=True):
    unlimited: bool = msgspec.field(name="cardUnlimitedCpuMemory", default=False)
    weight: Annotated[float, msgspec.Meta(gt=0)] = msgspec.field(name="nodeOrderWeight", default=1.0)
    mode: Literal["sum", "single"] = msgspec.field(name="multiCardJobMode", default="sum")
    owners: Annotated[dict[str, Literal["inference", "training"]], LENIENT] = msgspec.field(
        name="podOwnerReferenceToServiceType", default_factory=dict
    )
    count: Annotated[int, msgspec.Meta(ge=0)] = 3
    label: str = ""
    shape: list[Shape] = msgspec.field(default_factory=list)
    unnamed: str = msgspec.field(name="unnamedCards", default="ignore")


class CapacityCard(Plugin):
    name = "capacity-card"
    Arguments = CardArguments


class Binpack(Plugin):
    name = "binpack"
    Arguments = msgspec.defstruct(
        "BinpackArguments", [("weight", int, msgspec.field(name="binpack.weight", default=1))], frozen=True
    )

    @classmethod
    def parse_arguments(cls, raw: Any, problems: Any) -> Any:
        own = [key for key in raw if key.startswith("binpack.resources.")]
        for key in own:
            problems.read(raw, key, int, 1)
        return problems.decode(cls.Arguments, raw, handled=own)


class Broken(Plugin):
    name = "broken"

    @classmethod
    def parse_arguments(cls, raw: Any, problems: Any) -> Any:
        raise RuntimeError("no such luck")


class AllocateArguments(msgspec.Struct, frozen=True):
    batch: int = 16


class EnqueueArguments(msgspec.Struct, frozen=True):
    timeout: float = msgspec.field(name="inqueueTimeoutSeconds", default=0.0)


def _plugin(name: str) -> type[Plugin]:
    return type(name.title(), (Plugin,), {"name": name})


def _action(name: str, arguments: type[msgspec.Struct] = AllocateArguments) -> type[Action]:
    return type(name.title(), (Action,), {"name": name, "Arguments": arguments, "execute": lambda self, session: None})


REGISTRY = Registry.of(
    [
        CapacityCard,
        Binpack,
        Broken,
        *map(_plugin, ("priority", "gang", "conformance", "drf", "predicates", "proportion", "nodeorder")),
    ],
    [_action("enqueue", EnqueueArguments), _action("allocate"), _action("backfill")],
)

GOOD = """
actions: "enqueue, allocate, backfill"
tiers:
- plugins:
  - name: gang
"""


def parse(text: str | bytes) -> ConfResult:
    return parse_conf(text, registry=REGISTRY)


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
    assert result.problems == ()
    assert result.conf is not None
    assert result.conf.tiers[0][0].switches == {**SWITCHES, switch: value}


def test_arguments_become_the_struct_of_the_plugin() -> None:
    conf = accepted(
        """
actions: allocate
tiers:
- plugins:
  - name: capacity-card
    arguments:
      cardUnlimitedCpuMemory: true
      nodeOrderWeight: 2
      multiCardJobMode: single
      podOwnerReferenceToServiceType: {ReplicaSet: inference, Job: training}
      shape: [{utilization: 0, score: 10}]
"""
    )
    option = conf.option("capacity-card")
    assert option is not None
    assert option.arguments == CardArguments(
        True, 2.0, "single", {"ReplicaSet": "inference", "Job": "training"}, shape=[Shape(0, 10)]
    )
    assert option.raw_arguments["nodeOrderWeight"] == 2
    assert conf.option("gang") is None


def test_null_is_as_good_as_absent_at_every_level() -> None:
    text = GOOD + "    enableJobOrder:\n    arguments:\nconfigurations:\nmetrics:\n"
    result = parse(text)
    assert result.problems == ()
    assert result.conf is not None
    assert result.conf.hash == accepted(GOOD).hash


def test_arguments_of_an_action_come_from_the_first_entry_with_its_name() -> None:
    result = parse(
        GOOD + "configurations: [{name: allocate, arguments: {batch: 4}}, {name: allocate, arguments: {batch: 5}}]"
    )
    assert result.conf is not None
    assert result.conf.action_arguments == {
        "enqueue": EnqueueArguments(),
        "allocate": AllocateArguments(4),
        "backfill": AllocateArguments(),
    }
    assert [problem.path for problem in result.problems] == ["configurations[1].name"]


def test_metrics_are_strings_for_every_yaml_type() -> None:
    conf = accepted(GOOD + "metrics: {type: prometheus, interval: 30s, tls.insecureSkipVerify: true, address: 5}")
    assert " ".join(conf.metrics.values()) == "prometheus 30s true 5"


@pytest.mark.parametrize("text", ["", "   \n\n", "---\n", "# a comment\n", "{}", '""', "null", b"", b"\xef\xbb\xbf"])
def test_an_empty_document_means_the_built_in_default_and_a_warning(text: str | bytes) -> None:
    result = parse(text)
    assert result.conf == default_conf(REGISTRY)
    assert [(problem.severity, problem.path) for problem in result.problems] == [("warning", "")]


def test_the_built_in_default_loads_without_warnings() -> None:
    assert parse(default_text()).problems == ()
    assert default_conf(REGISTRY).actions == ("enqueue", "allocate", "backfill")
    assert default_conf(REGISTRY).action_arguments["enqueue"] == EnqueueArguments(600)
    switched_off = [
        option.name
        for tier in default_conf(REGISTRY).tiers
        for option in tier
        if not option.switches["enablePreemptable"]
    ]
    assert switched_off == ["gang", "drf"]


def test_the_hash_follows_the_meaning_and_not_the_layout() -> None:
    same = '# comment\ntiers: [{plugins: [{name: "gang", enableJobOrder: true}]}]\nactions: enqueue,allocate,backfill\n'
    assert accepted(GOOD).hash == accepted(same).hash
    for other in (GOOD + "    enableJobOrder: false\n", GOOD.replace("gang", "drf"), GOOD.replace(", backfill", "")):
        assert accepted(GOOD).hash != accepted(other).hash


def test_a_file_written_for_the_reference_loads_with_warnings_only() -> None:
    result = parse(
        """
actions: "enqueue, allocate, preempt, reclaim, backfill"
tiers:
- plugins:
  - name: priority
  - name: gang
    enablePreemptable: false
  - name: conformance
  - name: sla
    arguments:
      sla-waiting-time: 1h2m3s4ms5us6ns
- plugins:
  - name: drf
    enablePreemptable: false
  - name: predicates
    arguments:
      predicate.GPUSharingEnable: true
  - name: capacity-card
    arguments:
      cardUnlimitedCpuMemory: "true"
  - name: nodeorder
"""
    )
    assert result.conf is not None
    assert plugins(result.conf) == [
        ["priority", "gang", "conformance"],
        ["drf", "predicates", "capacity-card", "nodeorder"],
    ]
    assert result.conf.actions == ("enqueue", "allocate", "backfill")
    assert {problem.path for problem in result.problems} == {
        "actions",
        "tiers[0].plugins[3].name",
        'tiers[1].plugins[1].arguments["predicate.GPUSharingEnable"]',
        "tiers[1].plugins[2].arguments.cardUnlimitedCpuMemory",
    }
    assert sum(problem.path == "actions" for problem in result.problems) == 2


# --- messages about invalid files -----------------------------------------------------------------------------------


class Case(NamedTuple):
    """One malformed conf and the one problem that must be reported (others may stand beside it)."""

    id: str
    text: str | bytes
    severity: str
    path: str
    message: str
    hint: str = ""
    line: int | None = None


def entry(text: str) -> str:
    """A conf with one plugin entry, on line 4."""
    return f"actions: allocate\ntiers:\n- plugins:\n  - {text}\n"


def argument(text: str) -> str:
    """A conf with one argument of capacity-card."""
    return entry("{name: capacity-card, arguments: {" + text + "}}")


CARD = "tiers[0].plugins[0].arguments"

CASES = [
    # the document
    Case("the document is a list", "- actions", "error", "", "expected a map, got a list"),
    Case("no key is known", "action: allocate", "error", "", "found action", 'did you mean "actions"?'),
    Case("a ConfigMap", "kind: ConfigMap\ndata: {a: b}", "error", "", "found kind, data", "a Kubernetes object"),
    Case("not YAML: a missing bracket", "actions: [allocate", "error", "", "not valid YAML", line=1),
    Case("not YAML: a stray colon", "actions: a: b", "error", "", "mapping values are not allowed", line=1),
    Case("a tab for indentation", "tiers:\n\t- plugins: []", "error", "", "indent with spaces", line=2),
    Case("a control character", "actions: \x00", "error", "", "not valid YAML"),
    Case("half of a surrogate pair", "actions: \ud800", "error", "", "half of a surrogate pair"),
    Case("binary", b"\x7fELF\x02\x01\xff\xfe\x00", "error", "", "not UTF-8 text (byte 7); is it a binary file?"),
    Case("UTF-16", GOOD.encode("utf-16"), "error", "", "not UTF-8 text"),
    Case("too long", "#" * (1 << 20) + "\n" + GOOD, "error", "", "longer than 1048576 bytes"),
    Case("two documents", GOOD + "---\n" + GOOD, "error", "", "expected a single document"),
    Case("a key twice", "actions: allocate\nactions: enqueue", "error", "", "(first on line 1)", line=2),
    Case("a key twice, deep", entry("{name: gang, name: drf}"), "error", "", "the key 'name' occurs twice", line=4),
    Case("an alias", "actions: &a allocate\ntiers: *a", "error", "", "the alias *a is not accepted", line=2),
    Case("a merge key", "<<: {actions: allocate}", "error", "", "the merge key << is not accepted"),
    Case("a Python object", "actions: !!python/object/apply:os.system [id]", "error", "", "the tag", line=1),
    Case("an unknown tag", "actions: !mine allocate", "error", "", "the tag '!mine' is not supported"),
    Case("a number that is none", "metrics: {interval: !!int abc}", "error", "", "'abc' is not an integer"),
    Case("a map as a key", "{a: b}: c", "error", "", "a key must be a plain word"),
    Case("nested far too deeply", "tiers: " + "[" * 50000, "error", "", "nested more than 32 levels deep"),
    Case("an integer of many digits", "actions: " + "9" * 5000, "error", "", "is not an integer: too long"),
    # top level
    Case("an unknown key", GOOD + "acctions: x", "warning", "acctions", "ignored", 'did you mean "actions"?', 6),
    Case("a key in the wrong case", GOOD + "Metrics: {}", "warning", "Metrics", "ignored", 'did you mean "metrics"?'),
    Case("actions are a list", "actions: [enqueue, allocate]", "error", "actions", "expected a string, got a list"),
    Case("actions are true", "actions: yes", "error", "actions", "expected a string, got true"),
    Case("actions are blank", GOOD.replace("enqueue, allocate, backfill", " , "), "warning", "actions", "no actions"),
    Case("actions are missing", "tiers: [{plugins: [{name: gang}]}]", "warning", "", "no actions; the built-in"),
    Case("an unknown action", GOOD.replace("backfill", "backfil"), "warning", "actions", 'unknown action "backfil"',
         'did you mean "backfill"?', 2),
    Case("no action is known", GOOD.replace("enqueue, allocate, backfill", "foo"), "error", "actions", "none of the"),
    Case("tiers are missing", "actions: allocate", "warning", "", "no tiers; the built-in ones are used"),
    Case("tiers are a map", "tiers: {plugins: []}", "error", "tiers", "expected a list, got a map"),
    Case("tiers are empty", "actions: allocate\ntiers: []", "warning", "tiers", "no plugin is enabled"),
    Case("configurations are a map", GOOD + "configurations: {}", "error", "configurations", "expected a list"),
    Case("metrics are a list", GOOD + "metrics: []", "error", "metrics", "expected a map, got a list"),
    Case("a metrics value is a map", GOOD + "metrics: {address: {}}", "error", "metrics.address", "expected a string"),
    Case("an unknown metrics key", GOOD + "metrics: {adress: x}", "warning", "metrics.adress", "unknown key",
         'did you mean "address"?'),
    # tiers and entries
    Case("a tier is a string", "tiers: [gang]", "error", "tiers[0]", 'expected a map, got the string "gang"'),
    Case("a tier has an unknown key", "actions: allocate\ntiers: [{plugin: []}]", "warning", "tiers[0].plugin",
         "unknown key", 'did you mean "plugins"?'),
    Case("plugins are a map", "tiers: [{plugins: {name: gang}}]", "error", "tiers[0].plugins", "expected a list"),
    Case("an entry is a string", entry("gang"), "error", "tiers[0].plugins[0]", 'got the string "gang"', line=4),
    Case("a name is missing", entry("{enableJobOrder: true}"), "error", "tiers[0].plugins[0].name", "is required"),
    Case("a name is a number", entry("{name: 5}"), "error", "tiers[0].plugins[0].name", "got the number 5"),
    Case("a name is blank", entry("{name: ' '}"), "error", "tiers[0].plugins[0].name", "expected a name"),
    Case("an unknown plugin", entry("name: gangg"), "warning", "tiers[0].plugins[0].name", 'unknown plugin "gangg"',
         'did you mean "gang"?', 4),
    Case("a regular spelling of an irregular switch", entry("{name: gang, enableAllocatable: true}"), "warning",
         "tiers[0].plugins[0].enableAllocatable", "ignored", 'did you mean "enabledAllocatable"?'),
    Case("a switch in lower case", entry("{name: gang, enablejoborder: true}"), "warning",
         "tiers[0].plugins[0].enablejoborder", "ignored", 'did you mean "enableJobOrder"?'),
    Case("a switch is a string", entry('{name: gang, enableJobOrder: "true"}'), "error",
         "tiers[0].plugins[0].enableJobOrder", 'expected true or false, got the string "true"'),
    Case("a switch is a number", entry("{name: gang, enabledVictim: 1}"), "error",
         "tiers[0].plugins[0].enabledVictim", "expected true or false, got the number 1"),
    Case("a switch of an unknown plugin is wrong", entry("{name: foo, enabledVictim: []}"), "error",
         "tiers[0].plugins[0].enabledVictim", "expected true or false, got a list"),
    Case("arguments are a list", entry("{name: gang, arguments: [a]}"), "error", "tiers[0].plugins[0].arguments",
         "expected a map, got a list"),
    Case("a plugin is listed twice", entry("{name: gang}\n  - {name: gang}"), "warning", "tiers[0].plugins[1].name",
         'plugin "gang" is listed twice; the first entry', "", 5),
    # arguments
    Case("an unknown argument", argument("nodeOrderWeigth: 1"), "warning", f"{CARD}.nodeOrderWeigth",
         'plugin capacity-card has no argument "nodeOrderWeigth"', 'did you mean "nodeOrderWeight"?', 4),
    Case("an argument for a plugin without any", entry("{name: gang, arguments: {a: 1}}"), "warning", f"{CARD}.a",
         'plugin gang has no argument "a"; it is ignored'),
    Case("a boolean is a string", argument('cardUnlimitedCpuMemory: "true"'), "warning",
         f"{CARD}.cardUnlimitedCpuMemory", 'expected true or false, got the string "true"; the default is used'),
    Case("a number is a string", argument('nodeOrderWeight: "2"'), "warning", f"{CARD}.nodeOrderWeight",
         'expected a number > 0, got the string "2"; the default is used'),
    Case("a number is out of bounds", argument("nodeOrderWeight: 0"), "warning", f"{CARD}.nodeOrderWeight",
         "expected a number > 0, got the number 0"),
    Case("a number is not a number", argument("nodeOrderWeight: .nan"), "warning", f"{CARD}.nodeOrderWeight", "> 0"),
    Case("a number is infinite", argument("nodeOrderWeight: .inf"), "warning", f"{CARD}.nodeOrderWeight", "> 0"),
    Case("a number is true", argument("nodeOrderWeight: true"), "warning", f"{CARD}.nodeOrderWeight", "got true"),
    Case("an integer is a float", argument("count: 2.5"), "warning", f"{CARD}.count", "expected an integer >= 0"),
    Case("an integer is a round float", argument("count: 2.0"), "warning", f"{CARD}.count", "expected an integer >= 0"),
    Case("an integer is negative", argument("count: -1"), "warning", f"{CARD}.count", "got the number -1"),
    Case("an integer is beyond 64 bits", argument(f"count: {2**70}"), "warning", f"{CARD}.count", "an integer >= 0"),
    Case("a string is a number", argument("label: 5"), "warning", f"{CARD}.label", "expected a string, got the number"),
    Case("a choice that is none", argument("multiCardJobMode: both"), "warning", f"{CARD}.multiCardJobMode",
         'expected one of single, sum, got the string "both"'),
    Case("a map with a wrong entry", argument("podOwnerReferenceToServiceType: {Job: train}"), "warning",
         f"{CARD}.podOwnerReferenceToServiceType.Job", "the entry is dropped", 'did you mean "training"?'),
    Case("a map that is none", argument("podOwnerReferenceToServiceType: Job"), "warning",
         f"{CARD}.podOwnerReferenceToServiceType", 'got the string "Job"; the default is used'),
    Case("a structured argument of the wrong form", argument("shape: {a: 1}"), "error", f"{CARD}.shape",
         "Expected array, got object"),
    Case("a structured argument with a wrong leaf", argument('shape: [{utilization: 0, score: "x"}]'), "error",
         f"{CARD}.shape", "Expected int, got str at [0].score"),
    Case("an argument with dots", entry('{name: binpack, arguments: {binpack.weight: "3"}}'), "warning",
         f'{CARD}["binpack.weight"]', "expected an integer"),
    Case("an argument with a prefix", entry("{name: binpack, arguments: {binpack.resources.gpu: x}}"), "warning",
         f'{CARD}["binpack.resources.gpu"]', "expected an integer"),
    Case("a plugin that fails to read its arguments", entry("name: broken"), "error", CARD,
         "plugin broken cannot read its arguments: RuntimeError: no such luck"),
    # actions' arguments
    Case("a configuration without a name", GOOD + "configurations: [{arguments: {}}]", "error",
         "configurations[0].name", "is required"),
    Case("a configuration of an unknown action", GOOD + "configurations: [{name: alocate}]", "warning",
         "configurations[0].name", 'unknown action "alocate"', 'did you mean "allocate"?'),
    Case("a configuration with an unknown key", GOOD + "configurations: [{name: allocate, argument: {}}]", "warning",
         "configurations[0].argument", "unknown key", 'did you mean "arguments"?'),
    Case("an action's argument of the wrong type", GOOD + "configurations: [{name: allocate, arguments: {batch: x}}]",
         "warning", "configurations[0].arguments.batch", "expected an integer", "", 6),
    # combinations
    Case("proportion beside hierarchical drf", entry("{name: proportion}\n  - {name: drf, enableHierarchy: true}"),
         "error", "tiers[0].plugins[1].enableHierarchy", "proportion and drf with hierarchy enabled conflicts",
         "drop proportion, or enableHierarchy"),
    Case("proportion a tier away from hierarchical drf",
         entry("{name: proportion}\n- plugins:\n  - {name: drf, enableHierarchy: true}"),
         "warning", "tiers[1].plugins[0].enableHierarchy", "proportion and drf with hierarchy enabled conflicts"),
    Case("capacity-card beside proportion", entry("{name: proportion}\n  - {name: capacity-card}"), "warning",
         "tiers[0].plugins[0].name", '"proportion" beside "capacity-card"'),
    Case("capacity-card beside capacity", entry("{name: capacity-card}\n  - {name: capacity}"), "warning",
         "tiers[0].plugins[1].name", '"capacity" beside "capacity-card"'),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=[case.id for case in CASES])
def test_a_malformed_conf_is_reported_with_its_path_and_hint(case: Case) -> None:
    result = parse(case.text)
    found = [
        problem
        for problem in result.problems
        if problem.path == case.path and problem.severity == case.severity and case.message in problem.message
    ]
    assert found, [problem.render() for problem in result.problems]
    assert case.hint in found[0].hint if case.hint else not found[0].hint
    assert found[0].line == case.line or case.line is None
    assert (result.conf is None) == any(problem.severity == "error" for problem in result.problems)


def test_a_scalar_of_the_wrong_type_keeps_its_default() -> None:
    conf = accepted(argument("nodeOrderWeight: x, multiCardJobMode: both, count: -1, label: ok, podOwner: 1"))
    assert conf.tiers[0][0].arguments == CardArguments(label="ok")


def test_a_wrong_entry_of_a_lenient_map_is_dropped_alone() -> None:
    conf = accepted(argument("podOwnerReferenceToServiceType: {Job: training, Pod: 5, ReplicaSet: Inference}"))
    assert conf.tiers[0][0].arguments == CardArguments(owners={"Job": "training"})


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
    conf = accepted(
        entry(
            "{name: capacity-card, enableQueueOrder: false, arguments: {count: 1}}\n"
            "- plugins:\n  - {name: capacity-card, arguments: {count: 2}}\n  - {name: gang}"
        )
    )
    assert plugins(conf) == [["capacity-card"], ["gang"]]
    option = conf.option("capacity-card")
    assert option is not None
    assert option.arguments == CardArguments(count=1)
    assert option.switches["enableQueueOrder"] is False


def test_a_plugin_that_cannot_be_imported_rejects_the_document() -> None:
    class Elsewhere(Registry):
        def plugin(self, name: str) -> type[Plugin] | None:
            from capcard_sched.framework.conf.registry import RegistryError

            raise RegistryError(f"entry point {name} = x:Y (z): cannot be imported: ModuleNotFoundError: x")

    result = parse_conf(
        GOOD,
        registry=Elsewhere.of([], [_action("enqueue"), _action("allocate"), _action("backfill")]),
    )
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
