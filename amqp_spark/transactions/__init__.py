"""``amqp-spark transactions``: inspect and repair the exactly-once state on a broker.

:mod:`browse` reads the broker without acquiring messages, :mod:`branch_status`, :mod:`consumer_status` and
:mod:`writer_status` collect the state of branches and of one identity, :mod:`report` formats it, :mod:`actions` and
:mod:`set_aside` make changes under the lock.
"""
