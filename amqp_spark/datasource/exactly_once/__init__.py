"""Exactly-once: the spool and the state on the broker own a batch before its end is returned to Spark.

:mod:`policy` plans and serves batches, :mod:`owned_batches` are in memory and in the spool, :mod:`transactional_state`
changes the state in the transactions that accept, :mod:`recovery` checks state, spool and checkpoint at a start, and
:mod:`lookahead` and :mod:`spool_cleaner` work in the background.
"""
