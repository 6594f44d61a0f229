"""Keys: spelled once, well-formed."""

from capcard_sched.model import annotations
from capcard_sched.model.selectors import label_key_problem


def _keys() -> dict[str, str]:
    return {name: value for name, value in vars(annotations).items() if name.isupper() and isinstance(value, str)}


def test_every_key_is_one_an_api_server_accepts() -> None:
    partial = {"VOLCANO_PREFIX", "PRODUCT_SUFFIX", "MEMORY_SUFFIX", "COUNT_SUFFIX"}
    problems = {name: label_key_problem(key) for name, key in _keys().items() if name not in partial}
    assert len(problems) > 50
    assert {name: problem for name, problem in problems.items() if problem} == {}


def test_no_key_has_two_names() -> None:
    keys = list(_keys().values())
    assert sorted(keys) == sorted(set(keys))


def test_the_card_keys_are_spelled_as_users_spell_them() -> None:
    assert [
        annotations.CARD_QUOTA,
        annotations.CARD_REQUEST,
        annotations.CARD_NAME,
        annotations.CARD_NAME_ALIAS,
        annotations.CARD_ASSIGNED,
        annotations.SERVICE_TYPE,
        annotations.GROUP_NAME,
        annotations.POD_QUEUE_NAME,
    ] == [
        "volcano.sh/card.quota",
        "volcano.sh/card.request",
        "volcano.sh/card.name",
        "volcano.sh/card.card",
        "volcano.sh/card.assigned",
        "volcano.sh/service.type",
        "scheduling.k8s.io/group-name",
        "scheduling.volcano.sh/queue-name",
    ]


def test_class_annotations_hold_differences_between_templates_and_nothing_of_one_pod() -> None:
    assert {annotations.CARD_NAME, annotations.CARD_NAME_ALIAS} < annotations.CLASS_ANNOTATIONS
    assert {annotations.NUMA_TOPOLOGY_POLICY, annotations.REVOCABLE_ZONE} < annotations.CLASS_ANNOTATIONS
    per_pod = {annotations.CARD_ASSIGNED, annotations.TASK_INDEX, annotations.GROUP_NAME, annotations.TASK_SPEC}
    assert per_pod.isdisjoint(annotations.CLASS_ANNOTATIONS)
