"""A control plane whose watches do not list (as before Kubernetes 1.32), with the manifests on it for good."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.controlplane.build import require
from tests.controlplane.controlplane import ControlPlane


@pytest.fixture(scope="module")
def plain_control_plane() -> Iterator[ControlPlane]:
    """Without WatchList, so that what is watched is listed first; one per module, which may spoil it."""
    with ControlPlane(require(), apiserver_flags=["--feature-gates=WatchList=false"]) as running:
        running.start_controller_manager("persistentvolume-binder-controller")
        yield running
