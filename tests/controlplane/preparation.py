"""Has an API server serve our CustomResourceDefinitions, and waits until it answers for everything."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from pathlib import Path
from typing import Final

from tests.controlplane.cluster import ALL, Cluster
from tests.controlplane.manifests import queue

CRDS: Final = Path(__file__).resolve().parents[2] / "manifests" / "crds"


#: Resources that no client requests.
_DEPRECATED: Final = frozenset({"endpoints"})


async def prepare(cluster: Cluster) -> None:
    """Has the API server run, with our CRDs, and answer for everything: whatever the test before did to it."""
    control_plane = cluster.control_plane
    await asyncio.to_thread(control_plane.start)
    if "ours" not in control_plane.memo:
        await install_crds(cluster)
        control_plane.memo["ours"] = True
    elif control_plane.memo.get("watched") != control_plane.starts:
        await wait_until_watched(cluster)


async def wait_until_watched(cluster: Cluster) -> None:
    """Waits until no watch is refused.

    A server that reports ready still makes the caches behind its watches, one by one, those of custom resources when
    first requested; until then they answer 429. etcd's restart begins it all anew.
    """
    starts = cluster.control_plane.starts

    async def watched() -> bool:
        for resource in {*(await cluster._resources(fresh=False)).values()}:
            if "watch" in resource.verbs and resource.plural not in _DEPRECATED:
                async with cluster.session.get(resource.path(ALL), params={"watch": "true"}) as answer:
                    if answer.status == HTTPStatus.TOO_MANY_REQUESTS:
                        return False
        return True

    await cluster.wait_until(watched, "every resource to be watched", within=60)
    cluster.control_plane.memo["watched"] = starts


#: An API server stops watching the parameters of policies with the last policy of their kind, and then compares with
#: outdated ones for ever: this one stays, and matches nothing.
_LEASE_WATCH: Final = """
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: keeps-leases-watched}
spec:
  paramKind: {apiVersion: coordination.k8s.io/v1, kind: Lease}
  matchConstraints:
    resourceRules: [{apiGroups: [none.invalid], apiVersions: [v1], resources: [nothing], operations: [CREATE]}]
  validations: [{expression: "true"}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: keeps-leases-watched}
spec:
  policyName: keeps-leases-watched
  paramRef: {name: none, namespace: default, parameterNotFoundAction: Allow}
  validationActions: [Deny]
"""


async def install_crds(cluster: Cluster) -> None:
    """Applies `manifests/crds`, waits until the API server serves them, and has them outlive every `wipe`.

    Takes two seconds: so long does the API server hold back what is made of a definition that is new.
    """
    names = [crd["metadata"]["name"] for crd in await cluster.apply(CRDS)]

    async def established() -> bool:
        definitions = [await cluster.get("customresourcedefinitions", name) for name in names]
        conditions = [row for each in definitions for row in each.get("status", {}).get("conditions") or []]
        return [row["status"] for row in conditions if row["type"] == "Established"] == ["True"] * len(names)

    async def served() -> bool:
        return set(names) <= set(await cluster._resources(fresh=True))

    await cluster.wait_until(established, "the CRDs to be established", within=60)
    await cluster.wait_until(served, "the CRDs to be served", within=60)
    await wait_until_watched(cluster)
    assert await cluster.rejection(queue("trial")) is None
    await cluster.apply(_LEASE_WATCH)
    await asyncio.to_thread(cluster.control_plane.keep_what_is_there)
