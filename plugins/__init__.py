"""Built-in plugins: one file or package per policy, found through the `capcard_sched.plugins` entry points."""
