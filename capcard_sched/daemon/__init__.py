"""The scheduler as a service: wiring, clocks, logs, metrics, signals."""
