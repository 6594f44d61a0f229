"""How the scheduler takes part in the autoscaling of nodes."""

from __future__ import annotations

from typing import Final

import msgspec


class AutoscalingOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters of a core, as recorded."""

    #: A condition reason per cause, with `Unschedulable` for pods that lack only nodes; else the reasons of Volcano.
    precise_reasons: bool = True
    #: Jobs that only the size of the cluster holds back are admitted: an autoscaler adds nodes for their pods.
    expects_nodes: bool = False
    #: Class of the ProvisioningRequests of gangs that lack nodes; "" makes none.
    provisioning_class: str = ""


DEFAULT_AUTOSCALING: Final = AutoscalingOptions()
