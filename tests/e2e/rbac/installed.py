"""The daemon as the manifests install it: their roles, account and arguments; and its requests in the audit log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from collections.abc import Set as AbstractSet
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

from tests.controlplane.cluster import Cluster
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.manifests import Manifest
from tests.controlplane.processes import output
from tests.e2e.daemons import Daemon
from tests.manifests.documents import arguments, kustomized

SYSTEM: Final = "capcard-system"
ACCOUNT: Final = "capcard-sched"
USER: Final = f"system:serviceaccount:{SYSTEM}:{ACCOUNT}"
ACTIONS: Final = Path(__file__).parent / "actions"
#: Set by `Daemon` itself, as they have paths and ports in them here.
_ITS_OWN: Final = ("--scheduler-conf=", "--enable-healthz=", "--enable-metrics=")
#: Twice as fast as usual. A leader that a busy machine kept from renewing would have to list what it may not list here.
_ELECTION: Final = (
    "--leader-elect-lease-duration=8s",
    "--leader-elect-renew-deadline=6s",
    "--leader-elect-retry-period=500ms",
)


class Right(NamedTuple):
    """In the words of RBAC; `resource` with its subresource."""

    resource: str
    verb: str
    group: str = ""

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}"


class Installation(NamedTuple):
    """Objects that kubectl applied."""

    cluster: Cluster
    objects: list[Manifest]
    #: Rights that the roles do not grant for now.
    withheld: set[Right]

    def _one(self, kind: str) -> Manifest:
        (found,) = [manifest for manifest in self.objects if manifest["kind"] == kind]
        return found

    @property
    def arguments(self) -> list[str]:
        """Those of the Deployment, without what is different here."""
        verb, *flags = arguments(self._one("Deployment"))
        assert verb == "run"
        assert all(any(flag.startswith(own) for flag in flags) for own in _ITS_OWN)
        return [flag for flag in flags if not flag.startswith(_ITS_OWN)]

    @property
    def conf(self) -> str:
        """The ConfigMap's scheduler-conf, with the optional things that need rights: usage on queues, an eviction."""
        conf = yaml.safe_load(self._one("ConfigMap")["data"]["scheduler.yaml"])
        conf["actions"] += ", evict-marked"
        for plugin in (plugin for tier in conf["tiers"] for plugin in tier["plugins"]):
            if plugin["name"] == "capacity-card":
                plugin["arguments"] = {"publishCardUsage": True}
        return yaml.safe_dump(conf)

    def daemon(self, kubeconfig: Path, folder: Path, *flags: str, name: str = "daemon") -> Daemon:
        """One replica."""
        given = [*self.arguments, f"--plugins-dir={ACTIONS}", *_ELECTION, *flags]
        return Daemon(kubeconfig, folder, *given, conf=self.conf, name=name)

    async def kubeconfig(self, server: str = "") -> Path:
        """One of the ServiceAccount; `server`: another way to the API server."""
        return await account(self.cluster, ACCOUNT, server)

    async def granted(self) -> set[Right]:
        """Rights of the roles that are bound to the account, without one that the API server checks besides a write."""
        found: set[Right] = set()
        for kind, of in (("clusterrolebindings", "clusterroles"), ("rolebindings", "roles")):
            for binding in await self.cluster.list(kind, namespace=SYSTEM):
                if {"kind": "ServiceAccount", "name": ACCOUNT, "namespace": SYSTEM} in binding.get("subjects", []):
                    role = await self.cluster.get(of, binding["roleRef"]["name"], namespace=SYSTEM)
                    found |= {right for rule in role["rules"] for right in rights_of(rule)}
        return {right for right in found if right.resource != "resourceclaims/binding"}


async def flags_of(cluster: Cluster, name: str) -> list[str]:
    """Flags of a Deployment that is installed, without what is different here."""
    words = arguments(await cluster.get("deployments", name, namespace=SYSTEM))[1:]
    return [word for word in words if not word.startswith(_ITS_OWN)]


async def account(cluster: Cluster, name: str, server: str = "") -> Path:
    """The kubeconfig of a ServiceAccount of ours; `server`: another way to the API server."""
    token = await cluster.token_of(name, namespace=SYSTEM)
    return cluster.control_plane.kubeconfig_for(token=token, server=server, namespace=SYSTEM, name=name)


def granted_by(objects: Iterable[Manifest]) -> set[Right]:
    """Rights of the roles among objects."""
    roles = (each for each in objects if each["kind"] in {"Role", "ClusterRole"})
    return {right for role in roles for rule in role["rules"] for right in rights_of(rule)}


async def install(cluster: Cluster, folder: Path) -> Installation:
    """Apply a kustomization by kubectl."""
    kubectl = cluster.control_plane.programs / "kubectl"
    config = cluster.control_plane.kubeconfig
    await output(kubectl, "--kubeconfig", config, "apply", "--server-side", "--validate=strict", "-k", folder)
    await cluster.list("roles", namespace=SYSTEM)
    return Installation(cluster, await asyncio.to_thread(kustomized, kubectl, folder), set())


def rights_of(rule: dict[str, Any]) -> Iterable[Right]:
    """A rule of a role, one by one."""
    return (
        Right(resource, verb, group)
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    )


# --- one right less ---------------------------------------------------------------------------------------------------


@asynccontextmanager
async def without(installation: Installation, *rights: Right) -> AsyncIterator[None]:
    """No role grants these rights in here, and the API server enforces it; may be nested."""
    installation.withheld.update(rights)
    await _set_roles(installation, rights)
    try:
        yield
    finally:
        installation.withheld.difference_update(rights)
        await _set_roles(installation, rights)


async def _set_roles(installation: Installation, changed: Iterable[Right]) -> None:
    """Write the roles with the changed rights, and wait until the API server enforces them."""
    cluster, withheld = installation.cluster, installation.withheld
    for role in (item for item in installation.objects if item["kind"] in {"ClusterRole", "Role"}):
        if any(right in rights_of(rule) for rule in role["rules"] for right in changed):
            await cluster.apply({**role, "rules": [left for rule in role["rules"] for left in _less(rule, withheld)]})
    for right in changed:
        await _allowed(cluster, right, wanted=right not in withheld)


def _less(rule: dict[str, Any], rights: AbstractSet[Right]) -> Iterable[dict[str, Any]]:
    """The rule without those rights, its resources one by one."""
    for resource in rule["resources"]:
        (group,) = rule["apiGroups"]
        verbs = [verb for verb in rule["verbs"] if Right(resource, verb, group) not in rights]
        if verbs == rule["verbs"] and len(rule["resources"]) == 1:
            yield rule
        elif verbs:
            yield {**rule, "resources": [resource], "verbs": verbs}


async def _allowed(cluster: Cluster, right: Right, *, wanted: bool) -> None:
    """Wait until the API server's authorizer has the role."""
    resource, _, sub = right.resource.partition("/")
    attributes = {"namespace": SYSTEM, "verb": right.verb, "group": right.group, "resource": resource}
    if right.resource == "leases":
        attributes["name"] = "capcard-sched"
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": USER,
            "groups": ["system:serviceaccounts", f"system:serviceaccounts:{SYSTEM}", "system:authenticated"],
            "resourceAttributes": {**attributes, "subresource": sub},
        },
    }

    async def in_effect() -> bool:
        answer = await cluster.request("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", body=review)
        return bool(answer["status"]["allowed"]) == wanted

    await cluster.wait_until(in_effect, f"{right} to be {'allowed' if wanted else 'refused'}")


# --- the audit log ----------------------------------------------------------------------------------------------------


class Audit:
    """Requests of the account from now on."""

    def __init__(self, control_plane: ControlPlane, user: str = USER) -> None:
        self._user = user
        self._control_plane = control_plane
        self._since = control_plane.audited

    def _rights(self, *, allowed: bool) -> set[Right]:
        rows = (row for row in self._control_plane.audit(self._since) if row.user == self._user)
        return {
            Right("/".join(filter(None, (row.resource, row.subresource))), row.verb, row.group)
            for row in rows
            if (row.decision == "allow") is allowed
        }

    def used(self) -> set[Right]:
        """Rights that a request was let through by."""
        return self._rights(allowed=True)

    def denied(self) -> set[Right]:
        """Rights that a request was refused for the lack of. What an admission policy refuses is not among them."""
        return self._rights(allowed=False)
