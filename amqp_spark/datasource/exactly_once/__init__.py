"""Exactly-once: the spool and the state on the broker own a batch before Spark learns its end.

:mod:`stream` maps the calls of Spark, :mod:`receiver` plans and serves batches, :mod:`batch_parts` writes them to the
spool, :mod:`transactional_state` changes the state in the transactions that accept, :mod:`recovery` handles what a
start finds, :mod:`entries` holds the batches, and :mod:`lookahead` and :mod:`spool_cleaner` work in the background.
"""
