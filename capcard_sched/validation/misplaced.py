"""Annotations that are misspelt, on a level where they are not read, or given as labels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from capcard_sched.model import annotations as keys
from capcard_sched.model.kinds import kind_of
from capcard_sched.validation.budget import checkpoint
from capcard_sched.validation.checks import Finding, Spelling, annotation_field
from capcard_sched.validation.inventory import as_map, texts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from capcard_sched.validation.inventory import Json
    from capcard_sched.validation.templates import Template

#: Annotations that name a queue; pods of a vcjob carry one of them as a label too, and operators label theirs.
_QUEUES: Final = (keys.POD_QUEUE_NAME, keys.QUEUE_NAME)
#: Annotations that are read as annotations only.
_NO_LABELS: Final = (
    keys.CARD_NAME,
    keys.CARD_NAME_ALIAS,
    keys.CARD_QUOTA,
    keys.CARD_REQUEST,
    keys.SERVICE_TYPE,
    keys.GROUP_MIN_MEMBER,
)


def check_annotation_places(obj: Json, templates: Sequence[Template], spelling: Spelling) -> Iterator[Finding]:
    """All findings of this module. `templates`: those of the object."""
    yield from _misspelt(obj, templates, spelling)
    yield from _misplaced(obj, templates)
    yield from _labels_for_annotations(obj, templates)


def _misspelt(obj: Json, templates: Sequence[Template], spelling: Spelling) -> Iterator[Finding]:
    """Unsupported annotations of an object and its pod templates that resemble a supported one."""
    for template in templates:
        if template.path:
            yield from spelling.check(template.annotations, at=template.metadata_path)
    yield from spelling.check(texts(obj, "metadata", "annotations"))


def _misplaced(obj: Json, of_object: Sequence[Template]) -> Iterator[Finding]:
    """Annotations on a level where they are not read, and the level where they are."""
    own, templates = texts(obj, "metadata", "annotations"), [one for one in of_object if one.path]
    # A vcjob has a field for its queue.
    queue = () if kind_of(obj) == "Job" else (keys.POD_QUEUE_NAME,)
    for key in (keys.CARD_NAME, keys.CARD_NAME_ALIAS, *queue):
        if key in own and templates and not all(key in template.annotations for template in templates):
            where = " and ".join(annotation_field(key, template.metadata_path) for template in templates)
            yield Finding(
                "warning", annotation_field(key), "has no effect here: it is read from the pod template", where
            )
    # The PodGroup of other workloads takes card.request from the pod template too.
    is_job = kind_of(obj) == "Job"
    key, where = (keys.CARD_REQUEST, "workload or its PodGroup") if is_job else (keys.GROUP_MIN_MEMBER, "workload")
    for template in templates:
        if key in template.annotations and key not in own:
            message = f"has no effect here: it is read from the {where}"
            yield Finding("warning", annotation_field(key, template.metadata_path), message, annotation_field(key))
    for noted, at in [(own, "metadata"), *((one.annotations, one.metadata_path) for one in templates)]:
        if keys.CARD_QUOTA in noted and kind_of(obj) != "Queue":
            yield Finding(
                "warning", annotation_field(keys.CARD_QUOTA, at), "has no effect here: it is read from Queues"
            )


def _labels_for_annotations(obj: Json, templates: Sequence[Template]) -> Iterator[Finding]:
    """Labels whose key is read as an annotation only, unless the annotation is there, too."""
    own = texts(obj, "metadata", "annotations")
    holders = [(one.body, one.annotations, one.metadata_path) for one in templates if one.path]
    for holder, noted, at in [(obj, own, "metadata"), *holders]:
        checkpoint()
        labels = texts(holder, "metadata", "labels")
        if not labels:
            continue
        for key in _NO_LABELS:
            if key in labels and key not in noted:
                yield _label(key, at, annotation_field(key, at))
        if not any(key in noted for key in (*_QUEUES, keys.GROUP_NAME, keys.GROUP_NAME_ALIAS)):
            field = _queue_field(obj, at, templates)
            for key in _QUEUES if field else ():
                if key in labels:
                    yield _label(key, at, field)


def _queue_field(obj: Json, at: str, templates: Sequence[Template]) -> str:
    """Where the queue is read instead; "" where none is."""
    kind = kind_of(obj)
    if kind in ("Job", "PodGroup"):
        return "" if as_map(obj.get("spec")).get("queue") else "spec.queue"
    is_pod = kind == "Pod" or at != "metadata"
    return annotation_field(keys.POD_QUEUE_NAME, at) if is_pod or templates else ""


def _label(key: str, at: str, where: str) -> Finding:
    what = "annotation" if "annotations[" in where else "field"
    return Finding("warning", f'{at}.labels["{key}"]', f"has no effect as a label: it is read from the {what}", where)
