"""Exactly-once state on the broker: one state message per consumer or writer, in a queue of its own.

The broker is authoritative because only it can change the state and the messages in one transaction. :mod:`names`
defines the queue names, :mod:`records` the contents of the message, :mod:`xids` the branch names, and :mod:`queue`
takes and swaps the message under a lock.
"""
