"""Conditions of the embedded broker's own errors: what stops it, or keeps it from starting."""

from __future__ import annotations

from enum import unique

from amqp_core.error_conditions import Condition


@unique
class BrokerCondition(Condition):
    """Conditions of amqp_core.broker."""

    # fmt: off
    STORE_FOREIGN = "{path} is a database of another program.", "Give another file."
    STORE_OF_OTHER_VERSION = (
        "The store {path} is of version {version}, this program needs version {needed}.",
        "Use the program that wrote it, or give another file.")
    STORE_IN_USE = (
        "Cannot {operation} the store {path}: {reason}.",
        "Stop the process that uses it, or give another file.")
    STORE_FULL = (
        "Cannot {operation} the store {path}: {reason}.",
        "Free space on its disk and start the broker again: all that was confirmed is in the store.")
    STORE_DAMAGED = (
        "Cannot {operation} the store {path}: {reason}.",
        "Restore a copy of it, or give another file: it is damaged, or no store.")
    STORE_NOT_WRITABLE = (
        "Cannot {operation} the store {path}: {reason}.",
        "Give a file in a directory that exists and that this user may write.")
    STORE_UNUSABLE = (
        "Cannot {operation} the store {path}: {reason}.",
        "Check its disk and start the broker again: all that was confirmed is in the store.")
    # fmt: on
