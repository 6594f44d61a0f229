"""Built-in actions: one algorithm per file, found through the `capcard_sched.actions` entry points."""
