"""capacity-card: a quota per queue and card model, and pods that accept several card models."""

from capcard_sched.plugins.capacity_card.plugin import CapacityCard

__all__ = ["CapacityCard"]
