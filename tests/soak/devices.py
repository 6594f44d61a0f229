"""Devices of a soak: a driver that publishes and withdraws them, and jobs with claims of templates that come and go.

The cards are those of the other nodes: a queue has one quota over both kinds.
"""

from __future__ import annotations

import contextlib
import random
from typing import Any, Final

from tests.controlplane.cluster import Cluster, RequestError
from tests.controlplane.device_driver import API, device_class
from tests.controlplane.kubelet import Kubelet
from tests.controlplane.manifests import Manifest, node, plain, pod, pod_group
from tests.soak.workload import NAMESPACE, QUOTAS, Churn, Job

#: They create the claims of templates, release those of finished pods, and delete those of deleted ones.
CLAIM_CONTROLLERS: Final = "resourceclaim-controller,garbage-collector-controller"
DEVICE_KINDS: Final = ("resourceslices", "resourceclaims")
_DRIVER: Final = "gpu.nvidia.com"
_NODES: Final = ("dra-0", "dra-1")
#: Models of the devices of each node.
_MODELS: Final = ("NVIDIA-H100", "NVIDIA-H100", "NVIDIA-H100", "NVIDIA-A10")
#: Templates: one device of any model, two of one model, and an H100 or else an A10.
_TEMPLATES: Final = ("one", "two", "best")
#: Jobs: above this number, none is created.
_MOST_JOBS: Final = 8


def _template(name: str) -> Manifest:
    exactly: Manifest = {"deviceClassName": _DRIVER}
    if name == "two":
        exactly["count"] = 2
    request: Manifest = {"name": "r", "exactly": exactly}
    if name == "best":
        request = {"name": "r", "firstAvailable": [_of_model(card) for card in ("NVIDIA-H100", "NVIDIA-A10")]}
    return plain("ResourceClaimTemplate", name, API, spec={"spec": {"devices": {"requests": [request]}}})


def _of_model(card: str) -> Manifest:
    expression = f'device.attributes["{_DRIVER}"].productName == "{card.replace("-", " ")}"'
    selectors = [{"cel": {"expression": expression}}]
    return {"name": card.lower(), "deviceClassName": _DRIVER, "selectors": selectors}


class DeviceChurn(Churn):
    """Jobs with claims. Their PodGroups are not those that faults edit."""

    def __init__(self, cluster: Cluster, kubelet: Kubelet, seed: int) -> None:
        super().__init__(cluster, kubelet, seed + 2)
        self._devices = random.Random(seed + 3)
        #: Node to the generation of its pool.
        self._generations = dict.fromkeys(_NODES, 0)
        self.withdrawals = 0

    async def start(self) -> None:
        """Create the nodes, the class and the templates, and publish all devices."""
        made = [node(name, cpu=32, memory="128Gi") for name in _NODES]
        templates = [_template(name) for name in _TEMPLATES]
        await self._cluster.create_all([*made, device_class(_DRIVER), *templates])
        for name in _NODES:
            await self._publish(name, range(len(_MODELS)))

    async def stop(self) -> None:
        """Publish all devices again; the jobs finish."""
        for name in _NODES:
            await self._publish(name, range(len(_MODELS)))
        for job in [*self.jobs]:
            await self.finish(job)

    async def _act(self) -> None:
        roll = self._rng.random()
        if roll < 0.02:
            await self._withdraw()
        elif len(self.jobs) < _MOST_JOBS and roll < 0.4:
            await self._create()
        elif self.jobs and roll < 0.5:
            await self.finish(self.jobs[0])
        elif self.jobs and roll < 0.54:
            job = self._rng.choice(self.jobs)
            await (self.delete(job) if roll < 0.52 else self._delete_pod(self._rng.choice(job.pods)))

    async def _create(self) -> None:
        rng = self._rng
        self.created += 1
        queue_name, size = rng.choice(list(QUOTAS)), rng.choice((1, 1, 1, 2, 3))
        name = f"claims-{queue_name}-{self.created}"
        used = [{"name": "r", "resourceClaimTemplateName": rng.choice(_TEMPLATES)}]
        fields: dict[str, Any] = {
            "requests": {"cpu": "1", "memory": "1Gi"},
            "namespace": NAMESPACE,
            "grace": rng.choice((0, 1)),
        }
        members = [pod(f"{name}-{index}", group=name, resourceClaims=used, **fields) for index in range(size)]
        job = Job(name, queue_name, [member["metadata"]["name"] for member in members])
        self.jobs.append(job)
        await self._cluster.create(pod_group(name, queue=queue_name, members=size, namespace=NAMESPACE))
        await self._cluster.create_all(members)

    async def _withdraw(self) -> None:
        """A node has some of its devices, all, or none from now on. Allocated ones may be gone, as after a defect."""
        self.withdrawals += 1
        left = self._devices.sample(range(len(_MODELS)), self._devices.randrange(len(_MODELS) + 1))
        await self._publish(self._devices.choice(_NODES), sorted(left))

    async def _publish(self, name: str, devices: range | list[int]) -> None:
        """A new generation of the pool of a node. One that failed before may have left its slice."""
        self._generations[name] += 1
        generation = self._generations[name]
        texts = [{"type": "gpu", "productName": _MODELS[index].replace("-", " ")} for index in devices]
        listed = [
            {"name": f"gpu-{index}", "attributes": {key: {"string": value} for key, value in text.items()}}
            for index, text in zip(devices, texts, strict=True)
        ]
        pool = {"name": name, "generation": generation, "resourceSliceCount": 1}
        spec = {"driver": _DRIVER, "nodeName": name, "pool": pool, "devices": listed}
        await self._cluster.create(plain("ResourceSlice", f"{name}-{generation}", API, spec=spec))
        for each in await self._cluster.list("resourceslices"):
            if each["spec"]["nodeName"] == name and each["spec"]["pool"]["generation"] < generation:
                with contextlib.suppress(RequestError):
                    await self._cluster.delete("resourceslices", each["metadata"]["name"])
