"""Controllers of PodGroups, Queues, Jobs and CronJobs: reconcile functions that read a view and return writes.

No module here does I/O, reads a clock or draws a random number: the simulator and the `controllers` process run the
same code.
"""
