"""Sources of plugins and actions, and input that is refused before it can reach a session."""

import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import ClassVar

import pytest

from capcard_sched.framework.api.dispatch import Dispatch
from capcard_sched.framework.api.hooks import HOOKS
from capcard_sched.framework.api.node_hooks import OTHER_NODES, NodeHook, declared_hooks, score
from capcard_sched.framework.api.plugin import Plugin
from capcard_sched.framework.conf.registry import Registry, RegistryError, parameter_count
from capcard_sched.framework.session.action import Action

BUILT_IN_PLUGINS = {
    "priority", "gang", "conformance", "overcommit", "drf", "predicates", "nodeorder", "binpack", "proportion",
    "capacity-card",
}  # fmt: skip
BUILT_IN_ACTIONS = {"enqueue", "allocate", "backfill"}


def folder(tmp_path: Path, **files: str) -> Path:
    for name, text in files.items():
        (tmp_path / f"{name}.py").write_text(text)
    return tmp_path


def refusal(tmp_path: Path, **files: str) -> str:
    with pytest.raises(RegistryError) as caught:
        Registry.load(folder(tmp_path, **files))
    return str(caught.value)


HEAD = (
    "from capcard_sched.framework.api.plugin import Plugin\nfrom capcard_sched.framework.session.action import Action\n"
)
NODE_HOOKS = "from capcard_sched.framework.api.node_hooks import filter\n"
GOOD = HEAD + "class Mine(Plugin):\n    name = 'mine'\n    def job_ready(self, job): return True\n"


# --- entry points ---------------------------------------------------------------------------------------------------


def test_the_built_in_parts_are_found_by_their_entry_points() -> None:
    registry = Registry.load()
    assert set(registry.plugin_names()) >= BUILT_IN_PLUGINS
    assert set(registry.action_names()) >= BUILT_IN_ACTIONS
    plugins = {name: registry.plugin(name) for name in registry.plugin_names()}
    actions = {name: registry.action(name) for name in registry.action_names()}
    assert {name: found and found.name for name, found in (plugins | actions).items()} == {
        name: name for name in (*plugins, *actions)
    }
    assert registry.plugin("gang") is plugins["gang"], "a class is imported once"


def test_an_unregistered_name_is_none() -> None:
    registry = Registry.load()
    assert registry.plugin("nobody") is None
    assert registry.action("gang") is None


def test_only_requested_modules_are_imported() -> None:
    code = (
        "import sys; from capcard_sched.framework.conf.registry import Registry; r = Registry.load(); r.plugin('gang');"
        "print(sorted(m for m in sys.modules if m.startswith('capcard_sched.plugins.')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['capcard_sched.plugins.gang']"


def test_without_an_installation_the_message_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "entry_points", lambda: metadata.EntryPoints(()))
    with pytest.raises(RegistryError, match="install capcard-sched into this environment"):
        Registry.load()


_API = "capcard_sched.framework.api"
ENTRY_CASES = {
    "a module that is missing": ("no_such_module:X", "ModuleNotFoundError"),
    "an attribute that is missing": (f"{_API}.plugin:X", "AttributeError"),
    "something that is no class": (f"{_API}.hooks:HOOKS", "not a subclass of Plugin"),
    "an action among the plugins": ("capcard_sched.framework.session.action:Action", "not a subclass of Plugin"),
    "a class without a name": (f"{_API}.plugin:Plugin", "has no name"),
    "a class of another name": ("capcard_sched.plugins.gang:Gang", "the class calls itself 'gang'"),
}


@pytest.mark.parametrize(("value", "message"), ENTRY_CASES.values(), ids=ENTRY_CASES)
def test_an_unusable_entry_point_is_refused_on_lookup(
    value: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = metadata.EntryPoint("x", value, "capcard_sched.plugins")
    monkeypatch.setattr(metadata, "entry_points", lambda: metadata.EntryPoints([entry]))
    registry = Registry.load()
    assert registry.plugin_names() == ("x",)
    with pytest.raises(RegistryError, match=message):
        registry.plugin("x")


def test_two_packages_that_claim_one_name_are_both_named(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [metadata.EntryPoint("x", value, "capcard_sched.plugins") for value in ("first:X", "second:X")]
    monkeypatch.setattr(metadata, "entry_points", lambda: metadata.EntryPoints(entries))
    with pytest.raises(RegistryError, match=r"second:X .*the name 'x' is taken by entry point x = first:X"):
        Registry.load()


# --- a folder -------------------------------------------------------------------------------------------------------


def test_a_folder_adds_plugins_and_actions(tmp_path: Path) -> None:
    text = GOOD + "class Tidy(Action):\n    name = 'tidy'\n    def execute(self, session): pass\n"
    registry = Registry.load(folder(tmp_path, mine=text))
    plugin, action = registry.plugin("mine"), registry.action("tidy")
    assert plugin is not None
    assert action is not None
    assert plugin().arguments == plugin.Arguments()
    assert "mine.py: Mine" in registry.place("plugin", "mine")


def test_private_files_and_imported_classes_are_left_alone(tmp_path: Path) -> None:
    registry = Registry.load(
        folder(
            tmp_path,
            _broken="1/0",
            mine=GOOD + "from capcard_sched.plugins.gang import Gang\nclass _Base(Plugin): pass\n",
        )
    )
    assert set(registry.plugin_names()) == {*Registry.load().plugin_names(), "mine"}


def test_an_arguments_struct_of_a_file_can_be_read(tmp_path: Path) -> None:
    from capcard_sched.framework.conf.scheduler_conf import parse_conf

    text = (
        "from __future__ import annotations\nimport msgspec\n"
        + HEAD
        + "Size = int\nclass A(msgspec.Struct):\n    size: Size = 1\n"
        "class Mine(Plugin):\n    name = 'mine'\n    Arguments = A\n"
    )
    registry = Registry.load(folder(tmp_path, mine=text))
    conf, problems = parse_conf(
        "actions: allocate\ntiers: [{plugins: [{name: mine, arguments: {size: 3}}]}]", registry=registry
    )
    assert problems == ()
    assert conf is not None
    assert conf.tiers[0][0].arguments.size == 3  # type: ignore[attr-defined]


PLUGIN = HEAD + "class P(Plugin):\n name = 'p'\n "
FOLDER_CASES = {
    "a syntax error": ("def", "bad.py: cannot be imported: SyntaxError"),
    "an import that fails": ("import no_such_module", "bad.py: cannot be imported: ModuleNotFoundError"),
    "code that raises": ("1/0", "bad.py: cannot be imported: ZeroDivisionError"),
    "a file without a class": ("x = 1", "bad.py: defines no subclass of Plugin or Action"),
    "a plugin without a name": (HEAD + "class P(Plugin): pass", "P: has no name"),
    "an action without a name": (HEAD + "class A(Action):\n def execute(self, s): pass", "A: has no name"),
    "an action without execute": (HEAD + "class A(Action): name = 'a'", "A: defines no execute(session)"),
    "an action whose execute takes too much": (
        HEAD + "class A(Action):\n name = 'a'\n def execute(self, session, more): pass",
        "A.execute: is called as execute(session) -> None, which does not fit: missing a required argument: 'more'",
    ),
    "a name that is taken": (
        HEAD + "class P(Plugin): name = 'gang'", "the name 'gang' is taken by entry point gang"),
    "one name twice in a file": (
        HEAD + "class P(Plugin): name = 'p'\nclass Q(Plugin): name = 'p'", "bad.py: Q: the name 'p' is taken by"),
    "a hook with a typing error": (
        PLUGIN + "def job_redy(self, job): pass", 'P.job_redy: there is no such hook; did you mean "job_ready"?'),
    "an event hook that does not exist": (
        PLUGIN + "def on_bind(self, task): pass",
        "P.on_bind: there is no such hook; known are on_allocate, on_deallocate"),
    "a filter without its decorator": (
        PLUGIN + "def filter(self, signature, view, result): pass",
        "P.filter: is declared with the decorator `@filter(reads=...)`"),
    "a filter with too few parameters": (
        NODE_HOOKS + PLUGIN + "@filter\n def fits(self, signature, view): pass",
        "P.fits: is called as fits(signature, node view, result) -> None, which does not fit"),
    "a former hook": (
        PLUGIN + "def predicate(self, signature, view, result): pass",
        "P.predicate: is replaced by `@filter(reads=...)`"),
    "a former hook that reads other nodes": (
        PLUGIN + "def predicate_domain(self, signature, view, result): pass",
        "P.predicate_domain: is replaced by `@filter(reads=OTHER_NODES, when=...)`"),
    "a former attribute": (
        PLUGIN + "time_dependent = True", "P.time_dependent: is replaced by `reads = Reads.CLOCK`"),
    "an attribute of the tree": (PLUGIN + "follows_tree = True", "P.follows_tree: is replaced by `reads = Reads.TREE`"),
    "a hook with too few parameters": (
        PLUGIN + "def allocatable(self, task): pass",
        "P.allocatable: is called as allocatable(queue, task) -> Refusal | None, which does not fit"),
    "a hook with too many parameters": (
        PLUGIN + "def job_ready(self, job, extra): pass",
        "P.job_ready: is called as job_ready(job) -> bool, which does not fit"),
    "a hook that is inherited and wrong": (
        HEAD + "class _B(Plugin):\n def job_ready(self): pass\nclass P(_B): name = 'p'",
        "P.job_ready: is called as job_ready(job) -> bool, which does not fit"),
    "a hook of a part that is wrong": (
        HEAD + "class _Part:\n def job_ready(self): pass\nclass P(Plugin):\n name = 'p'\n Parts = (_Part,)",
        "P.job_ready: is called as job_ready(job) -> bool, which does not fit"),
    "a hook that is no method": (PLUGIN + "job_ready = True", "P.job_ready: must be a method"),
    "a hook that is async": (PLUGIN + "async def job_ready(self, job): pass", "P.job_ready: must not be async"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "message"), FOLDER_CASES.values(), ids=FOLDER_CASES)
def test_a_file_that_cannot_be_used_is_refused_with_the_reason(text: str, message: str, tmp_path: Path) -> None:
    found = refusal(tmp_path, bad=text)
    assert message in found
    assert "bad.py" in found


def test_all_unusable_files_are_reported_at_once(tmp_path: Path) -> None:
    found = refusal(tmp_path, a="1/0", b="x = 1", c=GOOD)
    assert len(found.splitlines()) == 2


def test_a_folder_that_is_missing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RegistryError, match="not a folder"):
        Registry.load(tmp_path / "nowhere")


def test_two_files_that_claim_one_name_are_both_named(tmp_path: Path) -> None:
    found = refusal(tmp_path, a=GOOD, b=GOOD)
    assert "b.py" in found
    assert "is taken by" in found
    assert "a.py" in found


# --- conformance ----------------------------------------------------------------------------------------------------


class Fitting(Plugin):
    name = "fitting"
    constant: ClassVar[int] = 3

    @staticmethod
    def job_ready(job: object) -> bool:
        return True

    def task_order(self, task: object, optional: int = 0) -> int:
        return optional

    @score
    def prefer(self, *anything: object) -> None:
        return None

    def quota(self) -> int:
        return 1


class Step(Action):
    name = "step"

    def execute(self, session: object) -> None:
        return None


def test_static_methods_defaults_and_methods_of_its_own_are_fine() -> None:
    registry = Registry.of([Fitting], [Step])
    assert registry.plugin("fitting") is Fitting
    assert registry.action("step") is Step
    assert (registry.plugin_names(), registry.action_names()) == (("fitting",), ("step",))


def test_a_registry_of_given_classes_applies_the_checks_of_a_folder() -> None:
    with pytest.raises(RegistryError, match="the name 'fitting' is taken by"):
        Registry.of([Fitting, Fitting])


@pytest.mark.parametrize("hook", HOOKS, ids=[hook.method for hook in HOOKS])
def test_the_signature_of_every_hook_can_be_counted(hook: object) -> None:
    signature: str = hook.signature  # type: ignore[attr-defined]
    inside = signature[1 : signature.index(")")]
    assert parameter_count(signature) == len([word for word in inside.split(",") if word.strip()])


def test_an_action_without_execute_is_named_in_the_error() -> None:
    with pytest.raises(NotImplementedError, match="'step' does not define"):
        Action.execute(Step(), None)  # type: ignore[arg-type]


def test_an_override_without_a_declaration_applies_to_all_pods_and_reads_other_nodes() -> None:
    class Base(Plugin):
        @score(when=lambda _, __: False)
        def taste(self) -> None: ...

    class Own(Base):
        def taste(self) -> None: ...

    assert declared_hooks(Own)["taste"] == NodeHook("score", OTHER_NODES, None)


def test_hooks_of_parts_are_hooks_of_their_plugin() -> None:
    class Taste:
        @score(when=lambda _, __: False)
        def taste(self, signature: object, view: object) -> None: ...

        def job_ready(self, job: object) -> bool:
            return job is self

    class Own(Plugin):
        name = "own"
        Parts = (Taste,)

        def setup(self) -> None:
            self.parts = (Taste(),)

    own = Own()
    assert list(declared_hooks(Own)) == ["taste"]
    assert (Own.implements("job_ready"), Own.implements("job_valid")) == (True, False)
    assert own.method("job_ready")(own.parts[0])
    assert own.method("job_valid") is None
    dispatch = Dispatch([[(own, {})]])
    assert [name for name, _ in dispatch.entries("job_ready")] == ["own"]
    assert dispatch.has("score")
