"""The comparison of the CRDs of a cluster with ours names every field that would be lost."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.controlplane.cluster import Cluster
from tests.controlplane.processes import output
from tests.manifests.documents import MANIFESTS, Manifest, read


def definition(name: str) -> Manifest:
    (found,) = read(MANIFESTS / "crds" / f"{name}.yaml")
    return found


def compared(*definitions: Manifest) -> tuple[int, list[str]]:
    """Exit status and lines of the program."""
    text = json.dumps({"items": definitions})
    words = [sys.executable, str(MANIFESTS / "lost_fields.py")]
    done = subprocess.run(words, input=text, capture_output=True, text=True, check=False)
    assert not done.stderr
    return done.returncode, done.stdout.splitlines()


def schema(found: Manifest, path: str) -> Any:
    """The schema at a path of the only version."""
    place = found["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    for step in path.split(".") if path else []:
        place = place["items"] if step == "[]" else place["properties"][step]
    return place


@pytest.mark.parametrize(
    "name, place, lines",
    [
        ("scheduling.volcano.sh_queues", "spec", []),
        ("scheduling.volcano.sh_podgroups", "spec.subGroupPolicy.[]", []),
        ("batch.volcano.sh_jobs", "spec.tasks.[].partitionPolicy", []),
        (
            "batch.volcano.sh_jobs",
            "spec.policies.[]",
            [
                f"jobs.batch.volcano.sh v1alpha1: {path}.newer"
                for path in ("spec.policies[]", "spec.tasks[].policies[]")
            ],
        ),
        ("batch.volcano.sh_jobs", "status.state", ["jobs.batch.volcano.sh v1alpha1: status.state.newer"]),
        ("batch.volcano.sh_jobs", "", ["jobs.batch.volcano.sh v1alpha1: newer"]),
    ],
)
def test_a_field_that_our_schema_drops_is_named(name: str, place: str, lines: list[str]) -> None:
    found = definition(name)
    schema(found, place)["properties"]["newer"] = {"type": "string"}
    assert compared(found) == (bool(lines), lines or ["no stored field would be lost"])


def test_a_stored_version_and_another_scope_are_named() -> None:
    found = definition("scheduling.volcano.sh_queues")
    found["spec"]["scope"] = "Namespaced"
    found["spec"]["versions"].append({**found["spec"]["versions"][0], "name": "v2"})
    found["status"] = {"storedVersions": ["v1beta1", "v2"]}
    name = "queues.scheduling.volcano.sh"
    assert compared(found) == (1, [f"{name}: scope Namespaced", f"{name}: stored version v2"])


async def test_the_definitions_of_a_cluster_with_ours_lose_nothing(cluster: Cluster, kubectl: Path) -> None:
    text = await output(kubectl, "--kubeconfig", cluster.control_plane.kubeconfig, "get", "crds", "-o", "json")
    assert compared(*json.loads(text)["items"]) == (0, ["no stored field would be lost"])
