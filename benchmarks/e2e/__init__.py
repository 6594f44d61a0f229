"""The daemon measured on a real API server: `python -m benchmarks.e2e`, docs/performance.md."""
