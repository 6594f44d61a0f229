"""ConfigMaps that plugins read, listed and watched by name on a real API server."""

from __future__ import annotations

import asyncio
from typing import Any

from capcard_sched.kube.client import Client
from capcard_sched.kube.connection import load_connection
from capcard_sched.kube.informers import Informers
from capcard_sched.kube.instrumentation import Observer
from capcard_sched.kube.kinds import chosen_kinds
from capcard_sched.model.deltas import Delta, ObjectChanged, ObjectGone
from capcard_sched.model.objects import ConfigMapObject
from tests.controlplane.cluster import Cluster
from tests.controlplane.proxy import Proxy


async def test_only_the_named_config_map_is_watched(cluster: Cluster, proxy: Proxy) -> None:
    emitted: list[Delta] = []
    made: dict[str, Any] = {}
    for name in ("devices", "other"):
        data = {"device-config.yaml": "a: 1"}
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}
        made[name] = (await cluster.create(body))["metadata"]
    namespace = made["devices"]["namespace"]
    kinds = [kind for kind in chosen_kinds(config_maps=[(namespace, "devices")]) if kind.name == "ConfigMap"]
    async with Client(load_connection(str(proxy.kubeconfig_for("scheduler-a"))), connections=4) as client:
        informers = Informers(client, emitted.extend, Observer(), kinds)
        running = asyncio.create_task(informers.run())
        await informers.wait_synced()
        await cluster.patch("configmaps", "other", {"data": {"device-config.yaml": "a: 2"}})
        await cluster.patch("configmaps", "devices", {"data": {"device-config.yaml": "a: 3"}})
        await cluster.wait_until(lambda: len(emitted) > 1, "the change")
        await cluster.delete("configmaps", "devices")
        await cluster.wait_until(lambda: len(emitted) > 2, "the deletion")
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    first, second, third = emitted
    assert isinstance(first, ObjectChanged)
    assert isinstance(second, ObjectChanged)
    assert [each.object.data for each in (first, second) if isinstance(each.object, ConfigMapObject)] == [
        {"device-config.yaml": "a: 1"},
        {"device-config.yaml": "a: 3"},
    ]
    assert third == ObjectGone("ConfigMap", namespace, "devices", made["devices"]["uid"])
