"""The programs users apply the manifests with."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.controlplane.build import UnavailableError, needed
from tests.controlplane.build import locate as locate_control_plane
from tests.manifests.helm.build import locate as locate_helm


def locate_kubectl() -> Path:
    """The control plane's kubectl, else the one on PATH."""
    found, cause = shutil.which("kubectl"), "there is none beside the control plane"
    try:
        own = locate_control_plane() / "kubectl"
        if os.access(own, os.X_OK):
            return own
    except UnavailableError as why:
        cause = str(why)
    if found is None:
        raise UnavailableError(f"no kubectl on PATH, and {cause}")
    return Path(found)


@pytest.fixture(scope="session")
def kubectl() -> Path:
    """See `locate_kubectl`."""
    return needed(locate_kubectl)


@pytest.fixture(scope="session")
def helm() -> Path:
    """Helm of the pinned version."""
    return needed(locate_helm)
