"""Paths of the manifests, and their parsed or rendered documents."""

from __future__ import annotations

import importlib.util
import os
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import yaml
from cyclopts import App

#: An object in the API server's JSON form.
Manifest = dict[str, Any]

ROOT: Final = Path(__file__).resolve().parents[2]
MANIFESTS: Final = ROOT / "manifests"
CHART: Final = MANIFESTS / "helm" / "capcard-sched"
INSTALL: Final = MANIFESTS / "install.yaml"
#: The objects of a former installation, and how they differ from those of today.
SCHEDULER_ONLY: Final = ROOT / "tests" / "data" / "install-scheduler-only.yaml"


def parsed(text: str) -> list[Manifest]:
    """The documents of a YAML text; empty ones are left out."""
    return [document for document in yaml.load_all(text, yaml.CSafeLoader) if document]  # safe, and in C


def read(path: Path) -> list[Manifest]:
    """The documents of a file."""
    return parsed(path.read_text("utf-8"))


def key(manifest: Manifest) -> str:
    """`kind namespace/name`, or without the namespace."""
    meta = manifest["metadata"]
    return f"{manifest['kind']} {meta['namespace'] + '/' if 'namespace' in meta else ''}{meta['name']}"


def by_key(manifests: Iterable[Manifest]) -> dict[str, Manifest]:
    """Every object by its key; none may be there twice."""
    found: dict[str, Manifest] = {}
    for manifest in manifests:
        assert key(manifest) not in found, f"{key(manifest)} is there twice"
        found[key(manifest)] = manifest
    return found


def arguments(deployment: Manifest) -> list[str]:
    """The verb and the flags of a Deployment's container, in the namespace `capcard-system`."""
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    return [word.replace("$(POD_NAMESPACE)", "capcard-system") for word in container["args"]]


def options_of(deployment: Manifest, command: Callable[..., object]) -> Any:
    """The options of the command line of a Deployment; `command` is the function of its verb."""
    words = arguments(deployment)
    app = App(result_action="return_value")
    app.command(command, name=words[0])
    _, bound, _ = app.parse_args(words, exit_on_error=False, print_error=False)
    return bound.arguments["options"]


def scheduler_only(folder: Path) -> Path:
    """A manifest as it was before it had controllers and webhooks, with the CustomResourceDefinitions of today."""
    (former,) = read(SCHEDULER_ONLY)
    today = by_key(read(INSTALL))
    assert set(former) <= set(today)
    for name, fields in former.items():
        for path, value in fields.items():
            _set(today[name], path.split("/"), value)
    arguments = today["Deployment capcard-system/capcard-sched"]["spec"]["template"]["spec"]["containers"][0]["args"]
    arguments[:] = [each for each in arguments if not each.startswith("--wait-for-podgroups")]  # for the controllers
    kept = [found for name, found in today.items() if name in former or found["kind"] == "CustomResourceDefinition"]
    target = folder / "scheduler-only.yaml"
    target.write_text(yaml.safe_dump_all(kept), "utf-8")
    return target


def _set(found: Any, path: list[str], value: Any) -> None:
    """Set a field, or remove it."""
    *above, last = path
    for part in above:
        found = found[int(part) if isinstance(found, list) else part]
    if value is None:
        del found[last]
    else:
        found[last] = value


def kustomized(kubectl: Path, folder: Path) -> list[Manifest]:
    """Output of `kubectl kustomize` for a folder."""
    done = subprocess.run([kubectl, "kustomize", folder], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not done.stderr, done.stderr
    return parsed(done.stdout)


def overlay(folder: Path, *components: str, resource: str = "base") -> Path:
    """Makes in `folder` a kustomization of a resource and those components, as users do, and returns it."""
    up = os.path.relpath(MANIFESTS, folder.resolve())  # kustomize takes no absolute paths
    named = {"resources": [f"{up}/{resource}"], "components": [f"{up}/{component}" for component in components]}
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(named), "utf-8")
    return folder


def derived() -> dict[Path, str]:
    """Output of manifests/render.py: file to text."""
    texts: dict[Path, str] = _module("render").rendered()
    return texts


def policies() -> Any:
    """The module manifests/policies.py."""
    return _module("policies")


def _module(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"manifests_{name}", MANIFESTS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
