"""The broker's model: virtual hosts, exchanges, queues, messages and consumers.

No I/O, no wire formats, no clock: calls come in, deliveries go out through ``Receiver``, and the time is an argument
(``now``, seconds). One thread at a time may use a virtual host and what belongs to it.
"""
