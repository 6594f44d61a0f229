"""Updates of vcjobs are compared by meaning: a client may write the same Job in other words, and scale it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from capcard_sched.admission.jobs import check_job_update, default_job
from tests.unit.admission.objects import Json, view

_QUANTITIES: Final = [("500m", "0.5"), ("1Gi", "1024Mi"), ("2", "2000m"), ("1", 1), ("1e3", "1k"), ("1.5", "1500m")]
#: Fields with the values that mean the same; None: absent.
_POD_FIELDS: Final[dict[str, list[Any]]] = {
    "securityContext": [None, {}],
    "affinity": [None, {}, {"nodeAffinity": {}}],
    "tolerations": [None, []],
    "nodeSelector": [None, {}],
    "hostname": [None, ""],
    "restartPolicy": [None, "Always"],
    "terminationGracePeriodSeconds": [None, 30],
    "dnsPolicy": [None, "ClusterFirst"],
    "schedulerName": [None, "", "capcard-sched"],
    "hostNetwork": [None, False],
    "enableServiceLinks": [None, True],
    "imagePullSecrets": [None, []],
}
_CONTAINER_FIELDS: Final[dict[str, list[Any]]] = {
    "resources": [None, {}, {"limits": {}, "requests": None}],
    "securityContext": [None, {}],
    "command": [None, []],
    "env": [None, []],
    "workingDir": [None, ""],
    "terminationMessagePath": [None, "/dev/termination-log"],
    "terminationMessagePolicy": [None, "File"],
    "imagePullPolicy": [None, "Always"],
    "tty": [None, False],
    "ports": [None, []],
}
_TASK_FIELDS: Final[dict[str, list[Any]]] = {
    "maxRetry": [None, 0, 3],
    "policies": [None, []],
    "topologyPolicy": [None, "", "none"],
    "dependsOn": [None, {}, {"name": []}, {"iteration": "all"}],
    "partitionPolicy": [None],
}
_JOB_FIELDS: Final[dict[str, list[Any]]] = {
    "queue": [None, "", "default"],
    "schedulerName": [None, "", "capcard-sched"],
    "maxRetry": [None, 0, 3],
    "networkTopology": [None, {}],
    "policies": [None, []],
    "volumes": [None, []],
    "plugins": [None, {}],
    "ttlSecondsAfterFinished": [None],
    "runningEstimate": [None, ""],
}
#: Values of another meaning.
_GIVEN: Final[dict[str, dict[str, Any]]] = {
    "pod": {
        "nodeSelector": {"gpu": ""},
        "hostNetwork": True,
        "dnsPolicy": "None",
        "terminationGracePeriodSeconds": 0,
        "restartPolicy": "Never",
        "priorityClassName": "high",
    },
    "container": {
        "env": [{"name": "E"}],
        "command": ["sh", ""],
        "tty": True,
        "imagePullPolicy": "Never",
        "ports": [{"containerPort": 80}],
    },
    "task": {
        "maxRetry": -1,
        "topologyPolicy": "restricted",
        "policies": [{"event": "PodFailed", "action": "RestartTask", "timeout": "90s"}],
    },
    "job": {
        "queue": "research",
        "maxRetry": 5,
        "ttlSecondsAfterFinished": 0,
        "plugins": {"pytorch": ["--port=1"], "env": []},
        "networkTopology": {"mode": "hard", "highestTierAllowed": 2},
    },
}
_ABSENT: Final = "absent"


def _same(draw: st.DrawFn, values: list[Any]) -> Any:
    """One of the values of the same meaning; a null or no key for None."""
    found = draw(st.sampled_from(values))
    return copy.deepcopy(found) if found is not None else draw(st.sampled_from([None, _ABSENT]))


def _shuffled(draw: st.DrawFn, value: Any) -> Any:
    """The same value with the keys of its maps in another order."""
    if isinstance(value, list):
        return [_shuffled(draw, entry) for entry in value]
    if not isinstance(value, dict):
        return value
    return {key: _shuffled(draw, value[key]) for key in draw(st.permutations(sorted(value)))}


class _Plan:
    """The meaning of a Job: the fields that it sets. `write` is one way to write it."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.names = draw(st.lists(st.sampled_from(["a", "b", "default1"]), min_size=1, max_size=2, unique=True))
        self.set: dict[str, dict[str, Any]] = {}
        for index in range(len(self.names)):
            for owner in ("pod", "container", "task"):
                self.set[f"{owner} {index}"] = draw(_subset(_GIVEN[owner]))
            amounts = draw(st.dictionaries(st.sampled_from(["cpu", "memory", "x.y/z"]), st.sampled_from(_QUANTITIES)))
            self.set[f"amounts {index}"] = amounts
        self.set["job"] = draw(_subset(_GIVEN["job"]))

    def write(self, draw: st.DrawFn) -> Json:
        """One spelling of the spec."""
        tasks = []
        for index, name in enumerate(self.names):
            pod = _fields(draw, _POD_FIELDS, self.set[f"pod {index}"])
            if pod.get("hostNetwork") is True and pod.get("dnsPolicy") == "ClusterFirst":
                del pod["dnsPolicy"]
            container = {"name": "c", "image": "x", **_fields(draw, _CONTAINER_FIELDS, self.set[f"container {index}"])}
            amounts = self.set[f"amounts {index}"]
            if amounts:
                limits = {key: draw(st.sampled_from(pair)) for key, pair in amounts.items()}
                requests = {key: draw(st.sampled_from(pair)) for key, pair in amounts.items()}
                container["resources"] = {"limits": limits, **draw(st.sampled_from([{}, {"requests": requests}]))}
            metadata: Json = draw(st.sampled_from([{}, {"metadata": {"creationTimestamp": None}}, {"metadata": None}]))
            task: Json = {
                "replicas": 4,
                "minAvailable": 2,
                "template": {"spec": {**pod, "containers": [container]}, **metadata},
                **_fields(draw, _TASK_FIELDS, self.set[f"task {index}"]),
            }
            if not (name == f"default{index}" and draw(st.booleans())):
                task["name"] = name
            tasks.append(task)
        spec = {"minAvailable": 2, "tasks": tasks, **_fields(draw, _JOB_FIELDS, self.set["job"])}
        plugins = spec.get("plugins")
        if plugins and draw(st.booleans()):
            spec["plugins"] = {**plugins, "svc": draw(st.sampled_from([[], None]))}
        for task in tasks:
            for policy in task.get("policies") or ():
                policy["timeout"] = draw(st.sampled_from(["90s", "1m30s"]))
        return {
            "apiVersion": "batch.volcano.sh/v1alpha1",
            "kind": "Job",
            "metadata": {"name": "j"},
            "spec": _shuffled(draw, spec),
        }


def _subset(fields: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.sets(st.sampled_from(sorted(fields))).map(lambda names: {name: fields[name] for name in sorted(names)})


def _fields(draw: st.DrawFn, same: dict[str, list[Any]], given: dict[str, Any]) -> Json:
    """The fields that are set, and spellings of the absence of the others."""
    found = {name: _same(draw, values) for name, values in same.items() if name not in given}
    return {**{name: value for name, value in found.items() if value != _ABSENT}, **copy.deepcopy(given)}


class _Scale(NamedTuple):
    """The fields that may change."""

    replicas: int
    least: int
    minimum: int
    priority_class: str

    def apply(self, job: Json) -> None:
        """Change a Job in place."""
        for task in job["spec"]["tasks"]:
            task["replicas"], task["minAvailable"] = self.replicas, self.least
        job["spec"].update(minAvailable=self.minimum, priorityClassName=self.priority_class)


def _scales(draw: st.DrawFn) -> _Scale:
    whole = st.integers
    return _Scale(draw(whole(3, 9)), draw(whole(0, 3)), draw(whole(1, 3)), draw(st.sampled_from(["", "high"])))


def _container(job: Json) -> Json:
    found: Json = job["spec"]["tasks"][-1]["template"]["spec"]["containers"][0]
    return found


def _pod(job: Json) -> Json:
    found: Json = job["spec"]["tasks"][-1]["template"]["spec"]
    return found


def _add(owner: Json, field: str, key: str, value: Any) -> None:
    owner[field] = {**(owner.get(field) or {}), key: value}


#: Changes of the meaning of any Job above.
CHANGES: Final[dict[str, Callable[[Json], None]]] = {
    "image": lambda job: _container(job).update(image="y"),
    "argument": lambda job: _container(job).update(args=["--x"]),
    "amount": lambda job: _add(_container(job), "resources", "requests", {"ephemeral-storage": "1"}),
    "zero amount": lambda job: _add(_container(job), "resources", "limits", {"hugepages-2Mi": 0}),
    "sidecar": lambda job: _pod(job).update(initContainers=[{"name": "s", "image": "x", "restartPolicy": "Always"}]),
    "node selector": lambda job: _add(_pod(job), "nodeSelector", "zone", ""),
    "label": lambda job: _add(job["spec"]["tasks"][-1]["template"], "metadata", "labels", {"a": ""}),
    "root": lambda job: _add(_container(job), "securityContext", "runAsUser", 0),
    "escalation": lambda job: _add(_container(job), "securityContext", "allowPrivilegeEscalation", False),
    "service links": lambda job: _pod(job).update(enableServiceLinks=False),
    "toleration": lambda job: _pod(job).update(tolerations=[{"operator": "Exists", "tolerationSeconds": 0}]),
    "spread": lambda job: _pod(job).update(topologySpreadConstraints=[{"labelSelector": {}}]),
    "scheduler": lambda job: job["spec"].update(schedulerName="other"),
    "scheduler of the pods": lambda job: _pod(job).update(schedulerName="default-scheduler"),
    "plugin": lambda job: _add(job["spec"], "plugins", "tensorflow", []),
    "plugin without arguments": lambda job: _add(job["spec"], "plugins", "hcclrank", None),
    "task": lambda job: job["spec"]["tasks"][-1].update(name="other"),
    "dependency": lambda job: job["spec"]["tasks"][-1].update(dependsOn={"name": ["a"]}),
    "success": lambda job: job["spec"].update(minSuccess=1),
    "topology": lambda job: job["spec"].update(networkTopology={"mode": "soft"}),
    "policy": lambda job: job["spec"].update(policies=[{"event": "*", "action": "RestartJob"}]),
    "claim": lambda job: job["spec"].update(volumes=[{"mountPath": "/a", "volumeClaimName": "c"}]),
}


#: A plan and two spellings of it.
_SPELLINGS: Final = st.composite(_Plan)().flatmap(lambda plan: st.tuples(*[st.composite(plan.write)()] * 2))


@given(_SPELLINGS, st.booleans(), st.composite(_scales)())
def test_another_spelling_of_a_job_may_scale_it(spellings: tuple[Json, Json], defaulted: bool, scale: _Scale) -> None:
    old, new = copy.deepcopy(spellings)
    if defaulted:
        default_job(old, "capcard-sched")
    scale.apply(new)
    assert check_job_update(new, old, view()).errors == []


@settings(max_examples=2 * settings().max_examples)
@given(st.sampled_from(sorted(CHANGES)), _SPELLINGS, st.composite(_scales)())
def test_a_change_of_another_field_is_rejected(name: str, spellings: tuple[Json, Json], scale: _Scale) -> None:
    old, new = copy.deepcopy(spellings)
    scale.apply(new)
    CHANGES[name](new)
    messages = [finding.message for finding in check_job_update(new, old, view()).errors]
    assert any("job updates may not change fields other than" in message for message in messages), (old, new)
