"""Builds Helm, once per version, into the cache folder of the control plane's programs.

`python -m tests.manifests.helm.build` builds it if it is missing; a helm on PATH is not used, so that every checkout
renders the chart with the same one.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

from tests.controlplane.build import UnavailableError, cached, go_build, main, pinned

MODULE: Final = Path(__file__).resolve().parent


def program() -> Path:
    """Path of Helm of the pinned version, built or not."""
    return cached("helm") / pinned("helm.sh/helm/v3", MODULE) / "helm"


def locate() -> Path:
    """Helm, already built.

    Raises:
        UnavailableError: nothing was built yet.
    """
    if os.access(program(), os.X_OK):
        return program()
    raise UnavailableError(
        "helm is not built: `python -m tests.manifests.helm.build` builds it once, in 2 minutes, with Go"
    )


def build() -> Path:
    """Builds Helm unless it is there; errors as of `go_build`."""
    # The Kubernetes version it renders for without a cluster, set as in its own releases.
    minor = pinned("k8s.io/client-go", MODULE).split(".")[1]
    packages = ("chartutil", "lint/rules")
    parts = {"Major": "1", "Minor": minor}
    variables = {f"helm.sh/helm/v3/pkg/{each}.k8sVersion{part}": parts[part] for each in packages for part in parts}
    go_build(MODULE, "helm.sh/helm/v3/cmd/helm", program(), variables)
    return program()


if __name__ == "__main__":
    sys.exit(main("helm", build))
