"""DeviceClasses of dynamic resource allocation."""

from __future__ import annotations

from capcard_sched.model.objects import ApiStruct, ObjectMeta


class DeviceClassSpec(ApiStruct, frozen=True):
    #: The extended resource by which pods request devices of the class.
    extended_resource_name: str | None = None


class DeviceClassObject(ApiStruct, frozen=True, tag="DeviceClass", tag_field="kind"):
    """A class of devices of dynamic resource allocation; read for the reason of pods that request its resource."""

    metadata: ObjectMeta = ObjectMeta()
    spec: DeviceClassSpec = DeviceClassSpec()
