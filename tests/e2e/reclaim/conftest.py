"""Kubelets that take their time to end a pod."""

from __future__ import annotations

import pytest_asyncio

from tests.controlplane.kubelet import Kubelet


@pytest_asyncio.fixture
async def slow_kubelet(kubelet: Kubelet) -> Kubelet:
    """Kubelets whose pods need a second and a half to end, so that others see them go."""
    kubelet.stop_delay = 1.5
    return kubelet
