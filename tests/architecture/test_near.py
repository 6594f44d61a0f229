"""`make near` selects the tests of changed files."""

import pytest

from tests.near import imported_modules, select

IMPORTS = {
    "tests/unit/plugins/test_gang.py": {"capcard_sched.plugins.gang"},
    "tests/unit/plugins/test_drf.py": {"capcard_sched.plugins.drf", "tests.unit.plugins.shares"},
    "tests/unit/framework/quota/test_sums.py": {"capcard_sched.framework.quota.sum_tree"},
    "tests/unit/state/test_pods.py": {"capcard_sched.state.pods"},
    "tests/insight/test_fixes.py": {"capcard_sched.insight.diagnosis.explain"},
    "tests/kube/read/test_reflector.py": {"capcard_sched.kube.reflector"},
    "tests/unit/trace/test_openb.py": set(),
    "tests/unit/trace/test_verb.py": {"capcard_sched_trace.verb"},
    "tests/manifests/test_helm.py": set(),
    "tests/malformed/test_malformed.py": set(),
}


@pytest.mark.parametrize(
    ("changed", "near"),
    [
        ("plugins/gang.py", ["tests/unit/plugins/test_gang.py", "tests/vectors"]),
        ("capcard_sched/framework/quota/sum_tree.py", ["tests/unit/framework/quota/test_sums.py"]),
        ("capcard_sched/framework/quota/new_file.py", ["tests/unit/framework/quota/test_sums.py"]),
        ("capcard_sched/insight/fixes/kinds/quota_fix.py", ["tests/insight/test_fixes.py"]),
        ("capcard_sched/kube/reflector.py", ["tests/kube/read/test_reflector.py"]),
        ("distributions/trace/capcard_sched_trace/openb.py", ["tests/unit/trace/test_openb.py"]),
        ("distributions/trace/capcard_sched_trace/verb.py", ["tests/unit/trace/test_verb.py"]),
        ("tests/unit/plugins/shares.py", ["tests/unit/plugins/test_drf.py"]),
        ("tests/unit/state/test_pods.py", ["tests/unit/state/test_pods.py"]),
        ("tests/malformed/manifests.yaml", ["tests/malformed/test_malformed.py"]),
        ("manifests/base/rbac.yaml", ["tests/manifests/test_helm.py"]),
        ("docs/dra.md", ["tests/architecture/test_docs.py", "tests/docs"]),
        ("LICENSE", []),
    ],
)
def test_the_tests_of_a_changed_file_are_selected(changed: str, near: list[str]) -> None:
    assert select([changed], IMPORTS) == near


def test_members_of_a_package_count_as_modules() -> None:
    source = "import os\nfrom capcard_sched.state import pods\nfrom a.b import (\n    c,\n    d as e,\n)\n"
    assert {"os", "capcard_sched.state.pods", "a.b", "a.b.c", "a.b.d"} <= imported_modules(source)
