"""Generated pages match their tables."""

import importlib.util
import re
import string
import subprocess
from dataclasses import fields
from pathlib import Path
from types import ModuleType

import pytest

from capcard_sched.cli.commands import app
from capcard_sched.controllers.jobs.plugins.registry import PLUGINS
from capcard_sched.daemon.controller_metrics import CONTROLLER_METRICS
from capcard_sched.daemon.controller_options import NAMES, ControllerOptions
from capcard_sched.framework.api.hooks import HOOKS, SWITCHES, UNUSED
from capcard_sched.framework.conf.registry import Registry
from capcard_sched.model import reasons

ROOT = Path(__file__).parents[2]


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def tracked() -> list[Path]:
    """Files under version control, or that would be."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("not a git checkout")
    paths = [ROOT / name for name in done.stdout.split("\0") if name]
    return [path for path in paths if path.is_file() and not path.is_symlink()]


SCHEMAS = ["diagnosis.schema.json", "what-if.schema.json"]
TABLES = [
    "decisions/README.md",
    "flags.md",
    "hooks.md",
    "job-plugins.md",
    "metrics.md",
    "mutants.md",
    "plugins.md",
    "reasons.md",
]


@pytest.mark.parametrize("page", [*SCHEMAS, *TABLES])
def test_a_generated_page_is_current(page: str) -> None:
    assert (ROOT / "docs" / page).read_text() == generator().PAGES[page](), "run `make docs`"


def test_every_hook_has_a_row_with_all_its_cells() -> None:
    assert len({hook.method for hook in HOOKS}) == len(HOOKS)
    for hook in HOOKS:
        assert hook.signature.startswith("(")
        assert " -> " in hook.signature
        assert hook.silence


def test_the_list_of_uncalled_hooks_is_current() -> None:
    callers = [*(ROOT / "capcard_sched" / "framework").rglob("*.py"), *(ROOT / "actions").glob("*.py")]
    text = "".join(path.read_text() for path in callers if path.name != "hooks.py")
    assert {hook.method for hook in HOOKS if f'"{hook.method}"' not in text} == UNUSED


def test_every_switch_is_spelled_as_existing_files_spell_it() -> None:
    enable = (
        "JobOrder Hierarchy JobReady JobPipelined TaskOrder Preemptable Reclaimable Preemptive QueueOrder Predicate"
    )
    enable += " BestNode NodeOrder TargetJob ReservedNodes JobEnqueued JobStarving"
    enabled = "Victim Overused Allocatable HyperNodeOrder SubJobReady SubJobPipelined SubJobOrder HyperNodeGradient"
    expected = {f"enable{name}" for name in enable.split()} | {f"enabled{name}" for name in enabled.split()}
    assert set(SWITCHES) == expected | {"EnabledClusterOrder"}


@pytest.mark.parametrize(("name", "reason"), reasons.every().items(), ids=list(reasons.every()))
def test_a_reason_renders_with_exactly_the_fields_it_names(name: str, reason: reasons.Reason) -> None:
    fields = {field for _, field, _, _ in string.Formatter().parse(reason.text) if field is not None}
    assert all(field.isidentifier() for field in fields), name
    text = reason.render(**{field: f"<{field}>" for field in fields})
    assert all(f"<{field}>" in text for field in fields)
    for field in fields:
        with pytest.raises(KeyError):
            reason.render(**dict.fromkeys(fields - {field}, ""))


def test_every_argument_of_a_plugin_or_action_has_a_description() -> None:
    rows = re.findall(r"^\| (`[^|]*) \| (.*) \|$", generator().plugins_page(), re.MULTILINE)
    assert len(rows) > 100
    silent = [name for name, cells in rows if len(re.split(r"(?<!\\)\|", cells)) != 3 or cells.endswith("| ")]
    assert silent == []


def test_every_plugin_and_action_has_a_section() -> None:
    page = (ROOT / "docs" / "plugins.md").read_text()
    registry = Registry.load()
    for name in (*registry.plugin_names(), *registry.action_names()):
        assert f"\n### {name}\n" in page


def test_every_flag_metric_plugin_and_controller_is_on_the_page_of_the_controllers() -> None:
    words = [f"--{item.name.replace('_', '-')}" for item in fields(ControllerOptions) if item.name != "ignored"]
    words += [row.full_name for row in CONTROLLER_METRICS]
    words += [*NAMES, *(plugin.name for plugin in PLUGINS)]
    page = (ROOT / "docs" / "controllers.md").read_text()
    assert [word for word in words if f"`{word}`" not in page] == []


def test_every_verb_of_the_command_line_is_in_the_readme() -> None:
    readme = (ROOT / "README.md").read_text()
    for verb in app:
        if not verb.startswith("-"):
            assert f"capcard-sched {verb}" in readme


def test_every_path_of_the_contributing_page_exists() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text()
    paths = set(re.findall(r"`([a-z_][\w-]*/[\w./-]*)`", page))
    assert len(paths) > 40
    roots = (ROOT, ROOT / "capcard_sched", ROOT / "tests")
    assert [path for path in sorted(paths) if not any((root / path).exists() for root in roots)] == []


def test_every_attack_of_the_security_page_names_a_test_that_exists() -> None:
    page = (ROOT / "docs" / "security.md").read_text()
    rows = [
        line
        for section in ("Attacks", "Cost")
        for line in page.split(f"\n## {section}\n")[1].split("\n## ")[0].split("\n")
    ]
    former, found = "", []
    for row in (each for each in rows[1:] if each.startswith("| ") and not each.startswith("| Attack ")):
        cell = row.rstrip(" |").rpartition(" | ")[2]
        cell = f"{former}, {cell.removeprefix('same').strip(', ')}" if cell.startswith("same") else cell
        former = cell
        folder, missing = ROOT, []
        for path in re.findall(r"`([\w./-]+)`", cell):
            place = ROOT / path if "/" in path else folder / path
            folder = place.parent
            missing += [] if place.exists() else [path]
        found.append((row[:60], bool(re.search("`", cell)), missing))
    assert len(found) > 30
    assert [each for each in found if not each[1] or each[2]] == []


def test_every_target_of_the_makefile_is_in_the_readme_or_the_contributing_page() -> None:
    pages = (ROOT / "README.md").read_text() + (ROOT / "CONTRIBUTING.md").read_text()
    targets = re.findall(r"^([a-z0-9-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert len(targets) > 5
    for target in targets:
        assert f"make {target}" in pages


def test_every_shipped_scheduler_conf_with_card_quotas_charges_unnamed_cards() -> None:
    """The default of the plugin is Volcano's, which charges no pod without a card name."""
    found = []
    for path in tracked():
        if path.suffix != ".png" and path.relative_to(ROOT).parts[0] in ("config", "docs", "manifests", "README.md"):
            for rest in path.read_text("utf-8").split("name: capacity-card\n")[1:]:
                entry = rest.partition("- name:")[0]
                found.append((path.name, "unnamedCards: infer" in entry))
    assert len(found) >= 5
    assert [name for name, infers in found if not infers] == []


def test_links_between_pages_lead_somewhere() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    for page in pages:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page}: {target}"


def test_decisions_have_unique_numbers() -> None:
    decisions = [path.name for path in (ROOT / "docs" / "decisions").glob("*.md") if path.name != "README.md"]
    assert len({name.partition("-")[0] for name in decisions}) == len(decisions) > 50
    assert all(re.match(r"\d{4}-[a-z]", name) for name in decisions)


def test_no_file_names_the_host_of_a_package_registry() -> None:
    # Written apart, so that this file passes too.
    words = ["py" + "pi.org", "pypi" + ".python", "python" + "hosted", "--index" + "-url ", "--find" + "-links "]
    for path in tracked():
        text = path.read_bytes().decode("utf-8", "replace")
        assert [word for word in words if word in text] == [], path
    for lock in sorted((ROOT / "requirements").glob("*.lock")):
        assert "://" not in lock.read_text(), lock


def test_every_locked_requirement_is_pinned_by_hash() -> None:
    locks = sorted((ROOT / "requirements").glob("*.lock"))
    assert [lock.name for lock in locks] == ["dev.lock", "mutation.lock", "release.lock", "run.lock"]
    pinned = {}
    for lock in locks:
        requirements = re.findall(r"^([a-z0-9._-]+)==([^ ]+)(.*)$", lock.read_text(), re.MULTILINE)
        assert len(requirements) > 5
        assert all(line.endswith("\\") for _, _, line in requirements)
        pinned[lock.name] = {f"{name}=={version}" for name, version, _ in requirements}
    assert pinned["run.lock"] <= pinned["dev.lock"], "make lock"
    names = {pin.partition("==")[0] for pin in pinned["dev.lock"]}
    shared = {pin for pin in pinned["mutation.lock"] if pin.partition("==")[0] in names}
    assert shared <= pinned["dev.lock"], "make lock"


def test_every_package_holds_a_docstring_and_nothing_else() -> None:
    package = ROOT / "capcard_sched"
    for path in package.iterdir():
        init = path / "__init__.py"
        if init.exists() and path.name != "testing":  # its harness is imported from the package itself
            assert re.fullmatch(r'""".*?"""\n', init.read_text(), re.DOTALL), init
