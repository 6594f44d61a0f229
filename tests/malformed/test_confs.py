"""Malformed scheduler-confs: an error stops the program with its place, a warning does not stop the cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import pytest

from capcard_sched.cli.main import run
from capcard_sched.testing import registry
from tests.malformed.world import BIG, MANIFESTS

TOP = "actions, tiers, configurations, metrics"
ACTIONS = 'a string of names such as "enqueue, allocate, backfill"'
KNOWN_ACTIONS = "allocate, backfill, enqueue, preempt, reclaim, shuffle"
PLUGINS = ", ".join(sorted(registry().plugin_names()))
ENTRY = "a map such as {name: gang}"
NO_PLUGIN = "no plugin is enabled: jobs are placed wherever their requests fit"


class Problem(NamedTuple):
    """One line: `SEVERITY: FILE: PLACE: MESSAGE; HINT; accepted: FORM`."""

    severity: str
    #: Path, and the line it is on.
    place: str
    message: str
    hint: str = ""
    accepted: str = ""

    def line(self, path: Path) -> str:
        parts = [self.message, self.hint, f"accepted: {self.accepted}" if self.accepted else ""]
        return f"{self.severity}: {path}: {self.place}: {'; '.join(part for part in parts if part)}"


class Case(NamedTuple):
    """A scheduler-conf and all its messages."""

    id: str
    text: str | bytes
    problems: tuple[Problem, ...]


def error(place: str, message: str, hint: str = "", accepted: str = "") -> Problem:
    return Problem("error", place, message, hint, accepted)


def warning(place: str, message: str, hint: str = "", accepted: str = "") -> Problem:
    return Problem("warning", place, message, hint, accepted)


def document(id: str, text: str | bytes, *problems: Problem) -> Case:
    return Case(f"document: {id}", text, problems)


def unreadable(id: str, text: str | bytes, message: str, line: int = 0) -> Case:
    """Nothing of the file can be used."""
    place = f"scheduler-conf (line {line})" if line else "scheduler-conf"
    return document(id, text, error(place, message))


def entry(text: str) -> str:
    """A conf with one plugin entry, on line 4."""
    return f'actions: "enqueue, allocate"\ntiers:\n- plugins:\n  - {text}\n'


def plugin(id: str, text: str, *problems: Problem) -> Case:
    return Case(f"plugin: {id}", entry(text), problems)


def switch(key: str, value: str, *problems: Problem) -> Case:
    return plugin(f"{key}: {value}", f"{{name: gang, {key}: {value}}}", *problems)


def argument(name: str, key: str, value: str, form: str, got: str) -> Case:
    """A wrong value: the default is used."""
    path = f".{key}" if key.replace("-", "").isalnum() else f'["{key}"]'
    problems = warning(
        f"tiers[0].plugins[0].arguments{path} (line 4)",
        f"expected {form}, got {got}; the default is used",
        accepted=form,
    )
    return Case(f"{name}: {key}: {value}", entry(f"{{name: {name}, arguments: {{{key}: {value}}}}}"), (problems,))


def card(key: str, value: str, form: str, got: str) -> Case:
    return argument("capacity-card", key, value, form, got)


GOOD = entry("name: capacity-card")
NO_TIERS = warning("scheduler-conf (line 1)", "no tiers; the built-in ones are used")
NO_ACTIONS = warning(
    "scheduler-conf (line 1)", 'no actions; the built-in "enqueue, allocate, backfill" are used', accepted=ACTIONS
)
EMPTY = "the scheduler-conf is empty; the built-in default is used"
WEIGHT, FACTOR, SWITCH = "a number > 0", "a number >= 1", "true or false"
SERVICES = "one of inference, training"
OWNERS = "tiers[0].plugins[0].arguments.podOwnerReferenceToServiceType"

DOCUMENTS = [
    document("a list", "- actions", error("scheduler-conf (line 1)", "expected a map, got a list",
             accepted=f"a map with {TOP}")),
    document("a number", "5", error("scheduler-conf (line 1)", "expected a map, got the number 5",
             accepted=f"a map with {TOP}")),
    document("a whole ConfigMap", "kind: ConfigMap\ndata: {a: b}", error(
        "scheduler-conf (line 1)", "no key of a scheduler-conf in it (found kind, data)",
        "this is a Kubernetes object: pass the text under one key of its `data`", TOP)),
    document("a misspelt key alone", "action: enqueue", error(
        "scheduler-conf (line 1)", "no key of a scheduler-conf in it (found action)", 'did you mean "actions"?', TOP)),
    unreadable("an open bracket", "actions: [a",
               "not valid YAML: while parsing a flow sequence, did not find expected ',' or ']'", 1),
    unreadable("two colons", "actions: a: b", "not valid YAML: mapping values are not allowed in this context", 1),
    unreadable("a control character", "actions: \x00", "not valid YAML: control characters are not allowed"),
    unreadable("a Python object", "actions: !!python/object:os.system x",
               "the tag 'tag:yaml.org,2002:python/object:os.system' is not supported", 1),
    unreadable("an alias", "actions: &a x\ntiers: *a", "the alias *a is not accepted; write the value out", 2),
    unreadable("a merge key", "<<: {actions: b}", "the merge key << is not accepted; write the values out", 1),
    unreadable("a key twice", "actions: a\nactions: b",
               "the key 'actions' occurs twice in one mapping (first on line 1)", 2),
    unreadable("very deep", "tiers: " + "[" * 100_000, "nested more than 32 levels deep", 1),
    unreadable("two documents", f"{GOOD}---\n{GOOD}",
               "expected a single document, found another", 5),
    unreadable("too long", "#" * (1 << 20) + "\n", "longer than 1048576 bytes"),
    unreadable("a program", b"\x7fELF\xff", "not UTF-8 text (byte 5); is it a binary file?"),
    unreadable("UTF-16", GOOD.encode("utf-16-le"), "not valid YAML: control characters are not allowed"),
    document("empty", "", warning("scheduler-conf", EMPTY, accepted=TOP)),
    document("a comment", "# later", warning("scheduler-conf", EMPTY, accepted=TOP)),
    document("null", "null", warning("scheduler-conf (line 1)", EMPTY, accepted=TOP)),
    document("an unknown key", f"{GOOD}acctions: x",
             warning("acctions (line 5)", "unknown key; it is ignored", 'did you mean "actions"?')),
    document("a key in the wrong case", f"{GOOD}Metrics: {{}}",
             warning("Metrics (line 5)", "unknown key; it is ignored", 'did you mean "metrics"?')),
]  # fmt: skip

ACTION_CASES = [
    document("actions: a list", "actions: [enqueue]",
             error("actions (line 1)", "expected a string, got a list", accepted=ACTIONS), NO_TIERS),
    document("actions: a number", "actions: 5",
             error("actions (line 1)", "expected a string, got the number 5", accepted=ACTIONS), NO_TIERS),
    document("actions: none that is known", 'actions: "foo"',
             warning("actions (line 1)", 'unknown action "foo"; skipped', accepted=KNOWN_ACTIONS),
             error("actions (line 1)", "none of the actions is known", accepted=KNOWN_ACTIONS), NO_TIERS),
    document("actions: one that is unknown", GOOD.replace("allocate", "allocate, alocate"),
             warning("actions (line 1)", 'unknown action "alocate"; skipped', 'did you mean "allocate"?',
                     KNOWN_ACTIONS)),
    document("actions: a huge one", GOOD.replace("allocate", "allocate, " + "x" * 5000),
             warning("actions (line 1)", f'unknown action "{"x" * 57}..."; skipped', accepted=KNOWN_ACTIONS)),
    document("actions: nothing but commas", GOOD.replace("enqueue, allocate", " ,, "),
             warning("actions (line 1)", NO_ACTIONS.message, accepted=ACTIONS)),
    document("configurations: a map", f"{GOOD}configurations: {{}}",
             error("configurations (line 5)", "expected a list, got a map",
                   accepted="a list of maps with name and arguments")),
    document("configurations: without a name", f"{GOOD}configurations: [{{arguments: {{}}}}]",
             error("configurations[0].name (line 5)", "is required", accepted="{name: allocate, arguments: {}}")),
    document("configurations: of no plugin", f"{GOOD}configurations: [{{name: alocate}}]",
             warning("configurations[0].name (line 5)", 'unknown action "alocate"; skipped',
                     'did you mean "allocate"?')),
    document("configurations: an unknown argument", f"{GOOD}configurations: [{{name: allocate, arguments: {{x: 1}}}}]",
             warning("configurations[0].arguments.x (line 5)", 'action allocate has no argument "x"; it is ignored',
                     accepted="predicateErrorCacheEnable")),
    document("configurations: twice", f"{GOOD}configurations: [{{name: allocate}}, {{name: allocate}}]",
             warning("configurations[1].name (line 5)",
                     'action "allocate" is configured twice; the first entry counts')),
    document("metrics: a list", f"{GOOD}metrics: []", error("metrics (line 5)", "expected a map, got a list")),
    document("metrics: a map inside", f"{GOOD}metrics: {{address: {{}}}}",
             error("metrics.address (line 5)", "expected a string, got a map")),
    document("metrics: an unknown key", f"{GOOD}metrics: {{adress: x}}",
             warning("metrics.adress (line 5)", "unknown key; it is ignored", 'did you mean "address"?')),
]  # fmt: skip

PLUGIN_CASES = [
    document("tiers: a word", "actions: allocate\ntiers: gang", error(
        "tiers (line 2)", 'expected a list, got the string "gang"', accepted="a list of maps with plugins")),
    document("tiers: none", "actions: enqueue, allocate", NO_TIERS),
    document("tiers: empty", "actions: enqueue, allocate\ntiers: []", warning("tiers (line 2)", NO_PLUGIN)),
    document("tiers: null inside", "tiers: [null]", NO_ACTIONS,
             error("tiers[0] (line 1)", "expected a map, got nothing", accepted="a list of maps with plugins")),
    document("tiers: a misspelt key", "actions: enqueue, allocate\ntiers: [{plugin: []}]",
             warning("tiers[0].plugin (line 2)", "unknown key; it is ignored", 'did you mean "plugins"?'),
             warning("tiers (line 2)", NO_PLUGIN)),
    document("tiers: plugins in a map", "tiers: [{plugins: {name: gang}}]", NO_ACTIONS,
             error("tiers[0].plugins (line 1)", "expected a list, got a map", accepted=f"a list, each {ENTRY}")),
    plugin("a word", "gang", error("tiers[0].plugins[0] (line 4)", 'expected a map, got the string "gang"',
                                   accepted=f"a list, each {ENTRY}")),
    plugin("no name", "{enableJobOrder: true}",
           error("tiers[0].plugins[0].name (line 4)", "is required", accepted=ENTRY)),
    plugin("a name that is a number", "{name: 5}",
           error("tiers[0].plugins[0].name (line 4)", "expected a name, got the number 5", accepted=ENTRY)),
    plugin("unknown", "name: capacity_card",
           warning("tiers[0].plugins[0].name (line 4)", 'unknown plugin "capacity_card"; skipped',
                   'did you mean "capacity-card"?', PLUGINS),
           warning("tiers (line 2)", NO_PLUGIN)),
    plugin("huge", "name: " + "x" * 5000,
           warning("tiers[0].plugins[0].name (line 4)", f'unknown plugin "{"x" * 57}..."; skipped', accepted=PLUGINS),
           warning("tiers (line 2)", NO_PLUGIN)),
    plugin("twice", "name: gang\n  - name: gang",
           warning("tiers[0].plugins[1].name (line 5)",
                   'plugin "gang" is listed twice; the first entry and its arguments count, this one is skipped')),
    plugin("two quotas", "name: proportion\n  - name: capacity-card",
           warning("tiers[0].plugins[0].name (line 4)",
                   '"proportion" beside "capacity-card" is a second quota of cpu and memory; jobs must pass both')),
    plugin("hierarchical drf with proportion", "name: proportion\n  - {name: drf, enableHierarchy: true}",
           error("tiers[0].plugins[1].enableHierarchy (line 5)", "proportion and drf with hierarchy enabled conflicts",
                 "drop proportion, or enableHierarchy")),
    switch("enableJobOrder", "'yes'", error("tiers[0].plugins[0].enableJobOrder (line 4)",
                                            'expected true or false, got the string "yes"')),
    switch("enableJobReadyy", "true", warning("tiers[0].plugins[0].enableJobReadyy (line 4)",
                                              "unknown key; it is ignored", 'did you mean "enableJobReady"?')),
    switch("enableAllocatable", "true", warning("tiers[0].plugins[0].enableAllocatable (line 4)",
                                                "unknown key; it is ignored", 'did you mean "enabledAllocatable"?')),
    switch("arguments", "[]", error("tiers[0].plugins[0].arguments (line 4)", "expected a map, got a list")),
    switch("arguments", "{a: 1}", warning("tiers[0].plugins[0].arguments.a (line 4)",
                                          'plugin gang has no argument "a"; it is ignored', accepted="no arguments")),
]  # fmt: skip

ARGUMENTS = [
    card("cardUnlimitedCpuMemory", '"true"', SWITCH, 'the string "true"'),
    card("cardUnlimitedCpuMemory", "1", SWITCH, "the number 1"),
    card("cardNodeFilter", "[]", SWITCH, "a list"),
    card("nodeOrderWeight", "0", WEIGHT, "the number 0"),
    card("nodeOrderWeight", "-1", WEIGHT, "the number -1"),
    card("nodeOrderWeight", ".nan", WEIGHT, "the number nan"),
    card("nodeOrderWeight", ".inf", WEIGHT, "the number inf"),
    card("nodeOrderWeight", "true", WEIGHT, "true"),
    card("nodeOrderWeight", '"2"', WEIGHT, 'the string "2"'),
    card("nodeOrderWeight", "1e999999999", WEIGHT, "the number inf"),
    card("overCommitFactor", "0.5", FACTOR, "the number 0.5"),
    card("overCommitFactor", "{}", FACTOR, "a map"),
    card("overCommitFactor", str(BIG), FACTOR, f"the number {BIG}"),
    card("cardMinimum", "all", "one of allPods, minMember", 'the string "all"'),
    card("multiCardJobMode", "5", "one of single, sum", "the number 5"),
    card("unnamedCards", "Deny", "one of deny, ignore, infer", 'the string "Deny"'),
    card("podOwnerReferenceToServiceType", "Job", f"a map of strings to {SERVICES}", 'the string "Job"'),
    argument("nodeorder", "nodeaffinity.weight", "heavy", "an integer", 'the string "heavy"'),
    argument("nodeorder", "leastrequested.weight", str(BIG), "an integer", f"the number {BIG}"),
    argument("binpack", "binpack.weight", "2.5", "an integer", "the number 2.5"),
    argument("binpack", "binpack.resources", "5", "a string", "the number 5"),
    argument("predicates", "predicate.NodeAffinityEnable", "maybe", SWITCH, 'the string "maybe"'),
    argument("overcommit", "overcommit-factor", ".nan", FACTOR, "the number nan"),
    argument("overcommit", "overcommit-factor", "-1", FACTOR, "the number -1"),
    plugin("capacity-card: wrong service types",
           "{name: capacity-card, arguments: {podOwnerReferenceToServiceType: {Job: train, Pod: 5}}}",
           warning(f"{OWNERS}.Job (line 4)", f'expected {SERVICES}, got the string "train"; the entry is dropped',
                   'did you mean "training"?', SERVICES),
           warning(f"{OWNERS}.Pod (line 4)", f"expected {SERVICES}, got the number 5; the entry is dropped",
                   accepted=SERVICES)),
    plugin("capacity-card: a misspelt argument", "{name: capacity-card, arguments: {nodeOrderWeigth: 2}}",
           warning("tiers[0].plugins[0].arguments.nodeOrderWeigth (line 4)",
                   'plugin capacity-card has no argument "nodeOrderWeigth"; it is ignored',
                   'did you mean "nodeOrderWeight"?')),
    # Legal, and beyond everything that a cluster has: no message, and nothing overflows.
    *(
        plugin(f"extreme: {name} {key} {value}", f"{{name: {name}, arguments: {{{key}: {value}}}}}")
        for name, key, value in (
            ("capacity-card", "nodeOrderWeight", "1.0e+300"), ("capacity-card", "overCommitFactor", "1.0e+300"),
            ("overcommit", "overcommit-factor", "1.0e+300"), ("binpack", "binpack.weight", str(2**63 - 1)),
            ("nodeorder", "leastrequested.weight", str(2**63 - 1)),
            ("nodeorder", "balancedresource.weight", str(-(2**63))),
        )
    ),
]  # fmt: skip

CASES = [*DOCUMENTS, *ACTION_CASES, *PLUGIN_CASES, *ARGUMENTS]


@pytest.mark.parametrize("case", [pytest.param(case, id=case.id) for case in CASES])
def test_an_error_stops_the_simulation_and_a_warning_does_not(
    case: Case, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifests, conf = tmp_path / "good.yaml", tmp_path / "conf.yaml"
    manifests.write_text(MANIFESTS)
    conf.write_bytes(case.text if isinstance(case.text, bytes) else case.text.encode())
    rejected = any(problem.severity == "error" for problem in case.problems)
    expected = [problem.line(conf) for problem in case.problems]
    flags = ["-f", str(manifests), "--scheduler-conf", str(conf), "-o", "json"]
    assert run(["simulate", *flags]) == (2 if rejected else 0)
    captured = capsys.readouterr()
    if rejected:
        assert captured.out == ""
        assert captured.err.splitlines() == [*expected, f"error: {conf}: invalid scheduler-conf"]
        return
    # Without capacity-card the card quota of the manifests is one more warning.
    assert [line for line in captured.err.splitlines() if "card.quota" not in line] == expected
    pods = [item for item in json.loads(captured.out)["items"] if item["kind"] == "Pod"]
    assert [pod["spec"].get("nodeName") for pod in pods] == ["good", "good"]


@pytest.mark.parametrize("case", [pytest.param(case, id=case.id) for case in CASES])
def test_validate_reports_the_same(case: Case, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    conf = tmp_path / "conf.yaml"
    conf.write_bytes(case.text if isinstance(case.text, bytes) else case.text.encode())
    rejected = any(problem.severity == "error" for problem in case.problems)
    assert run(["validate", "--scheduler-conf", str(conf), "-o", "json"]) == (2 if rejected else 0)
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert [
        (row["severity"], row["file"], row.get("field", ""), row["message"], row.get("accepted", ""))
        for row in findings
        if row["severity"] != "note"
    ] == [
        (
            problem.severity,
            str(conf),
            problem.place.removeprefix("scheduler-conf").strip(),
            "; ".join(filter(None, (problem.message, problem.hint))),
            problem.accepted,
        )
        for problem in case.problems
    ]
