"""The crash matrix (``python -m tests.matrix``) and the soak (``python -m tests.matrix.soak``).

Every process of a query is killed at every named point (:mod:`amqp_spark.crashpoints`), the query is started again
until it has drained, and what arrived is compared with what was published. :mod:`cases` says what is tried,
:mod:`subjects` makes and checks the data, :mod:`flows` does the killing, :mod:`runs` says what came of it, and
:mod:`results` keeps the record.
"""
