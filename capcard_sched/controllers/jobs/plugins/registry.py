"""All Job plugins, in the order in which they change a pod: a plugin is added here."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

import msgspec

from capcard_sched.controllers.jobs.plugins.basic import Env, Ssh, Svc
from capcard_sched.controllers.jobs.plugins.frameworks import HcclRank, Mpi, PyTorch, Ray, TensorFlow
from capcard_sched.controllers.jobs.plugins.job_plugin import JobPlugin, KeyPair, PluginError

if TYPE_CHECKING:
    from collections.abc import Callable

    from capcard_sched.controllers.jobs.job_spec import JobSpec

PLUGINS: Final[tuple[type[JobPlugin], ...]] = (Env, Svc, Ssh, PyTorch, Mpi, TensorFlow, Ray, HcclRank)
#: Plugin to those it needs.
_IMPLIED: Final = {"tensorflow": ("svc",), "pytorch": ("svc",), "ray": ("svc",), "mpi": ("svc", "ssh")}
#: Pods of a Job with plugins: the list of their host names must fit into an object.
_MOST_HOSTS: Final = 10_000
_DIGEST_LETTERS: Final = 12


def job_plugins(job: JobSpec, make_keys: Callable[[], KeyPair]) -> list[JobPlugin]:
    """The plugins of a Job and those they need. Raises PluginError."""
    wanted = dict(job.plugins)
    for name in job.plugins:
        for needed in _IMPLIED.get(name, ()):
            wanted.setdefault(needed, ())
    if job.plugins and job.replicas > _MOST_HOSTS:
        raise PluginError(f"plugins accept Jobs of up to {_MOST_HOSTS} pods: this one has {job.replicas}")
    known = {plugin.name: plugin for plugin in PLUGINS}
    for name in wanted:
        if name not in known:
            raise PluginError(f"unknown plugin {name!r}: accepted: {', '.join(known)}")
    return [known[name](job, wanted[name], make_keys) for name in known if name in wanted]


def content_digest(plugin: JobPlugin) -> str:
    """A digest of what follows the Job's replicas, "" when nothing does."""
    contents = plugin.contents()
    if not contents:
        return ""
    encoded = msgspec.json.encode([(*key, content) for key, content in contents.items()], order="deterministic")
    return hashlib.sha256(encoded).hexdigest()[:_DIGEST_LETTERS]
