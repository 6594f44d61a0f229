"""Writes the SBOMs of wheels and of the image: their packages with versions and hashes.

`python requirements/sbom.py FOLDER`; the folder has the wheel of capcard-sched and those of the optional distributions.
No image is built: its SBOM follows from the Dockerfile, `requirements/run.lock` and the wheels.
"""

from __future__ import annotations

import copy
import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

ROOT = Path(__file__).resolve().parents[1]
_LOCK = ROOT / "requirements" / "run.lock"
_PINNED: Final = re.compile(r"(?P<name>[a-z0-9._-]+)==(?P<version>\S+)(?: ; (?P<marker>[^\\]+))?")


class ImagePlan(NamedTuple):
    """What a Dockerfile installs."""

    #: Image and tag that the last stage begins with.
    base: str
    #: Version of Python, as in `3.13`.
    python: str
    #: Names of packages that are uninstalled from the environment.
    removed: frozenset[str]
    #: Names of the optional distributions that are installed.
    distributions: tuple[str, ...]


def plan_of(dockerfile: str) -> ImagePlan:
    """The plan of a Dockerfile. Raises ValueError for one without the lines that it is read from."""
    text = re.sub(r"\\\n\s*", " ", dockerfile)
    python = re.search(r"^ARG PYTHON=(\S+)$", text, re.MULTILINE)
    bases = re.findall(r"^FROM (\S+)", text, re.MULTILINE)
    removed = re.search(r"pip --python \S+ uninstall --yes ([a-z0-9 -]+)$", text, re.MULTILINE)
    if python is None or not bases or removed is None:
        raise ValueError("Dockerfile: expected ARG PYTHON, FROM and an uninstall of the packages for building")
    base = bases[-1].replace("${PYTHON}", python[1])
    if "$" in base:
        raise ValueError(f"Dockerfile: {base}: expected no variable but PYTHON")
    distributions = tuple(f"capcard-sched-{name}" for name in re.findall(r" \./distributions/([a-z]+)", text))
    return ImagePlan(base, python[1], frozenset(removed[1].split()), distributions)


def locked_for(lock: str, python: str) -> dict[str, str]:
    """Package to version of a lock, on Linux with this version of Python."""
    from packaging.markers import Marker

    environment = {
        "python_version": python,
        "python_full_version": f"{python}.0",
        "sys_platform": "linux",
        "os_name": "posix",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
    }
    return {
        found["name"]: found["version"]
        for found in map(_PINNED.match, lock.splitlines())
        if found is not None and (found["marker"] is None or Marker(found["marker"].strip()).evaluate(environment))
    }


def image_document(
    wheel: dict[str, Any], plan: ImagePlan, lock: str, optional: Iterable[dict[str, Any]]
) -> dict[str, Any]:
    """The SBOM of the image, from that of its wheel and from the components of the optional distributions."""
    document = copy.deepcopy(wheel)
    package = document["metadata"]["component"]
    installed = [each for each in optional if each["name"] in plan.distributions]
    if len(installed) != len(plan.distributions):
        raise ValueError(f"expected wheels of {', '.join(plan.distributions)}")
    name, _, tag = plan.base.rpartition(":")
    kept = {item for item in locked_for(lock, plan.python).items() if item[0] not in plan.removed}
    components = [each for each in document["components"] if (each["name"], each["version"]) in kept]
    listed = {(each["name"], each["version"]) for each in components}
    if listed != kept:
        raise ValueError(f"{_LOCK.name} and the SBOM of the wheel differ: {sorted(listed ^ kept)}")
    base = {"type": "container", "bom-ref": "base-image", "name": name, "version": tag}
    base["purl"] = f"pkg:docker/{name}@{tag}"
    image = {"type": "container", "bom-ref": "image", "name": "capcard-sched", "version": package["version"]}
    document["metadata"]["component"] = image
    document["components"] = [package, *installed, base, *components]
    references = {each["bom-ref"] for each in document["components"]}
    edges = [
        {**each, **({"dependsOn": needed} if (needed := _among(each.get("dependsOn", ()), references)) else {})}
        for each in document.get("dependencies", ())
        if each["ref"] in references
    ]
    extras = [each["bom-ref"] for each in installed]
    uses = [{"ref": "image", "dependsOn": ["base-image", package["bom-ref"], *extras]}]
    uses += [{"ref": extra, "dependsOn": [package["bom-ref"]]} for extra in extras]
    document["dependencies"] = [*uses, *edges]
    # The packages of the operating system and the interpreter are in the SBOM of the base image.
    document["compositions"] = [{"aggregate": "incomplete", "assemblies": ["base-image"]}]
    return document


def _among(names: Any, known: set[str]) -> list[str]:
    return sorted(name for name in names if name in known)


def component_of(wheel: Path) -> dict[str, Any]:
    """The entry of a wheel among the components of a document."""
    name, version = wheel.name.split("-")[:2]
    name = name.replace("_", "-")
    return {
        "type": "library",
        "bom-ref": name,
        "name": name,
        "version": version,
        "purl": f"pkg:pypi/{name}@{version}",
        "hashes": [{"alg": "SHA-256", "content": hashlib.sha256(wheel.read_bytes()).hexdigest()}],
    }


def wheel_document(wheel: Path) -> dict[str, Any]:
    """The SBOM of a wheel: CycloneDX 1.6, the same for the same wheel."""
    name = wheel.name.split("-")[0]
    project = ROOT / "distributions" / name.removeprefix("capcard_sched_") if name != "capcard_sched" else ROOT
    command = [sys.executable, "-m", "cyclonedx_py", "requirements", str(_LOCK)]
    command += ["--pyproject", str(project / "pyproject.toml"), "--sv", "1.6", "--of", "JSON", "--output-reproducible"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603 - no input of others
    found: dict[str, Any] = json.loads(done.stdout)
    pinned = {
        line.partition("==")[0] for line in _LOCK.read_text("utf-8").splitlines() if "==" in line and line[0] != " "
    }
    listed = {each["name"] for each in found["components"]}
    assert listed == pinned, listed ^ pinned
    described = component_of(wheel)
    found["metadata"]["component"] |= {key: described[key] for key in ("version", "purl", "hashes")}
    return found


def write_sboms(folder: Path) -> list[Path]:
    """Write `<wheel>.cdx.json` of each wheel of a folder and `<name>-<version>-image.cdx.json` beside them."""
    (wheel,) = folder.glob("capcard_sched-*.whl")
    optional = sorted(folder.glob("capcard_sched_*.whl"))
    documents = {each.with_suffix(".cdx.json"): wheel_document(each) for each in (wheel, *optional)}
    for each in optional:
        documents[each.with_suffix(".cdx.json")]["components"].append(component_of(wheel))
    name, version = wheel.name.split("-")[:2]
    documents[folder / f"{name}-{version}-image.cdx.json"] = image_document(
        documents[wheel.with_suffix(".cdx.json")],
        plan_of((ROOT / "Dockerfile").read_text("utf-8")),
        _LOCK.read_text("utf-8"),
        map(component_of, optional),
    )
    for target, document in documents.items():
        target.write_text(json.dumps(document, indent=2) + "\n", "utf-8")
    return list(documents)


if __name__ == "__main__":
    for written in write_sboms(Path(sys.argv[1])):
        print(written)  # noqa: T201 - a program
