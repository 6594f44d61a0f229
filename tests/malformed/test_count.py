"""The number of malformed inputs, each different from the others."""

from __future__ import annotations

from tests.malformed import test_confs, test_manifests, test_objects


def test_there_are_at_least_so_many_cases() -> None:
    objects = [case.id for case in test_objects.CASES]
    manifests = [case.text for case in test_manifests.CASES]
    confs = [case.text for case in test_confs.CASES]
    counts = {"objects": len(set(objects)), "manifests": len(set(manifests)), "confs": len(set(confs))}
    assert counts["objects"] == len(objects) >= 120
    assert counts["manifests"] == len(manifests) >= 50
    assert counts["confs"] == len(confs) >= 40
    assert sum(counts.values()) >= 150
