"""Random pools and claims on one node, and a search by brute force without code of the product."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from itertools import combinations, product
from typing import Any, Final

Json = dict[str, Any]
#: Selectors, and the same in Python; None: the selector fails for the device.
SELECTORS: Final[dict[str, Callable[[Json], bool | None]]] = {
    'device.attributes["d"].kind == "a"': lambda device: _compared(device, "kind", lambda value: value == "a"),
    'device.attributes["d"].mem > 1': lambda device: _compared(device, "mem", lambda value: value > 1),
    'device.capacity["d"].memory.compareTo(quantity("4")) >= 0': lambda device: _memory(device) >= 4,
    'device.attributes["d"].?kind.orValue("") != "b"': lambda device: _of(device, "kind") != "b",
    '"kind" in device.attributes["d"]': lambda device: _of(device, "kind") is not None,
}
SAFE: Final = list(SELECTORS)[2:]
POLICIES: Final[list[Json | None]] = [
    None,
    {"default": "2", "validValues": ["2", "4", "8"]},
    {"default": "1", "validRange": {"min": "1", "step": "1"}},
    {"default": "2", "validRange": {"min": "2", "max": "6", "step": "2"}},
]


def _in_zone(zone: str) -> Json:
    term = {"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]}
    return {"nodeSelector": {"nodeSelectorTerms": [term]}}


SIDES: Final[list[Json]] = [
    *[{"nodeName": "N1"}] * 4,
    {"allNodes": True},
    {"nodeName": "N2"},
    _in_zone("a"),
    _in_zone("b"),
]


def _compared(device: Json, attribute: str, test: Callable[[Any], bool]) -> bool | None:
    value = _of(device, attribute)
    return None if value is None else test(value)


def _of(device: Json, attribute: str) -> Any:
    found = device.get("attributes", {}).get(attribute)
    return None if found is None else next(iter(found.values()))


def _memory(device: Json) -> Fraction:
    return Fraction(device["capacity"]["memory"]["value"])


class Scene:
    """Random classes, slices, devices in use and claims. `small`: without what the brute force does not know."""

    def __init__(self, seed: int, *, small: bool = False) -> None:
        self._random = r = random.Random(seed)
        self._small = small
        self._selectors = SAFE if small else list(SELECTORS)
        config = [{"opaque": {"driver": "d", "parameters": {"x": 1}}}]
        chosen = [{"cel": {"expression": r.choice(self._selectors)}}]
        self.classes: list[Json] = [
            {"metadata": {"name": "c"}, "spec": {}},
            {"metadata": {"name": "k"}, "spec": {"selectors": chosen, "config": config}},
        ]
        self.slices = [
            each for number in range(r.randint(1, 2) if small else r.randint(2, 4)) for each in self._pool(number)
        ]
        self.held = list(self._held())
        self.claims = [self._claim(number) for number in range(r.choice([1, 1, 2]))]

    def as_case(self) -> Json:
        """For the allocator of kube-scheduler."""
        node = {"metadata": {"name": "N1", "labels": {"zone": "a"}}}
        return {
            "node": node,
            "claims": self.claims,
            "classes": self.classes,
            "slices": self.slices,
            "held": self.held,
        }

    def _pool(self, number: int) -> Iterator[Json]:
        r, small = self._random, self._small
        name, parts = f"p{number}", 1 if small else r.choice([1, 1, 1, 2])
        counted, shared = r.random() < 0.3, r.random() < 0.3 and not small
        side = r.choice(SIDES)
        count = parts + counted + (not small and r.random() < 0.1)
        pool = {"name": name, "generation": 1, "resourceSliceCount": int(count)}
        if counted:
            counters: list[Json] = [{"name": "s", "counters": {"m": {"value": str(r.randint(1, 6))}}}]
            if not small:
                counters[0]["counters"]["k"] = {"value": str(r.randint(1, 4))}
                counters.append({"name": "t", "counters": {"m": {"value": str(r.randint(1, 3))}}})
            spec = {"driver": "d", "pool": pool, "sharedCounters": counters, **side}
            yield {"metadata": {"name": f"{name}-c"}, "spec": spec}
        for part in range(parts):
            devices = [
                self._device(f"g{part}{place}", counted=counted, shared=shared) for place in range(r.randint(1, 3))
            ]
            yield {
                "metadata": {"name": f"{name}-{part}"},
                "spec": {"driver": "d", "pool": pool, "devices": devices, **side},
            }

    def _device(self, name: str, *, counted: bool, shared: bool) -> Json:
        r, small = self._random, self._small
        if not small and r.random() < 0.03:
            name = "g00"
        memory: Json = {"value": str(r.randint(1, 8))}
        attributes: Json = {"id": {"string": name}}
        found: Json = {"name": name, "attributes": attributes, "capacity": {"memory": memory}}
        if r.random() < 0.8:
            attributes["kind"] = {"string": r.choice("ab")}
        if r.random() < 0.9:
            attributes["mem"] = {"int": r.randint(0, 3)}
        if r.random() < 0.6:
            attributes["numa"] = {"int": r.randint(0, 1)}
        if r.random() < 0.15:
            found["taints"] = [{"key": "t", "effect": r.choice(["NoSchedule", "None", "NoExecute"])}]
            if not small:
                found["taints"] = [self._taint() for _ in range(r.choice([1, 1, 2]))]
        if counted and r.random() < 0.8:
            name = "u" if not small and r.random() < 0.03 else "s"
            found["consumesCounters"] = [{"counterSet": name, "counters": {"m": {"value": str(r.randint(1, 3))}}}]
            if not small and r.random() < 0.5:
                found["consumesCounters"][0]["counters"]["k"] = {"value": str(r.randint(0, 2))}
            if not small and r.random() < 0.4:
                found["consumesCounters"].append({"counterSet": "t", "counters": {"m": {"value": "1"}}})
        if shared and r.random() < 0.7:
            found["allowMultipleAllocations"] = True
            policy = r.choice(POLICIES)
            if policy:
                memory["requestPolicy"] = policy
        if not small and r.random() < 0.05:
            found |= {"bindingConditions": ["ready"], "bindingFailureConditions": ["no"]}
        return found

    def _held(self) -> Iterator[Json]:
        for each in self.slices:
            for device in each["spec"].get("devices", ()):
                if self._random.random() < 0.2:
                    found = {"driver": "d", "pool": each["spec"]["pool"]["name"], "device": device["name"]}
                    if device.get("allowMultipleAllocations"):
                        found |= {"shareID": "x", "capacity": {"memory": str(self._random.randint(1, 3))}}
                    yield found

    def _taint(self) -> Json:
        r = self._random
        found = {"key": r.choice("tu"), "effect": r.choice(["NoSchedule", "NoSchedule", "NoExecute", "None"])}
        return found | ({"value": r.choice("xy")} if r.random() < 0.5 else {})

    def _toleration(self) -> Json:
        r = self._random
        found: Json = {"operator": "Exists"} if r.random() < 0.3 else {"key": r.choice("tu"), "operator": "Exists"}
        if "key" in found and r.random() < 0.5:
            found |= {"operator": "Equal", "value": r.choice("xy")}
        return found | ({"effect": r.choice(["NoSchedule", "NoExecute"])} if r.random() < 0.3 else {})

    def features(self) -> set[str]:
        """What the claims ask for and the devices have, of that which decides an allocation."""
        text = json.dumps([self.claims, self.slices, self.classes])
        names = ("matchAttribute", "distinctAttribute", "firstAvailable", "adminAccess", "consumesCounters",
                 "allowMultipleAllocations", "requestPolicy", "taints", "tolerations", "selectors")  # fmt: skip
        found = {name for name in names if f'"{name}"' in text}
        return found | ({"All"} if '"allocationMode": "All"' in text else set())

    def _exactly(self) -> Json:
        r = self._random
        counts = [1, 1, 2] if self._small else [1, 1, 1, 2, 2, 3]
        found: Json = {
            "deviceClassName": r.choice("cck"),
            "allocationMode": "ExactCount",
            "count": r.choice(counts),
        }
        if r.random() < 0.15:
            found["allocationMode"] = "All"
            del found["count"]
        if r.random() < 0.4:
            found["selectors"] = [{"cel": {"expression": r.choice(self._selectors)}}]
        if r.random() < (0.2 if self._small else 0.4):
            found["tolerations"] = [{"key": "t", "operator": "Exists"}]
            if not self._small:
                found["tolerations"] = [self._toleration() for _ in range(r.choice([1, 1, 2]))]
        if r.random() < 0.2:
            found["capacity"] = {"requests": {"memory": str(r.randint(1, 7))}}
        if not self._small and r.random() < 0.05:
            found["capacity"] = {"requests": {"nope": "1"}}
        return found

    def _claim(self, number: int) -> Json:
        r = self._random
        requests: list[Json] = []
        for place in range(r.choice([1, 1, 2])):
            if r.random() < 0.25:
                several = [
                    {"name": f"s{each}", **self._exactly()} for each in range(r.randint(1, 2 if self._small else 3))
                ]
                requests.append({"name": f"r{place}", "firstAvailable": several})
                continue
            exactly = self._exactly()
            if not self._small and r.random() < 0.2:
                exactly["adminAccess"] = True
            requests.append({"name": f"r{place}", "exactly": exactly})
        constraints: list[Json] = []
        if r.random() < 0.25:
            field = r.choice(["matchAttribute", "distinctAttribute"])
            constraints.append({field: "d/numa", **({"requests": ["r0"]} if r.random() < 0.4 else {})})
        config = [{"requests": ["r0"], "opaque": {"driver": "d", "parameters": {"y": 2}}}] if r.random() < 0.3 else []
        devices = {"requests": requests, "constraints": constraints, "config": config}
        return {
            "metadata": {"name": f"c{number}", "namespace": "ns", "uid": f"u{number}"},
            "spec": {"devices": devices},
        }


# --- brute force ------------------------------------------------------------------------------------------------------

Chosen = tuple[int, str, str, Json]  # claim, request, pool, device


def fits(scene: Scene) -> bool:
    """Whether some choice of devices fulfils all claims of a small scene."""
    reachable = [
        (each["spec"]["pool"]["name"], device)
        for each in scene.slices
        if _reaches(each["spec"])
        for device in each["spec"].get("devices", ())
    ]
    wanted: list[tuple[int, str, list[Json]]] = []
    for index, claim in enumerate(scene.claims):
        requests = claim["spec"]["devices"]["requests"]
        wanted += [(index, one["name"], one.get("firstAvailable") or [one["exactly"]]) for one in requests]
    for picked in product(*(alternatives for _, _, alternatives in wanted)):
        options = [list(_options(scene, exactly, reachable)) for exactly in picked]
        for devices in product(*options):
            chosen = [
                (index, name, pool, device)
                for (index, name, _), group in zip(wanted, devices, strict=True)
                for pool, device in group
            ]
            if _is_valid(scene, chosen):
                return True
    return False


def _reaches(spec: Json) -> bool:
    if spec.get("nodeName"):
        return bool(spec["nodeName"] == "N1")
    if spec.get("allNodes"):
        return True
    return bool(spec["nodeSelector"]["nodeSelectorTerms"][0]["matchExpressions"][0]["values"] == ["a"])


def _options(
    scene: Scene, exactly: Json, reachable: Sequence[tuple[str, Json]]
) -> Iterator[tuple[tuple[str, Json], ...]]:
    """The sets of devices that a request may get, whatever the others get."""
    of_class = next(each for each in scene.classes if each["metadata"]["name"] == exactly["deviceClassName"])
    selectors = [*of_class["spec"].get("selectors", ()), *exactly.get("selectors", ())]
    need = Fraction(exactly.get("capacity", {}).get("requests", {}).get("memory", 0))
    matching = [
        (pool, device)
        for pool, device in reachable
        if all(SELECTORS[each["cel"]["expression"]](device) for each in selectors) and _memory(device) >= need
    ]

    def usable(pool: str, device: Json) -> bool:
        is_held = {"driver": "d", "pool": pool, "device": device["name"]} in scene.held
        tainted = any(taint["effect"] != "None" for taint in device.get("taints", ()))
        return not is_held and (not tainted or "tolerations" in exactly)

    if exactly["allocationMode"] == "All":
        if matching and all(usable(*each) for each in matching):
            yield tuple(matching)
        return
    yield from combinations([each for each in matching if usable(*each)], exactly["count"])


def _is_valid(scene: Scene, chosen: Sequence[Chosen]) -> bool:
    ids = [(pool, device["name"]) for _, _, pool, device in chosen]
    if len(set(ids)) < len(ids):
        return False
    for index, claim in enumerate(scene.claims):
        for constraint in claim["spec"]["devices"]["constraints"]:
            names = constraint.get("requests")
            values = [
                _of(device, "numa") for of, name, _, device in chosen if of == index and (not names or name in names)
            ]
            if None in values:
                return False
            if "matchAttribute" in constraint and len(set(values)) > 1:
                return False
            if "distinctAttribute" in constraint and len(set(values)) < len(values):
                return False
    return all(_counts(scene, pool, {name for of, name in ids if of == pool}) for pool, _ in ids)


def _counts(scene: Scene, pool: str, names: set[str]) -> bool:
    """Whether the counter of a pool suffices, if devices use it."""
    used, available, counts = 0, 0, False
    for each in scene.slices:
        spec = each["spec"]
        if spec["pool"]["name"] != pool:
            continue
        for counters in spec.get("sharedCounters", ()):
            available = int(counters["counters"]["m"]["value"])
        for device in spec.get("devices", ()):
            is_held = {"driver": "d", "pool": pool, "device": device["name"]} in scene.held
            for use in device.get("consumesCounters", ()):
                counts = counts or device["name"] in names
                if is_held or device["name"] in names:
                    used += int(use["counters"]["m"]["value"])
    return not counts or used <= available
