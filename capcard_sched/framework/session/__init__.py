"""A session over a snapshot of the cluster: statement, orderings, report, and what is carried over to the next one."""
