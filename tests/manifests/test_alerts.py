"""Alerts of manifests/alerts fire and stay silent as promtool's rule tests expect, and read metrics that exist."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from capcard_sched.daemon.admission.reviews import AdmissionMetrics
from capcard_sched.daemon.controller_metrics import CONTROLLER_METRICS
from capcard_sched.daemon.observability.metric_table import METRICS
from capcard_sched.model import reasons
from tests.controlplane.build import needed
from tests.daemon.usage.build import locate_promtool
from tests.manifests.documents import MANIFESTS

RULE: Final = MANIFESTS / "alerts" / "prometheusrule.yaml"
TESTS: Final = Path(__file__).parent / "alerts" / "rules_test.yaml"


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(RULE.read_text("utf-8"))["spec"]["groups"]
    return list(group["rules"])


def test_alerts_fire_and_stay_silent_as_promtool_expects(tmp_path: Path) -> None:
    promtool = needed(locate_promtool)
    spec = yaml.safe_load(RULE.read_text("utf-8"))["spec"]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(spec), "utf-8")
    shutil.copy(TESTS, tmp_path)
    for command in (["check", "rules", "rules.yaml"], ["test", "rules", TESTS.name]):
        done = subprocess.run(
            [promtool, *command], check=False, cwd=tmp_path, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_case_in_which_it_fires() -> None:
    cases = [case for test in yaml.safe_load(TESTS.read_text("utf-8"))["tests"] for case in test["alert_rule_test"]]
    assert {case["alertname"] for case in cases if case["exp_alerts"]} == {rule["alert"] for rule in rules()}


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_alerts_read_metrics_that_exist(rule: dict[str, Any]) -> None:
    page = AdmissionMetrics().exposition().decode()
    known = {row.full_name for row in (*METRICS, *CONTROLLER_METRICS)}
    known |= {family.name for family in text_string_to_metric_families(page)}
    names = re.findall(r"\b(?:volcano|capcard_sched)_\w+", rule["expr"])
    assert names
    assert {re.sub(r"_(bucket|count)$", "", name) for name in names} <= known
    codes = re.findall(r'reason="(\w+)"', rule["expr"])
    assert {*codes} <= {row.code for row in vars(reasons).values() if isinstance(row, reasons.Reason)}
