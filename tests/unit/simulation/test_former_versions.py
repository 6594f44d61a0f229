"""Claims, slices and classes of v1beta1 and v1beta2 are read as those of v1."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from capcard_sched.cli.main import run
from capcard_sched.simulation.former_versions import read_former_versions
from capcard_sched.simulation.manifests import ManifestDocument, read_manifests
from capcard_sched.simulation.scenario_reader import read_scenario

EXAMPLE = Path(__file__).parents[3] / "config" / "examples" / "dra"
Json = dict[str, Any]


def _objects() -> list[Json]:
    return [document.value for document in read_manifests([str(EXAMPLE)])]


def _former(obj: Json, version: str) -> Json:
    """The object as an API server of a former version has it."""
    if not obj["apiVersion"].startswith("resource.k8s.io/"):
        return obj
    found = copy.deepcopy(obj)
    found["apiVersion"] = f"resource.k8s.io/{version}"
    if version == "v1beta2":
        return found
    spec = found["spec"]["spec"] if found["kind"] == "ResourceClaimTemplate" else found["spec"]
    if found["kind"] == "ResourceSlice" and "devices" in spec:
        spec["devices"] = [
            {"name": each.pop("name"), **({"basic": each} if each else {})} for each in spec.get("devices", ())
        ]
    elif found["kind"].startswith("ResourceClaim"):
        requests = spec["devices"]["requests"]
        spec["devices"]["requests"] = [
            {**{key: value for key, value in each.items() if key != "exactly"}, **each.get("exactly", {})}
            for each in requests
        ]
    return found


@pytest.mark.parametrize("version", ["v1beta1", "v1beta2"])
def test_the_example_is_the_same_in_former_versions(
    version: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    objects = _objects()
    former = [_former(obj, version) for obj in objects]
    assert sum(one != other for one, other in zip(objects, former, strict=True)) >= 5
    shown = []
    for number, found in enumerate((objects, former)):
        path = tmp_path / f"{number}.yaml"
        path.write_text(yaml.safe_dump_all(found), "utf-8")
        assert run(["simulate", "-f", str(path), "--until", "1m", "-o", "json"]) in (0, 1)
        shown.append(capsys.readouterr())
    assert shown[0].out == shown[1].out
    warned = "resource.k8s.io/v1beta1 is converted to resource.k8s.io/v1" in shown[1].err
    assert warned is (version == "v1beta1")


def test_lists_aliases_and_malformed_objects() -> None:
    request = {"name": "r", "deviceClassName": "gpu"}
    claim: Json = {"metadata": {"name": "c"}, "spec": {"devices": {"requests": [request, request]}}}
    listed = {"apiVersion": "resource.k8s.io/v1beta1", "kind": "ResourceClaimList", "items": [claim, 7]}
    wrong: list[Any] = [
        {"apiVersion": "resource.k8s.io/v1beta1", "kind": "ResourceClaim", "spec": spec}
        for spec in (None, 7, {"devices": 7}, {"devices": {"requests": 7}}, {"devices": {"requests": [7, None]}})
    ]
    wrong += [{"apiVersion": "resource.k8s.io/v1beta1", "kind": "ResourceSlice", "spec": {"devices": [{"basic": 1}]}}]
    documents = [ManifestDocument("x", number, value) for number, value in enumerate([listed, *wrong, 7, None])]
    read_former_versions(documents)
    assert claim["apiVersion"] == "resource.k8s.io/v1"
    assert claim["spec"]["devices"]["requests"][0] == {"name": "r", "exactly": {"deviceClassName": "gpu"}}
    _, problems = read_scenario((), documents=documents)
    assert len(problems) >= len(wrong) - 2
