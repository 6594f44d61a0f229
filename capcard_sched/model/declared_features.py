"""Features that a pod requires its node to declare in `status.declaredFeatures`, as kube-scheduler 1.37 infers them.

No feature of that release has a version after which a node need not declare it. Its other declared features concern
updates of pods, or no pod at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from capcard_sched.model.objects import Container, PodSpec


def _containers(spec: PodSpec) -> Iterator[Container]:
    yield from spec.containers
    yield from spec.init_containers or ()


def _restarts_all(spec: PodSpec) -> bool:
    rules = (rule for each in _containers(spec) for rule in each.restart_policy_rules or ())
    return any(rule.action == "RestartAllContainers" for rule in rules)


def _maps_users_on_host_network(spec: PodSpec) -> bool:
    return bool(spec.host_network) and spec.host_users is False


def _has_mount_options(spec: PodSpec) -> bool:
    return any(mount.bind_mount_options for each in _containers(spec) for mount in each.volume_mounts or ())


#: In order of names.
_REQUIRED_BY: Final[dict[str, Callable[[PodSpec], bool]]] = {
    "RestartAllContainersOnContainerExits": _restarts_all,
    "UserNamespacesHostNetworkSupport": _maps_users_on_host_network,
    "VolumeBindMountOptions": _has_mount_options,
}


def required_features(spec: PodSpec) -> tuple[str, ...]:
    """The names of the features that the node of a pod must declare, sorted."""
    return tuple(name for name, is_required in _REQUIRED_BY.items() if is_required(spec))
