"""What exactly-once keeps on the broker: one state message per consumer or writer, in a queue of its own.

The broker holds the truth, because only it can change that truth and the messages in one transaction. :mod:`names` says
what the queues are called, :mod:`records` what is in the message, :mod:`xids` how branches are named, and :mod:`queue`
takes and swaps the message under a lock.
"""
