"""Openb traces: the objects of each row, and messages about rows that cannot be used."""

import io
import json
from pathlib import Path

import pytest
import yaml

from capcard_sched_trace.openb import Sharing, TraceScenario, make_scenario
from capcard_sched_trace.openb_rows import TraceError, TraceNode, TracePod, read_nodes, read_pods

DATA = Path(__file__).parents[2] / "data" / "openb"
NODES, PODS = DATA / "nodes.csv", DATA / "pods.csv"


def scenario(quota_share: float = 0.5, sharing: Sharing = "whole") -> TraceScenario:
    return make_scenario(read_nodes(NODES), read_pods(PODS), quota_share, sharing)


def pod(name: str) -> dict[str, object]:
    return next(op for op in scenario().operations if op["create"]["metadata"]["name"] == name)


def quotas(of: TraceScenario) -> dict[str, dict[str, int]]:
    return {
        doc["metadata"]["name"]: json.loads(doc["metadata"]["annotations"]["volcano.sh/card.quota"])
        for doc in of.manifests
        if doc["kind"] == "Queue"
    }


def machine(name: str, sharing: Sharing = "whole") -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
    """Labels but the host name, annotations, and allocatable amounts of a node."""
    found = {doc["metadata"]["name"]: doc for doc in scenario(sharing=sharing).manifests if doc["kind"] == "Node"}
    assert list(found) == ["node-a", "node-b", "node-c", "node-d", "node-e"]
    labels = dict(found[name]["metadata"]["labels"])
    assert labels.pop("kubernetes.io/hostname") == name
    return labels, found[name]["metadata"].get("annotations", {}), found[name]["status"]["allocatable"]


PLAIN = {"cpu": "16000m", "memory": "122880Mi", "pods": "256"}


def test_machines_become_nodes_with_card_labels() -> None:
    labels, _, amounts = machine("node-e")
    cards = {"product": "P100", "count": "2", "memory": "16384"}
    assert labels == {f"nvidia.com/gpu.{key}": value for key, value in cards.items()}
    assert amounts == {**PLAIN, "nvidia.com/gpu": "2"}
    labels, _, amounts = machine("node-d")
    assert labels == {}
    assert "nvidia.com/gpu" not in amounts


def test_pods_come_in_order_of_their_creation() -> None:
    moments = [(op["at"], op["create"]["metadata"]["name"]) for op in scenario().operations]
    assert moments == [
        ("0s", "pod-1"),
        ("100s", "pod-2"),
        ("120s", "pod-5"),
        ("130s", "pod-6"),
        ("150s", "pod-3"),
        ("160s", "pod-4"),
    ]


#: Name, meaning, then queue, duration, exit code, card, and cpu, memory and cards requested.
ROWS = [
    ("pod-1", "no model named: any, the most numerous first",
     "ls", "490s", "", "G2|T4|P100", "12000m", "16384Mi", "1"),
    ("pod-2", "part of a card becomes a whole one, failure stays failure",
     "ls", "300s", "1", "P100", "6000m", "12288Mi", "1"),
    ("pod-4", "no card, over in an instant: runs one second", "be", "1s", "", "", "4000m", "8192Mi", ""),
    ("pod-5", "repeated models collapse, never scheduled: runs as long as it existed",
     "be", "300s", "", "P100|T4", "8000m", "65536Mi", "2"),
    ("pod-6", "never deleted: runs on", "be", "", "", "G2", "8000m", "65536Mi", "1"),
]  # fmt: skip


@pytest.mark.parametrize("name, row", [pytest.param(row[0], row[2:], id=row[1]) for row in ROWS])
def test_a_row_becomes_a_pod(name: str, row: tuple[str, ...]) -> None:
    queue, duration, code, card, cpu, memory, cards = row
    notes = {
        "scheduling.volcano.sh/queue-name": queue,
        "simulation.capcard-sched.io/duration": duration,
        "simulation.capcard-sched.io/exit-code": code,
        "volcano.sh/card.name": card,
    }
    limits = {"nvidia.com/gpu": cards} if cards else {}
    resources = {"requests": {"cpu": cpu, "memory": memory, **limits}, **({"limits": limits} if cards else {})}
    assert pod(name)["create"] == {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "default",
            "annotations": {key: note for key, note in notes.items() if note},
        },
        "spec": {
            "schedulerName": "capcard-sched",
            "restartPolicy": "Never",
            "containers": [{"name": "main", "image": "trace", "resources": resources}],
        },
    }


@pytest.mark.parametrize(
    "share, of_ls",
    [
        pytest.param(1.0, 2, id="the whole peak"),
        pytest.param(0.5, 1, id="half of it, rounded down, beside the largest pod"),
        pytest.param(50.0, 2, id="never more than the cluster has"),
    ],
)
def test_quotas_are_a_share_of_the_undisturbed_peak(share: float, of_ls: int) -> None:
    be = {"G2": 1, "P100": 2, "T4": 0}
    assert quotas(scenario(share)) == {"be": be, "ls": {**be, "P100": of_ls}}


# --- shared cards ---------------------------------------------------------------------------------------------------


def test_shared_machines_register_their_cards() -> None:
    labels, notes, amounts = machine("node-e", "vgpu")
    cards = "".join(f"GPU-node-e-{number},10,16384,NVIDIA-P100,true,hami-core:" for number in range(2))
    assert (labels, notes) == ({}, {"volcano.sh/node-vgpu-register": cards})
    shares = {"number": "20", "memory": "32768", "cores": "200"}
    assert amounts == {**PLAIN, **{f"volcano.sh/vgpu-{key}": value for key, value in shares.items()}}
    assert machine("node-d", "vgpu")[1] == {}


@pytest.mark.parametrize(
    ("name", "types", "limits"),
    [
        ("pod-1", None, (1, 100)),
        ("pod-2", "NVIDIA-P100", (1, 46)),
        ("pod-5", "NVIDIA-P100,NVIDIA-T4", (2, 100)),
        ("pod-4", None, None),
    ],
)
def test_a_pod_keeps_its_part_of_a_card(name: str, types: str | None, limits: tuple[int, int] | None) -> None:
    found = next(op["create"] for op in scenario(sharing="vgpu").operations if op["create"]["metadata"]["name"] == name)
    notes, resources = found["metadata"]["annotations"], found["spec"]["containers"][0]["resources"]
    assert notes.get("nvidia.com/use-gputype") == types
    assert "volcano.sh/card.name" not in notes
    names = ("number", "cores", "memory-percentage")
    expected = limits and {f"volcano.sh/vgpu-{name}": str(limits[name != "number"]) for name in names}
    assert resources.get("limits") == expected


def test_a_part_is_rounded_up_to_percent() -> None:
    pods = [TracePod(f"p{milli}", 1, 1, 1, milli, (), "LS", "Running", 0, 10, 0) for milli in (0, 1, 10, 11, 999)]
    made = make_scenario([], pods, 1.0, "vgpu").operations
    shares = {op["create"]["metadata"]["name"]: op["create"]["spec"]["containers"][0]["resources"] for op in made}
    cores = {name: resources["limits"]["volcano.sh/vgpu-cores"] for name, resources in shares.items()}
    assert cores == {"p0": "1", "p1": "1", "p10": "1", "p11": "2", "p999": "100"}


def test_shared_quotas_are_the_sum_of_the_models_in_cores() -> None:
    queues = [doc for doc in scenario(sharing="vgpu").manifests if doc["kind"] == "Queue"]
    assert {queue["metadata"]["name"]: queue["spec"]["capability"] for queue in queues} == {
        "be": {"volcano.sh/vgpu-cores": "300"},
        "ls": {"volcano.sh/vgpu-cores": "200"},
    }


def test_a_pod_that_ends_when_another_begins_does_not_raise_the_peak() -> None:
    one = TracePod("a", 1, 1, 1, 1000, ("T4",), "LS", "Running", 0, 10, 0)
    nodes = [TraceNode("n", 1000, 1000, 4, "T4")]
    after = make_scenario(nodes, [one, one._replace(name="b", created=10, scheduled=10, deleted=20)], 1.0)
    beside = make_scenario(nodes, [one, one._replace(name="b", created=9, scheduled=9, deleted=20)], 1.0)
    assert (quotas(after)["ls"]["T4"], quotas(beside)["ls"]["T4"]) == (1, 2)


@pytest.mark.parametrize("share", [0.0, -1.0, float("nan"), float("inf")])
def test_a_quota_share_must_be_a_number_above_zero(share: float) -> None:
    with pytest.raises(ValueError, match="is not a number above 0"):
        scenario(share)


def test_an_empty_trace_is_an_empty_scenario() -> None:
    file = io.BytesIO()
    make_scenario([], []).write_yaml(file)
    assert yaml.safe_load(file.getvalue())["spec"] == {"operations": []}


# --- bad files ------------------------------------------------------------------------------------------------------

NODE_HEAD = "sn,cpu_milli,memory_mib,gpu,model\n"
POD_HEAD = PODS.read_text(encoding="utf-8").splitlines()[0] + "\n"
POD_ROW = "p,1000,1,1,1000,T4,LS,Running,5,9,6\n"


@pytest.mark.parametrize(
    ("text", "line", "column", "accepted"),
    [
        pytest.param("", 0, "", "with the columns sn, cpu_milli", id="empty file"),
        pytest.param("sn,cpu_milli,gpu,model\n", 1, "", "with the columns sn, cpu_milli", id="column missing"),
        pytest.param(NODE_HEAD + "n1,1,1,0\n", 2, "", "5 cells", id="cell missing"),
        pytest.param(NODE_HEAD + "n1,1,1,0,\nn1,1,1,0,\n", 3, "sn", "no other row", id="name twice"),
        pytest.param(NODE_HEAD + "N 1,1,1,0,\n", 2, "sn", "Kubernetes object name", id="bad name"),
        pytest.param(NODE_HEAD + "n1,1.5,1,0,\n", 2, "cpu_milli", "whole number", id="fraction"),
        pytest.param(NODE_HEAD + "n1,1,-1,0,\n", 2, "memory_mib", "whole number", id="negative"),
        pytest.param(NODE_HEAD + "n1,1,1,4,\n", 2, "model", "since gpu is 4", id="cards without a model"),
        pytest.param(NODE_HEAD + "n1,1,1,4,A|B\n", 2, "model", "a card model", id="two models on one node"),
        pytest.param(NODE_HEAD + 'n1,1,1,0,"\n', 2, "", "CSV", id="quote not closed"),
    ],
)
def test_a_bad_node_list_is_refused_with_its_place(
    tmp_path: Path, text: str, line: int, column: str, accepted: str
) -> None:
    path = tmp_path / "nodes.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(TraceError) as caught:
        read_nodes(path)
    assert (caught.value.path, caught.value.line, caught.value.column) == (path, line, column)
    assert accepted in caught.value.accepted
    assert str(caught.value).startswith(f"{path}:{line}" if line else f"{path}: ")


@pytest.mark.parametrize(
    ("column", "cell", "accepted"),
    [
        ("gpu_milli", "1001", "from 0 to 1000"),
        ("gpu_spec", "T4||G2", "joined by |"),
        ("gpu_spec", "T 4", "a card model"),
        ("qos", "", "a word"),
        ("pod_phase", "Gone", "one of Pending, Running"),
        ("creation_time", "", "whole seconds"),
        ("creation_time", "2026-01-01", "whole seconds"),
        ("scheduled_time", "4", "at least creation_time (5)"),
        ("deletion_time", "5", "(6)"),
        ("num_gpu", "one", "whole number"),
    ],
)
def test_a_bad_pod_cell_is_refused_with_its_place(tmp_path: Path, column: str, cell: str, accepted: str) -> None:
    path = tmp_path / "pods.csv"
    cells = dict(zip(POD_HEAD.strip().split(","), POD_ROW.strip().split(","), strict=True)) | {
        "name": "q",
        column: cell,
    }
    path.write_text(POD_HEAD + POD_ROW + ",".join(cells.values()) + "\n", encoding="utf-8")
    with pytest.raises(TraceError) as caught:
        read_pods(path)
    assert (caught.value.line, caught.value.column) == (3, column)
    assert accepted in caught.value.accepted
    assert repr(cell) in str(caught.value) or cell in str(caught.value)


def test_a_missing_file_and_a_binary_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="No such file"):
        read_nodes(tmp_path / "none.csv")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TraceError, match="not UTF-8"):
        read_nodes(tmp_path / "binary.csv")


def test_columns_may_stand_in_any_order_beside_others(tmp_path: Path) -> None:
    path = tmp_path / "nodes.csv"
    path.write_text("model,gpu,rack,memory_mib,cpu_milli,sn\nT4, 2 ,r1,10,20,n\n", encoding="utf-8")
    assert read_nodes(path) == [TraceNode("n", 20, 10, 2, "T4")]
