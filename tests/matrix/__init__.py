"""The crash matrix (``python -m tests.matrix``) and the soak (``python -m tests.matrix.soak``).

Every process of a query is killed at every named point (:mod:`amqp_spark.crashpoints`), the query is restarted until it
has drained, and the received messages are compared with the published ones.

:mod:`cases` defines the cases. :mod:`place` provides the environment: a broker, a driver that can be killed, a proxy.
:mod:`subjects` makes the data of a case and collects the received messages. :mod:`flows` kills the processes.
:mod:`leftovers` finds state that exactly-once has left behind, :mod:`judging` broken guarantees. :mod:`runs` returns
the results of a group of cases, and :mod:`results` records them.

:mod:`soak` kills at random for minutes, one query that never ends; :mod:`ledger` compares published and received
messages.
"""
