"""fragmentation: places pods where the devices that remain free stay usable.

`request_mix` lists what pods request, `node_value` rates the free devices of nodes by it, `plugin` scores placements.
"""

from capcard_sched.plugins.fragmentation.plugin import Fragmentation, FragmentationArguments

__all__ = ["Fragmentation", "FragmentationArguments"]
