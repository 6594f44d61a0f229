"""deviceshare: GPUs shared between pods.

A node's cards come from `registration`, a pod's wishes from `vgpu_request`; `shared_card`, `device_choice` and
`card_ledger` find and book shares, `device_states` and `device_rows` do so for all nodes at once.
"""

from capcard_sched.plugins.deviceshare.plugin import DeviceShare, DeviceShareArguments

__all__ = ["DeviceShare", "DeviceShareArguments"]
