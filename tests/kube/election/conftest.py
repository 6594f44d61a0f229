"""Fixtures of elections."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.controlplane.controlplane import ControlPlane


@pytest.fixture
def kubeconfig(control_plane: ControlPlane) -> Path:
    return control_plane.kubeconfig_for("scheduler-a")
