"""Cards of device plugins and of devices under one quota: what commands show, against figures computed by hand."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from capcard_sched.cli.main import run
from capcard_sched.cli.sources.source import Source
from capcard_sched.cli.web_files import FileClusters
from capcard_sched.web.nodes import node_list
from capcard_sched.web.views import CardBox, NodeRow
from tests.scenarios.notation import objects_of
from tests.unit.devices.test_allocator_pods import _state_of
from tests.vectors.world import conf_text

Json = dict[str, Any]
CASES: Final = yaml.safe_load((Path(__file__).parent / "card_cases.yaml").read_text("utf-8"))
_WORLD: Final = """\
node n1 cpu=64 labels=host:n1; node n2 cpu=64 labels=host:n2; device_class gpu
claim_template one class=gpu; claim_template two class=gpu count=2; claim_template four class=gpu count=4
"""


def _written(text: str) -> str:
    """Statements with the short forms of the file."""

    def claims(found: re.Match[str]) -> str:
        names = found[1].split(",")
        entries = [f"{{name: {'rst'[number]}, resourceClaimTemplateName: {name}}}" for number, name in enumerate(names)]
        return f"resourceClaims=[{', '.join(entries)}]"

    text = re.sub(r"\buses=([\w,]+)", claims, text)
    return re.sub(r"(queue \S+ cards=(?:'[^']*'|\S+?))(?=[;\s])", r"\1 cap=cpu:64,memory:1Ti", text + "\n")


class _Cluster:
    """The end of a simulation, as commands show it."""

    def __init__(self, case: Json, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys, self._file = capsys, str(folder / "cluster.yaml")
        plan: Json = {"cluster": _WORLD + _written(case["given"])}
        plan["operations"] = [_written(each).strip() for each in case.get("operations", ())]
        more = [{"apiVersion": "resource.k8s.io/v1", **each} for each in case.get("objects", ())]
        Path(self._file).write_text("\n---\n".join(map(json.dumps, [*objects_of(plan), *more])))
        self._conf = ["--scheduler-conf", str(folder / "conf.yaml")] if "conf" in case else []
        if self._conf:
            Path(self._conf[1]).write_text(conf_text(case["conf"]))
        self._until = case.get("until", "1m")

    def printed(self, *words: str) -> str:
        assert run([*words, "-f", self._file, *self._conf, "--until", self._until]) in (0, 1, 3)
        return self._capsys.readouterr().out

    def nodes(self) -> tuple[NodeRow, ...]:
        """The items of the page of nodes."""
        conf = Path(self._conf[1]) if self._conf else None
        source = Source(file=(self._file,), until=self._until, scheduler_conf=conf)
        return node_list(FileClusters(source).load(), {}).items

    def items(self, *words: str) -> list[Json]:
        found: list[Json] = json.loads(self.printed(*words, "-o", "json"))["items"]
        return found


def _box(box: CardBox) -> str:
    if not box.tenants:
        return "-" if box.available else "x"
    return " ".join(f"{each.pod.partition('/')[2]} {each.share:g}" for each in box.tenants)


def _amounts(*amounts: float) -> str:
    return " ".join(f"{amount:g}" for amount in amounts)


@pytest.mark.parametrize("case", [pytest.param(case, id=case["name"]) for case in CASES])
def test_commands_show_the_figures(case: Json, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cluster = _Cluster(case, tmp_path, capsys)
    pods = {each["metadata"]["name"]: _state_of(each) for each in cluster.items("simulate") if each["kind"] == "Pod"}
    for name, expected in case["pods"].items():
        assert pods[name] == expected or (" " in pods[name] and expected in pods[name]) or not expected, pods
    if "queues" in case:
        queues = cluster.items("queue", "list")
        uses = {f"{each['name']} {use['card']}": use for each in queues for use in each["cards"]}
        found = {key: f"{uses[key]['allocated']:g}/{uses[key]['quota']:g}" for key in case["queues"]}
        assert found == case["queues"]
    listed = {f"{each['node']} {each['name']}": each for each in cluster.items("card", "list")}
    if "cards" in case:
        shown = {key: _amounts(each["total"], each["used"], each["free"]) for key, each in listed.items()}
        assert {key: shown[key] for key in case["cards"] or shown} == case["cards"]
    for key, expected in case.get("held", {}).items():
        holders = [f"{each['workload'].partition('/')[2]} {each['amount']:g}" for each in listed[key]["holders"]]
        assert " ".join(sorted(holders)) == expected
    rows = {f"{node.name} {row.card}": row for node in cluster.nodes() for row in node.cards} if "boxes" in case else {}
    for key, expected in case.get("boxes", {}).items():
        row = rows[key]
        figures = _amounts(row.total, row.used, row.free)
        assert f"{row.sharing} {figures} {'|'.join(map(_box, row.boxes))}" == expected
    for words, parts in case.get("what_if", {}).items():
        text = " ".join(cluster.printed("what-if", *words.split()).split())
        for part in parts:
            assert part in text
    for name, parts in case.get("explain", {}).items():
        text = cluster.printed("explain", name)
        for part in parts:
            assert part in text


def test_there_are_forty_cases_of_different_names() -> None:
    assert len({case["name"] for case in CASES}) == len(CASES) >= 40
