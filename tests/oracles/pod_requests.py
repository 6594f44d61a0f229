"""Amounts of random pods by the rule of kube-scheduler 1.37, resource by resource, without code of the product.

Amounts are integers: thousandths of cpu, units of everything else.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

from hypothesis import strategies as st

from tests.controlplane.build import UnavailableError, cached, go_build, main, pinned

Json: TypeAlias = dict[str, Any]
Amounts: TypeAlias = dict[str, int]

CPU, MEMORY, PAGES, GPU = "cpu", "memory", "hugepages-2Mi", "nvidia.com/gpu"
NAMES: Final = (CPU, MEMORY, PAGES, GPU)
_POD_LEVEL: Final = (CPU, MEMORY, PAGES)
_SCORE_DEFAULTS: Final = {CPU: 100, MEMORY: 200 << 20}
_MODULE: Final = Path(__file__).parent / "podrequests"


def _number(name: str, text: str) -> int:
    scale = {"Mi": 1 << 20, "m": 1}
    for suffix, factor in scale.items():
        if text.endswith(suffix):
            return int(text.removesuffix(suffix)) * factor
    return int(text) * (1000 if name == CPU else 1)


def _side(holder: Mapping[str, Any] | None, side: str) -> Amounts:
    return {name: _number(name, text) for name, text in ((holder or {}).get(side) or {}).items()}


def _is_sidecar(container: Json) -> bool:
    return container.get("restartPolicy") == "Always"


def _largest_moment(spec: Json, of: Callable[[Json], int]) -> int:
    """The most that containers have at once: each start step with the sidecars before it, then all that last."""
    steps = spec.get("initContainers") or []
    before = [[each for each in steps[:index] if _is_sidecar(each)] for index in range(len(steps))]
    moments = [[*sidecars, step] for sidecars, step in zip(before, steps, strict=True)]
    moments.append([*filter(_is_sidecar, steps), *spec["containers"]])
    return max(sum(map(of, moment)) for moment in moments)


def _all(spec: Json) -> list[Json]:
    return [*spec["containers"], *(spec.get("initContainers") or [])]


def _named(spec: Json, side: str) -> set[str]:
    return {name for each in _all(spec) for name in _side(each["resources"], side)}


def _together(spec: Json, side: str, name: str) -> int:
    return _largest_moment(spec, lambda each: _side(each["resources"], side).get(name, 0))


def defaulted(pod: Json) -> Json:
    """The pod as the API server stores it."""
    pod = json.loads(json.dumps(pod))
    spec = pod["spec"]
    for container in _all(spec):
        resources = container["resources"]
        resources["requests"] = {**resources.get("limits", {}), **resources.get("requests", {})}
    pod_level = spec.get("resources")
    if not pod_level or not (pod_level.get("requests") or pod_level.get("limits")):
        return pod

    def together(name: str, side: str) -> str:
        amount = _together(spec, side, name)
        return f"{amount}m" if name == CPU else str(amount)

    requests, limits = pod_level.setdefault("requests", {}), pod_level.setdefault("limits", {})
    if PAGES in _named(spec, "limits") and PAGES not in requests:
        limits.setdefault(PAGES, together(PAGES, "limits"))
    for name in {CPU, MEMORY} & _named(spec, "requests"):
        requests.setdefault(name, together(name, "requests"))
    for name, limit in limits.items():
        requests.setdefault(name, limit)
    for name, request in requests.items():
        if name not in limits and all(name in _side(each["resources"], "limits") for each in _all(spec)):
            limits[name] = max(request, together(name, "limits"), key=partial(_number, name))
    return pod


def requests_of(pod: Json) -> Amounts:
    """The requests of a pod that was defaulted."""
    found = {name: _request(pod, name, None) for name in NAMES}
    return {name: amount for name, amount in found.items() if amount is not None}


def scored_requests_of(pod: Json) -> Amounts:
    """The requests of cpu and memory, with the defaults of scores."""
    requests, has_pod_level = requests_of(pod), bool(_side(pod["spec"].get("resources"), "requests"))
    return {
        name: requests[name] if has_pod_level and name in requests else _request(pod, name, default) or 0
        for name, default in _SCORE_DEFAULTS.items()
    }


def _is_infeasible(pod: Json) -> bool:
    conditions = pod.get("status", {}).get("conditions") or ()
    return next((each["reason"] == "Infeasible" for each in conditions if each["type"] == "PodResizePending"), False)


def _request(pod: Json, name: str, default: int | None) -> int | None:
    """The request of one resource; None where nothing names it. `default`: of a container without it."""
    spec, status = pod["spec"], pod.get("status", {})
    rows = {row["name"]: row for side in ("containerStatuses", "initContainerStatuses") for row in status.get(side, ())}
    infeasible = _is_infeasible(pod)

    def specified(each: Json) -> Amounts:
        return _side(each["resources"], "requests")

    def allocated(each: Json) -> Amounts:
        if "allocatedResources" in rows.get(each["name"], {}):
            return _side(rows[each["name"]], "allocatedResources")
        return {} if infeasible else specified(each)

    def actual(each: Json) -> Amounts:
        if "requests" in rows.get(each["name"], {}).get("resources", {}):
            return _side(rows[each["name"]]["resources"], "requests")
        return allocated(each)

    def together(of: Callable[[Json], Amounts]) -> int | None:
        if default is None and not any(name in of(each) for each in _all(spec)):
            return None
        return _largest_moment(spec, lambda each: of(each).get(name, default or 0))

    pod_status = status.get("resources")
    found = [] if infeasible else [together(specified)]
    if pod_status is not None and "requests" in pod_status and "allocatedResources" in status:
        found += [_side(status, "allocatedResources").get(name), _side(pod_status, "requests").get(name)]
    else:
        found += [together(allocated), together(actual)]
    pod_level = _side(spec.get("resources"), "requests")
    if pod_level and name in _POD_LEVEL:
        sources = [pod_level]
        if pod_status is not None:
            reported = [_side(pod_status, "requests"), _side(status, "allocatedResources")]
            sources = reported if infeasible else [pod_level, *reported]
        found = [source[name] for source in sources if name in source] or found
    named = [amount for amount in found if amount is not None]
    overhead = _side(spec, "overhead")
    return max(named, default=0) + overhead.get(name, 0) if named or name in overhead else None


def limits_of(pod: Json) -> Amounts:
    """The limits in the spec of a pod that was defaulted."""
    spec = pod["spec"]
    found = {name: _together(spec, "limits", name) for name in _named(spec, "limits")}
    found |= _side(spec.get("resources"), "limits")
    overhead = _side(spec, "overhead")
    return {name: amount + overhead.get(name, 0) if amount else 0 for name, amount in found.items()}


# --- random pods ----------------------------------------------------------------------------------------------------

_QUANTITY: Final = {CPU: "{}m", MEMORY: "{}Mi", PAGES: "{}Mi", GPU: "{}"}


def _quantities(*names: str) -> st.SearchStrategy[Json]:
    options = {name: st.integers(0, 4000).map(_QUANTITY[name].format) for name in names}
    return st.fixed_dictionaries({}, optional=options)


@st.composite
def _resources(draw: st.DrawFn) -> Json:
    """Resources of a container: devices and huge pages have equal requests and limits."""
    found = {"requests": draw(_quantities(CPU, MEMORY)), "limits": draw(_quantities(CPU, MEMORY))}
    for name, amount in draw(_quantities(PAGES, GPU)).items():
        found["limits"][name] = amount
        if draw(st.booleans()):
            found["requests"][name] = amount
    return found


@st.composite
def pods(draw: st.DrawFn, resized: bool = True) -> Json:
    """A pod; `resized`: with a status that may report a resize."""
    containers = [{"name": f"c{n}", "resources": draw(_resources())} for n in range(draw(st.integers(1, 3)))]
    init = [
        {
            "name": f"i{n}",
            "resources": draw(_resources()),
            **({"restartPolicy": "Always"} if draw(st.booleans()) else {}),
        }
        for n in range(draw(st.integers(0, 3)))
    ]
    spec: Json = {"containers": containers, "initContainers": init}
    if draw(st.booleans()):
        spec["overhead"] = draw(_quantities(CPU, MEMORY))
    if draw(st.booleans()):
        spec["resources"] = {
            side: amounts
            for side in ("requests", "limits")
            if (amounts := draw(st.none() | _quantities(*_POD_LEVEL))) is not None
        }
    pod: Json = {"spec": spec}
    return {**pod, "status": draw(_statuses(defaulted(pod)["spec"]))} if resized else pod


@st.composite
def _statuses(draw: st.DrawFn, spec: Json) -> Json:
    """A status as a kubelet reports it: only cpu and memory differ from the spec."""
    status: Json = {}
    reason = draw(st.sampled_from(("", "Deferred", "Infeasible")))
    conditions = [{"type": "PodResizePending", "status": "True", "reason": reason}] if reason else []
    if draw(st.booleans()):
        conditions.append({"type": "PodResizeInProgress", "status": "True", "reason": ""})
    status["conditions"] = conditions
    complete = reason == "Infeasible"

    def reported(fixed: Json) -> Json:
        kept = {name: amount for name, amount in fixed.items() if name not in (CPU, MEMORY)}
        return {**draw(_quantities(CPU, MEMORY)), **kept}

    for key, rows in (("containers", "containerStatuses"), ("initContainers", "initContainerStatuses")):
        status[rows] = []
        for container in spec[key]:
            row: Json = {"name": container["name"]}
            if complete or draw(st.booleans()):
                row["allocatedResources"] = reported(container["resources"]["requests"])
            if draw(st.booleans()):
                row["resources"] = {"requests": reported(container["resources"]["requests"])}
            status[rows].append(row)
    if draw(st.booleans()):
        together = requests_of({"spec": spec})
        fixed = {name: str(together[name]) for name in (PAGES, GPU) if name in together}
        status["allocatedResources"] = reported(fixed)
        if draw(st.booleans()):
            status["resources"] = {"requests": reported(fixed)}
    return status


# --- the functions of kube-scheduler --------------------------------------------------------------------------------


def _target() -> Path:
    return cached("oracles") / f"podrequests-{pinned('k8s.io/component-helpers', _MODULE)}"


def program() -> Path:
    """The program around `PodRequests` of k8s.io/component-helpers. Raises UnavailableError where it is not built."""
    if not _target().exists():
        raise UnavailableError("not built: `python -m tests.oracles.pod_requests` builds it once, in a minute, with Go")
    return _target()


def build() -> Path:
    """Builds the program unless it is there; errors as of `go_build`."""
    go_build(_MODULE, ".", _target(), {})
    return _target()


def by_kubernetes(program: Path, pods: Sequence[Json]) -> list[dict[str, Amounts]]:
    """`requests`, `limits` and `scored` of each pod that was defaulted."""
    answer = subprocess.run([program], input=json.dumps(pods), capture_output=True, text=True, check=True, timeout=300)
    found: list[dict[str, Amounts]] = json.loads(answer.stdout)
    return found


if __name__ == "__main__":
    sys.exit(main("oracle of requests", build))
