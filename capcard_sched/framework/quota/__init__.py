"""Accounting of queues, shared by the plugins that enforce quotas."""
