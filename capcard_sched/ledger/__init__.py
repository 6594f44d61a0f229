"""The ledger: history of jobs, of the cards they held, of capacity and quotas, in SQLite or PostgreSQL.

`usage_ledger.open_ledger` opens a database. `UsageLedger.start` begins a source (a simulation, a recording, a live
cluster), `feed` records its deltas; `usage` and `history` read. Moments are Unix milliseconds, amounts thousandths of a
card; a product of both is a millionth of a card-second. All are exact integers.
"""
