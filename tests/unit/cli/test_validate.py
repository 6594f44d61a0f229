"""`validate` as a user meets it: what is wrong, where, what is accepted, and the exit status."""

import io
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from capcard_sched.cli.main import run
from capcard_sched.cli.validate import validate

QUEUE = """
apiVersion: scheduling.volcano.sh/v1beta1
kind: Queue
metadata: {name: q, annotations: {volcano.sh/card.quota: '%s'}}
"""
CONF = 'actions: "enqueue, allocate, backfill"\ntiers: [{plugins: [{name: gang, enableJobReady: %s}]}]\n'


def write(tmp_path: Path, name: str, text: str) -> str:
    path = tmp_path / name
    path.write_text(text)
    return str(path)


def report(capsys: pytest.CaptureFixture[str], *files: str, **options: Any) -> tuple[int, Any]:
    status = validate(file=files, output="json", **options)
    return status, json.loads(capsys.readouterr().out)


def test_well_formed_input_is_praised(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, "queue.yaml", QUEUE % '{"A": 1}')
    assert validate(file=(path,)) == 0
    assert capsys.readouterr().out == "checked 1 object: no problems found\n"


def test_an_error_names_file_document_object_field_and_accepted_form(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, "queues.yaml", (QUEUE % "{}") + "---" + (QUEUE % '{"A": 2.5}').replace("name: q", "name: r"))
    status, found = report(capsys, path)
    assert status == 2
    assert found == {
        "objects": 2,
        "schedulerConfs": 0,
        "errors": 1,
        "findings": [
            {
                "severity": "error",
                "message": "<A>: 2.5 is not a non-negative integer; all card quotas of the queue are 0",
                "file": path,
                "document": 2,
                "object": "Queue r",
                "field": 'metadata.annotations["volcano.sh/card.quota"]',
                "accepted": 'a JSON object of card names and whole numbers, such as {"NVIDIA-H200": 8}',
            }
        ],
    }


def test_the_table_puts_errors_before_warnings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, "queues.yaml", (QUEUE % '{"a b": 1}') + "---" + (QUEUE % "x").replace("name: q", "name: r"))
    assert validate(file=(path,)) == 2
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"error    {path}, document 2: Queue r"
    assert lines[2].startswith("         accepted: a JSON object")
    assert lines[3] == f"warning  {path}, document 1: Queue q"
    assert lines[-1] == "checked 2 objects: 1 error, 1 warning"


def test_warnings_alone_are_no_failure(tmp_path: Path) -> None:
    assert validate(file=(write(tmp_path, "queue.yaml", QUEUE % '{"a b": 1}'),)) == 0


@pytest.mark.parametrize(("switch", "expected"), [("true", 0), ("5", 2)])
def test_a_scheduler_conf_is_recognised_by_its_content(
    switch: str, expected: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, "anything.yaml", CONF % switch)
    status, found = report(capsys, path)
    assert (status, found["schedulerConfs"], found["objects"]) == (expected, 1, 0)
    assert [row["field"] for row in found["findings"]] == (
        [] if expected == 0 else ["tiers[0].plugins[0].enableJobReady (line 2)"]
    )


def test_a_scheduler_conf_may_be_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, found = report(capsys, scheduler_conf=Path(write(tmp_path, "conf", "action: x")))
    assert status == 2
    assert 'did you mean "actions"?' in found["findings"][0]["message"]


def test_a_scheduler_conf_inside_a_config_map_is_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = json.dumps(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "cm"},
            "data": {"volcano-scheduler.conf": CONF % "x", "other": "text"},
        }
    )
    status, found = report(capsys, write(tmp_path, "cm.json", text))
    assert status == 2
    (row,) = found["findings"]
    assert row["object"] == "ConfigMap cm"
    assert row["field"] == 'data["volcano-scheduler.conf"].tiers[0].plugins[0].enableJobReady (line 2)'


def test_wrong_structure_is_reported_once_with_its_location(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, "queue.yaml", QUEUE % "{}" + 'spec: {weight: "x"}\n')
    status, found = report(capsys, path)
    assert status == 2
    (row,) = found["findings"]
    assert (row["object"], row["field"], row["document"]) == ("Queue q", "spec.weight", 1)
    assert row["message"] == 'expected an integer, got the string "x"'


def test_a_misspelled_annotation_is_reported_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, "queue.yaml", (QUEUE % '{"A": 1}').replace("card.quota", "card.qota"))
    _, found = report(capsys, path)
    assert [(row["field"], row["severity"]) for row in found["findings"]] == [
        ('metadata.annotations["volcano.sh/card.qota"]', "warning")
    ]


def test_objects_of_lists_and_timelines_are_checked_in_their_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    obj = {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "Queue",
        "metadata": {"name": "q", "annotations": {"volcano.sh/card.quota": "x"}},
    }
    later = {**obj, "metadata": {**obj["metadata"], "name": "r"}}  # type: ignore[dict-item]
    scenario = {
        "apiVersion": "simulation.capcard-sched.io/v1alpha1",
        "kind": "Scenario",
        "spec": {"operations": [{"at": "1s", "create": later}]},
    }
    listed = json.dumps({"apiVersion": "v1", "kind": "List", "items": [obj, scenario]})
    status, found = report(capsys, write(tmp_path, "list.json", listed))
    assert status == 2
    assert [row["field"].partition("metadata")[0] for row in found["findings"]] == [
        "items[0].",
        "items[1].spec.operations[0].create.",
    ]


def test_files_are_judged_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, "1.yaml", QUEUE % '{"A": 1}')
    write(
        tmp_path,
        "2.yaml",
        "apiVersion: simulation.capcard-sched.io/v1alpha1\nkind: Scenario\nspec:\n  operations:\n"
        "  - {at: 1s, delete: {apiVersion: scheduling.volcano.sh/v1beta1, kind: Queue, metadata: {name: q}}}\n",
    )
    assert report(capsys, str(tmp_path)) == (0, {"objects": 1, "schedulerConfs": 0, "errors": 0, "findings": []})


def test_a_minimum_above_the_quota_of_its_queue_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, "1.yaml", QUEUE % '{"A": 8}')
    task = """
    - replicas: 2
      template:
        metadata: {annotations: {volcano.sh/card.name: A}}
        spec: {containers: [{name: c, image: x, resources: {limits: {nvidia.com/gpu: 8}}}]}
"""
    job = "apiVersion: batch.volcano.sh/v1alpha1\nkind: Job\nmetadata: {name: %s}\nspec:\n  queue: q\n"
    write(tmp_path, "2.yaml", job % "dead" + f"  tasks:{task}")
    write(tmp_path, "3.yaml", job % "elastic" + f"  minAvailable: 1\n  tasks:{task}")
    declares = "declares, annotations: {volcano.sh/card.request: '{\"A\": 16}'}"
    write(tmp_path, "4.yaml", job % declares + f"  minAvailable: 1\n  tasks:{task}")
    status, found = report(capsys, str(tmp_path))
    assert status == 2
    errors = [(row["object"], row["message"]) for row in found["findings"] if row["severity"] == "error"]
    message = "can never start: needs 16, quota is 8 (A of queue q)"
    assert errors == [("Job dead", message), ("Job declares", message)]


@pytest.mark.parametrize("plugins, missing", [("", True), ("{name: gang}", True), ("{name: deviceshare}", False)])
def test_pods_with_shares_of_cards_need_the_plugin_deviceshare(
    plugins: str, missing: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    container = "{name: c, image: x, resources: {limits: {volcano.sh/vgpu-number: 1}}}"
    pod = f"spec:\n  schedulerName: volcano\n  containers: [{container}]"
    write(tmp_path, "1.yaml", f"apiVersion: v1\nkind: Pod\nmetadata: {{name: p}}\n{pod}\n")
    conf = write(tmp_path, "conf", f'actions: "allocate"\ntiers: [{{plugins: [{plugins}]}}]') if plugins else None
    _, found = report(capsys, str(tmp_path / "1.yaml"), **({"scheduler_conf": Path(conf)} if conf else {}))
    messages = [row["message"] for row in found["findings"] if "has no plugin deviceshare" in row["message"]]
    text = "the pods request volcano.sh/vgpu-number, and the scheduler-conf has no plugin deviceshare: they get no card"
    assert messages == ([text] if missing else [])


def test_a_card_that_an_ancestor_does_not_list_is_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, "1.yaml", QUEUE % '{"A": 8, "B": 8, "C": 0}' + "\nspec: {parent: llm}\n")
    write(tmp_path, "2.yaml", (QUEUE % '{"A": 4}').replace("name: q", "name: llm"))
    _, found = report(capsys, str(tmp_path))
    warnings = [(row["object"], row["message"]) for row in found["findings"] if row["severity"] == "warning"]
    assert warnings == [("Queue q", "quota of B has no effect: the quota of queue llm above it is 0")]


def test_a_minimum_above_the_quota_of_an_ancestor_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, "1.yaml", QUEUE % '{"A": 8}' + "\nspec: {parent: mid}\n")
    queue = "apiVersion: scheduling.volcano.sh/v1beta1\nkind: Queue\nmetadata: {name: %s}\nspec: {parent: %s}\n"
    write(tmp_path, "2.yaml", queue % ("mid", "llm"))
    write(tmp_path, "3.yaml", (QUEUE % '{"A": 4}').replace("name: q", "name: llm"))
    group = "apiVersion: scheduling.volcano.sh/v1beta1\nkind: PodGroup\nmetadata:\n  name: %s\n"
    group += "  annotations: {volcano.sh/card.request: '{\"A\": %d}'}\nspec: {queue: q, minMember: 1}\n"
    write(tmp_path, "4.yaml", group % ("dead", 5))
    write(tmp_path, "5.yaml", group % ("fits", 4))
    status, found = report(capsys, str(tmp_path))
    assert status == 2
    errors = [(row["object"], row["message"]) for row in found["findings"] if row["severity"] == "error"]
    assert not [row for row in found["findings"] if "no effect" in row["message"]]
    assert errors == [("PodGroup dead", "can never start: needs 5, quota is 4 (A of queue llm, ancestor of queue q)")]


@pytest.mark.parametrize(
    ("plugins", "expected"),
    [
        ("{name: capacity-card}", ["Job charged"]),
        ("{name: capacity-card, arguments: {cardUnlimitedCpuMemory: true}}", []),
        ("{name: capacity}", ["Deployment devices", "Job charged"]),
        (
            "{name: capacity, enableHierarchy: true}",
            ["Deployment devices", "Job charged", "PodGroup devices-of-parent"],
        ),
        ("{name: proportion}", ["Deployment devices", "Job charged"]),
        ("{name: gang}", []),
    ],
)
def test_a_minimum_above_a_capability_is_an_error_under_the_plugins_that_enforce_it(
    plugins: str, expected: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    queue = "---\napiVersion: scheduling.volcano.sh/v1beta1\nkind: Queue\nmetadata: {name: %s, annotations: {%s}}\n"
    quota = "volcano.sh/card.quota: '{\"A\": 99}'"
    pod = "spec: {schedulerName: capcard-sched, containers: [{name: c, image: x, resources: {limits: {%s}}}]}"
    write(
        tmp_path,
        "1.yaml",
        queue % ("q", quota)
        + "spec: {capability: {cpu: 8, nvidia.com/gpu: 4}}\n"
        + queue % ("parent", quota)
        + "spec: {capability: {nvidia.com/gpu: 3}}\n"
        + queue % ("child", quota)
        + "spec: {parent: parent}\n",
    )
    write(
        tmp_path,
        "2.yaml",
        "apiVersion: batch.volcano.sh/v1alpha1\nkind: Job\nmetadata: {name: charged}\nspec:\n  queue: q\n"
        "  tasks:\n  - replicas: 3\n    template:\n"
        "      metadata: {annotations: {volcano.sh/card.name: A}}\n      " + pod % "cpu: 4, nvidia.com/gpu: 1",
    )
    write(
        tmp_path,
        "3.yaml",
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: devices}\nspec:\n  selector: {matchLabels: {a: b}}\n"
        "  template:\n    metadata:\n      labels: {a: b}\n"
        "      annotations: {scheduling.volcano.sh/queue-name: q, volcano.sh/card.name: A}\n    "
        + pod
        % "nvidia.com/gpu: 5",
    )
    group = "apiVersion: scheduling.volcano.sh/v1beta1\nkind: PodGroup\nmetadata: {name: devices-of-parent}\n"
    group += "spec: {queue: child, minMember: 1, minResources: {nvidia.com/gpu: 4}}\n"
    write(tmp_path, "4.yaml", group)
    conf = write(tmp_path, "conf", f'actions: "enqueue, allocate"\ntiers: [{{plugins: [{plugins}]}}]')

    files = [str(tmp_path / f"{number}.yaml") for number in range(1, 5)]
    status, found = report(capsys, *files, scheduler_conf=Path(conf))
    errors = [row["object"] for row in found["findings"] if row["message"].startswith("can never start")]
    assert sorted(errors) == expected
    assert status == (2 if expected else 0)


def test_an_object_with_mistakes_hides_no_job_that_can_never_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, "1.yaml", QUEUE % '{"A": 4}' + "---\napiVersion: v1\nkind: Node\nmetadata: {name: N_1}\n")
    group = "apiVersion: scheduling.volcano.sh/v1beta1\nkind: PodGroup\nmetadata:\n  name: dead\n"
    group += "  annotations: {volcano.sh/card.request: '{\"A\": 5}'}\nspec: {queue: q, minMember: 1}\n"
    write(tmp_path, "2.yaml", group)
    status, found = report(capsys, str(tmp_path))
    assert status == 2
    assert {"Node N_1", "PodGroup dead"} <= {row["object"] for row in found["findings"] if row["severity"] == "error"}


def test_standard_input_is_read(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    class Stream:
        buffer = io.BytesIO((QUEUE % "x").encode())

    monkeypatch.setattr("sys.stdin", Stream)
    status, found = report(capsys, "-")
    assert status == 2
    assert [row["file"] for row in found["findings"]] == ["-"]


def test_a_pipe_is_read_once_and_checked_as_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    group = "apiVersion: scheduling.volcano.sh/v1beta1\nkind: PodGroup\nmetadata: {name: dead}\n"
    text = (QUEUE % '{"A": 1}') + "---\n" + group + "spec: {queue: q, minMember: 1, minResources: {cpu: 1}}\n"
    text = text.replace("{name: dead}", "{name: dead, annotations: {volcano.sh/card.request: '{\"A\": 2}'}}")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=(text,))
    writer.start()
    try:
        status, found = report(capsys, str(pipe))
    finally:
        writer.join(10)
    assert status == 2
    assert [row["message"] for row in found["findings"]] == ["can never start: needs 2, quota is 1 (A of queue q)"]


@pytest.mark.parametrize("content", [b"a: [", b"\xff\xfe", None])
def test_unreadable_input_is_an_error(
    content: bytes | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "file.yaml"
    if content is not None:
        path.write_bytes(content)
    status, found = report(capsys, str(path))
    assert status == 2
    assert found["findings"][0]["file"] == str(path)
    assert str(path) not in found["findings"][0]["message"]


def test_nothing_to_check_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert validate() == 2
    assert "pass -f FILE or --scheduler-conf FILE" in capsys.readouterr().err


def test_a_plugins_dir_that_cannot_be_used_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert validate(file=("x",), plugins_dir=tmp_path / "no") == 2
    assert "not a folder" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["demo", "tidal"])
def test_the_shipped_examples_have_no_errors_and_no_warnings(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    from capcard_sched import config

    folder = Path(config.__file__).parent / "examples" / name
    conf = folder / "conf" / "scheduler.yaml"
    status, found = report(capsys, str(folder), scheduler_conf=conf if conf.exists() else None)
    assert status == 0
    assert found["objects"] > 10
    assert found["schedulerConfs"] == conf.exists()
    assert [row for row in found["findings"] if row["severity"] != "note"] == []


def test_quotas_of_a_tide_add_up_to_more_than_the_cards_and_that_is_no_more_than_a_note(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from capcard_sched import config

    _, found = report(capsys, str(Path(config.__file__).parent / "examples" / "tidal"))
    (row,) = found["findings"]
    assert (row["severity"], row["message"]) == (
        "note",
        "quotas of all queues add up to 28 x NVIDIA-H200, the nodes have 16",
    )


LIMITS = """
apiVersion: scheduling.volcano.sh/v1beta1
kind: Queue
metadata: {name: team, annotations: {volcano.sh/card.quota: '{"A100": 4}'}}
spec:
  capability: {cpu: 4, example.com/shares: 8, nvidia.com/gpu: 4}
  deserved: {nvidia.com/gpu: 2}
  guarantee: {resource: {nvidia.com/gpu: 1}}
"""
DEVICE_FIELDS = [
    'spec.capability["example.com/shares"]',
    'spec.capability["nvidia.com/gpu"]',
    'spec.deserved["nvidia.com/gpu"]',
    'spec.guarantee.resource["nvidia.com/gpu"]',
]
CARD_FIELD = 'metadata.annotations["volcano.sh/card.quota"]'


@pytest.mark.parametrize(
    "plugins, fields",
    [
        pytest.param("", DEVICE_FIELDS, id="built-in scheduler-conf"),
        pytest.param("capacity-card", DEVICE_FIELDS, id="capacity-card"),
        pytest.param("capacity", [CARD_FIELD], id="capacity"),
        pytest.param("gang", ['spec.capability["cpu"]', *DEVICE_FIELDS, CARD_FIELD], id="no quota plugin"),
        pytest.param("proportion", ['spec.deserved["nvidia.com/gpu"]', CARD_FIELD], id="proportion"),
    ],
)
def test_limits_that_no_plugin_enforces_are_warnings(
    plugins: str, fields: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "queue.yaml").write_text(LIMITS)
    words = ["validate", "-f", str(tmp_path / "queue.yaml"), "-o", "json"]
    if plugins:
        conf = tmp_path / "scheduler.conf"
        conf.write_text(f"actions: enqueue\ntiers: [{{plugins: [{{name: {plugins}}}]}}]\n")
        words += ["--scheduler-conf", str(conf)]
    assert run(words) == 0
    findings = json.loads(capsys.readouterr().out)["findings"]
    unenforced = [row for row in findings if "not enforced" in row["message"]]
    assert [row["field"] for row in unenforced] == fields
    assert {row["severity"] for row in unenforced} == {"warning"}


@pytest.mark.parametrize(
    "text, message",
    [
        ("nvidia: {gpuMemoryFactor: 10}", None),
        ("nvidia: {gpuMemoryFactor: 0}", "nvidia.gpuMemoryFactor: expected a positive integer, got 0"),
        ("nvidia: [", "not valid YAML"),
    ],
)
def test_the_config_map_of_a_device_plugin_is_checked(
    text: str, message: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config_map = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "volcano-vgpu-device-config"},
        "data": {"device-config.yaml": text},
    }
    path = tmp_path / "map.json"
    path.write_text(json.dumps(config_map))

    status, found = report(capsys, str(path))

    assert status == (0 if message is None else 2)
    assert [row["field"] for row in found["findings"]] == ([] if message is None else ['data["device-config.yaml"]'])
    assert message is None or message in found["findings"][0]["message"]
