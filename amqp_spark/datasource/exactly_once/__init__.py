"""Exactly-once: the spool and the state on the broker own a batch before its end is returned to Spark.

:mod:`policy` plans and serves batches, :mod:`batch_parts` writes them to the spool, :mod:`transactional_state` changes
the state in the transactions that accept, :mod:`recovery` checks the state and the spool at a start, :mod:`entries`
holds the batches, and :mod:`lookahead` and :mod:`spool_cleaner` work in the background.
"""
