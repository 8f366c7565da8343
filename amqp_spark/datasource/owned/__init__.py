"""Exactly-once: batches that are owned, in the spool and in the state on the broker, before Spark hears of them.

:mod:`run` is what Spark calls, :mod:`receiver` plans and serves, :mod:`slices` carries a batch into the spool,
:mod:`ownership` changes the state in the transactions that accept, :mod:`recovery` says what a start finds,
:mod:`entries` are the batches, and :mod:`ahead` and :mod:`disposal` work while Spark does.
"""
