"""``python -m amqp_spark.transactions``: look at what exactly-once keeps on a broker, and mend it.

:mod:`look` reads the broker without taking anything, :mod:`branches` says what each prepared branch is,
:mod:`consumer` and :mod:`writer` put together what one identity has, :mod:`shown` makes text of it, and :mod:`actions`
changes something, under the lock.
"""
