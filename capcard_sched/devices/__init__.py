"""Devices of dynamic resource allocation: pools, the ledger of allocations, and the allocator."""
