"""The hostile tenant: a user with all rights on pods and PodGroups of one namespace, under the installed policies."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final

import yaml

from tests.controlplane.cluster import Cluster, RequestError
from tests.controlplane.manifests import Manifest, pod_group
from tests.manifests.documents import MANIFESTS

#: A user of the control plane without rights of its own.
TENANT: Final = "somebody"
_REFUSED: Final = (403, 422)


async def install_policies(cluster: Cluster) -> None:
    """Grant the tenant its rights in the namespace of the client, and apply the admission policies to it alone.

    In a cluster the policies exempt the scheduler's ServiceAccount; here the replicas and the churn are other users.
    """
    rules = [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["*"]},
        {"apiGroups": ["scheduling.volcano.sh"], "resources": ["podgroups"], "verbs": ["*"]},
    ]
    await cluster.allow(TENANT, rules)
    for manifest in yaml.safe_load_all((MANIFESTS / "base" / "admission-tenants.yaml").read_text("utf-8")):
        await cluster.apply(_for_tenant(manifest))
    async with Cluster(cluster.control_plane, user=TENANT, namespace=cluster.namespace) as tenant:

        async def refused() -> bool:
            error = await tenant.rejection(pod_group("p", priorityClassName="system-cluster-critical"))
            return "reserved for the namespace kube-system" in str(error)

        await cluster.wait_until(refused, "the admission policies", within=60)


def _for_tenant(manifest: Manifest) -> Manifest:
    if manifest["kind"] == "ValidatingAdmissionPolicy":
        for condition in manifest["spec"]["matchConditions"]:
            if condition["name"] == "tenant":
                condition["expression"] = f"request.userInfo.username == '{TENANT}'"
    return manifest


async def attempted(action: Awaitable[object]) -> str:
    """Await a tenant's request; the refusal by a policy, "" without one. Raises RequestError for any other failure.

    Without the roles, an API server that has just started refuses what the tenant may do: no refusal by a policy.
    """
    try:
        await action
    except RequestError as error:
        if error.status not in _REFUSED or f'User "{TENANT}" cannot ' in str(error):
            raise
        return str(error)
    return ""
