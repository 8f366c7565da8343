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
    USERS_UNREADABLE = (
        "Cannot read the file of users {path}: {reason}.",
        "Give one that this user may read, or make it with the command user add of the broker.")
    USERS_DAMAGED = (
        "The file of users {path} is damaged: {reason}.",
        "Restore a copy of it, or make another with python -m amqp_core.broker user add.")
    USERS_NOT_WRITABLE = (
        "Cannot write the file of users {path}: {reason}.",
        "Give a file in a directory that exists and that this user may write.")
    CERTIFICATES_UNUSABLE = (
        "The TLS files {files} cannot be used: {reason}.",
        "Give PEM files: a certificate, its key without a passphrase, and for --tls-ca the authorities of clients.")
    # fmt: on
