"""The in-memory backend: object store, virtual clock, fake kubelet, stand-in controllers and the simulation loop."""
