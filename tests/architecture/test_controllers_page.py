"""docs/controllers.md lists every flag, metric, plugin and controller."""

from dataclasses import fields
from pathlib import Path

from capcard_sched.controllers.jobs.plugins.registry import PLUGINS
from capcard_sched.daemon.controller_metrics import CONTROLLER_METRICS
from capcard_sched.daemon.controller_options import NAMES, ControllerOptions

PAGE = (Path(__file__).parents[2] / "docs" / "controllers.md").read_text()


def test_every_flag_metric_plugin_and_controller_is_listed() -> None:
    words = [f"--{item.name.replace('_', '-')}" for item in fields(ControllerOptions) if item.name != "ignored"]
    words += [row.full_name for row in CONTROLLER_METRICS]
    words += [*NAMES, *(plugin.name for plugin in PLUGINS)]
    assert [word for word in words if f"`{word}`" not in PAGE] == []
