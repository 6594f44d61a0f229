"""The server as its component installs it: the rights in use; and viewers that an authenticating proxy names."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

from tests.controlplane.cluster import Cluster
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.manifests import granted, job, pod
from tests.e2e.asking import set_the_scene
from tests.e2e.rbac.installed import SYSTEM, Audit, Right, account, flags_of, granted_by, install
from tests.manifests.documents import overlay
from tests.web.served import Reply, Served
from tests.web.test_live import get, serving_live

NAME: Final = "capcard-sched-web"
PROOF: Final = "X-Capcard-Proxy-Secret"
#: Workload of a pod to the kind and the name of its controller, and its labels.
_OWNERS: Final = {
    "deployment": ("ReplicaSet", "chat-5d9c", {"pod-template-hash": "5d9c"}),
    "replicaset": ("ReplicaSet", "bare", {}),
    "statefulset": ("StatefulSet", "store", {}),
}
#: Of PodGroups of Kubernetes, which the API servers of these tests do not serve; they list through the watch.
_UNSERVED: Final = {Right("podgroups", verb, "scheduling.k8s.io") for verb in ("list", "watch")} | {
    Right("provisioningrequests", "watch", "autoscaling.x-k8s.io")
}


async def test_the_component_grants_exactly_the_rights_in_use(
    cluster: Cluster, control_plane: ControlPlane, tmp_path: Path
) -> None:
    await set_the_scene(cluster)  # before the policies, which refuse the status of a PodGroup from a user
    await cluster.create(job("train", 1, minAvailable=1))
    for kind, name, labels in _OWNERS.values():
        made = pod(f"{name}-0", labels=labels)
        owner = {"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": name, "controller": True}
        made["metadata"]["ownerReferences"] = [owner]
        await cluster.create(made)
    installation = await install(cluster, overlay(tmp_path, "web"))
    own = [each for each in installation.objects if each["metadata"].get("labels", {}).get("app") == NAME]
    flags = [word for word in await flags_of(cluster, NAME) if not word.startswith("--listen-address=")]
    assert "--authentication=token" in flags
    audit, token = Audit(control_plane, f"system:serviceaccount:{SYSTEM}:{NAME}"), control_plane.token("admin")
    async with serving_live(await account(cluster, NAME), *flags) as served:
        for address in ("/healthz", "/readyz"):  # of the kubelet, which has no token
            assert (await get(served, address)).status == 200
        jobs = (await get(served, "/api/v1/jobs", token)).json["items"]
        assert {"runs", "waits", "fits", "early", "train"} <= {row["name"] for row in jobs}
        assert set(_OWNERS) <= {row["kind"] for row in jobs}
        for row in jobs:
            address = f"/jobs/{row['namespace']}/{row['name']}?kind={row['kind']}&fix=1"
            assert (await get(served, address, token)).status == 200, address
        for address in ("/", "/queues", "/queues/q", "/nodes", "/what-if?quota=q/A10=6"):
            assert (await get(served, address, token)).status == 200, address
    assert not audit.denied()
    assert audit.used() | _UNSERVED == granted_by(own)


async def test_a_user_is_believed_from_the_proxy_only(
    cluster: Cluster, control_plane: ControlPlane, tmp_path: Path
) -> None:
    await set_the_scene(cluster)
    role, binding = granted("somebody", [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}])
    binding["subjects"].append({**binding["subjects"][0], "kind": "Group", "name": "staff"})
    await cluster.apply([role, binding])
    secret, proof = tmp_path / "secret", "s" * 40
    secret.write_text(f"{proof}\n")
    config = control_plane.kubeconfig_for("admin", namespace=cluster.namespace, name="web")
    flags = ("--authentication", "proxy", "--proxy-secret", str(secret))

    async with serving_live(config, *flags) as served:
        assert await _jobs(served, cluster, **{PROOF: proof, "X-Remote-User": "nobody"}) == set()
        seen = {"runs", "waits", "fits", "early"}
        assert await _jobs(served, cluster, **{PROOF: proof, "X-Remote-User": "somebody"}) == seen
        # A client can send every header but the secret; without the flag, groups are not read.
        groups = {"X-Remote-Group": "system:masters", "X-Forwarded-Groups": "system:masters"}
        assert await _jobs(served, cluster, **{PROOF: proof, "X-Remote-User": "nobody", **groups}) == set()
        for status, headers in (
            (401, {"X-Remote-User": "somebody"}),
            (401, {"X-Remote-User": "somebody", PROOF: ""}),
            (401, {"X-Remote-User": "somebody", PROOF: proof[:-1]}),
            (401, {"X-Remote-User": "somebody", "Authorization": f"Bearer {proof}"}),
            (401, {"Authorization": f"Bearer {control_plane.token('admin')}"}),
            (401, {PROOF: proof}),
            (401, {PROOF: proof, "X-Remote-User": " "}),
            (403, {PROOF: proof, "X-Remote-User": "system:admin"}),
            (403, {PROOF: proof, "X-Remote-User": "some\u0085body"}),
        ):
            for address in ("/", "/api/v1/jobs", "/api/v1/events"):
                reply = await _get(served, address, **headers)
                assert reply.status == status, (address, headers, reply.body)
                assert "runs" not in reply.body
        secret.write_text("t" * 40)
        assert (await _get(served, "/", **{PROOF: proof, "X-Remote-User": "somebody"})).status == 401
        assert await _jobs(served, cluster, **{PROOF: "t" * 40, "X-Remote-User": "somebody"}) == seen
        secret.write_text("")
        assert (await _get(served, "/", **{PROOF: "", "X-Remote-User": "somebody"})).status == 503

    secret.write_text(proof)
    async with serving_live(config, *flags, "--proxy-header", "X-User", "--proxy-groups-header", "X-Groups") as served:
        assert await _jobs(served, cluster, **{PROOF: proof, "X-User": "nobody", "X-Groups": "a, staff"}) == seen
        assert await _jobs(served, cluster, **{PROOF: proof, "X-User": "nobody", "X-Groups": "a"}) == set()
        reply = await _get(served, "/", **{PROOF: proof, "X-User": "nobody", "X-Groups": "a,system:masters"})
        assert reply.status == 403
        assert (await _get(served, "/", **{PROOF: proof, "X-Remote-User": "somebody"})).status == 401


async def _get(served: Served, address: str, **headers: str) -> Reply:
    return await asyncio.to_thread(served.get, address, **headers)


async def _jobs(served: Served, cluster: Cluster, **headers: str) -> set[str]:
    """The jobs that a viewer sees in the namespace."""
    reply = await _get(served, "/api/v1/jobs", **headers)
    assert reply.status == 200, reply.body
    return {row["name"] for row in reply.json["items"] if row["namespace"] == cluster.namespace}
