"""The programs users apply the manifests with."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import NoReturn

import pytest

from tests.controlplane.build import UnavailableError, required
from tests.controlplane.build import locate as locate_control_plane
from tests.manifests.helm.build import locate as locate_helm


def _missing(why: str) -> NoReturn:
    if required():
        pytest.fail(why, pytrace=False)
    pytest.skip(why)


@pytest.fixture(scope="session")
def kubectl() -> Path:
    """The control plane's kubectl, else the one on PATH."""
    found: str | Path | None = shutil.which("kubectl")
    try:
        own = locate_control_plane() / "kubectl"
        found = own if os.access(own, os.X_OK) else found
    except UnavailableError as why:
        if found is None:
            _missing(f"no kubectl on PATH, and {why}")
    if found is None:
        _missing("no kubectl, neither beside the control plane nor on PATH")
    return Path(found)


@pytest.fixture(scope="session")
def helm() -> Path:
    """Helm of the pinned version."""
    try:
        return locate_helm()
    except UnavailableError as why:
        _missing(str(why))
