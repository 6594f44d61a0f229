"""Suggested fixes: the smallest changes after which a job starts, each proven by a trial on a copy of the state.

A kind of change is one class in `kinds`: when it is proposed, which objects it edits, its words and its cost. The edits
become commands (`commands`), which are parsed again and executed on a copy with the rules of admission and of the
controllers (`execution`), and sessions run on the copy (`trial`). `search` orders candidates and proves minimality.
"""
