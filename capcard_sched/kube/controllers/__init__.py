"""The controllers of `capcard_sched.controllers` on an API server: a cache of trimmed objects, work queues, writes."""
