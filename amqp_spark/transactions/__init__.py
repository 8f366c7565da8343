"""``python -m amqp_spark.transactions``: inspect and repair the exactly-once state on a broker.

:mod:`look` reads the broker without acquiring messages, :mod:`branches` identifies each prepared branch,
:mod:`consumer` and :mod:`writer` collect the state of one identity, :mod:`shown` formats it, and :mod:`actions` makes
changes under the lock.
"""
