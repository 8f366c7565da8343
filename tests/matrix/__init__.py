"""The crash matrix (``python -m tests.matrix``) and the soak (``python -m tests.matrix.soak``).

Every process of a query is killed at every named point (:mod:`amqp_spark.crashpoints`), the query is started again
until it has drained, and what arrived is compared with what was published.

:mod:`cases` says what is tried. :mod:`place` is where: a broker, a driver that can be killed, a proxy. :mod:`subjects`
makes the data of a case, and sees what has arrived. :mod:`flows` does the killing. :mod:`leftovers` sees what
exactly-once has left behind, :mod:`judging` whether a promise was broken. :mod:`runs` says what came of a group of
cases, and :mod:`results` keeps the record.

:mod:`soak` kills at random for minutes, one query that never ends; :mod:`ledger` holds what it has published against
what has arrived.
"""
