"""Conditions of errors, in one grammar: ``[AMQP_NAME] What is wrong. What to do.``

A table of conditions is a subclass of :class:`Condition`; docs/errors.md is generated from all of them. Each text has
at most 40 words; what needs more has it in ``detail``, which only the document shows.
"""

from __future__ import annotations

import re
from enum import Enum, unique
from typing import Final

PREFIX: Final = "AMQP_"
_HEAD: Final = re.compile(rf"\[({PREFIX}\w+)\] ")


class Condition(Enum):
    """One kind of error. A member is called with the fields of its sentences and returns the text of the error.

    Args:
        what: one sentence, with ``{fields}`` as for :meth:`str.format`.
        action: one sentence: how the reader ends the condition. It may have fields, too.
        detail: a paragraph for docs/errors.md: causes, background, longer remedies.
    """

    def __init__(self, what: str, action: str, detail: str = "") -> None:
        self.what = what
        self.action = action
        self.detail = detail

    @property
    def title(self) -> str:
        """Name with prefix, as texts show it."""
        return PREFIX + self.name

    def __call__(self, **fields: object) -> str:
        """Return the text for these fields.

        Raises:
            KeyError: a field is missing; a test compares every call in the code with its sentences.
        """
        return f"[{self.title}] {self.what.format(**fields)} {self.action.format(**fields)}"


def condition_of(error: BaseException | str) -> str | None:
    """Name of the condition at the beginning of an error's text, such as ``AMQP_QUEUE_NOT_FOUND``; ``None`` if none."""
    match = _HEAD.match(str(error))
    return match[1] if match else None


def reason(error: BaseException | str) -> str:
    """Return the first sentence of an error as a part of another one: without name of the condition, and action.

    An action that begins with a field is not recognised, and stays.
    """
    text, name = str(error), condition_of(error)
    if name is None:
        return text.removesuffix(".")
    text = text[len(name) + len("[] ") :]
    tables = Condition.__subclasses__()
    condition = next((each for table in tables for each in table if each.title == name), None)
    action = "" if condition is None else condition.action.partition("{")[0]
    return (text.rpartition(f" {action}")[0] if action and f" {action}" in text else text).removesuffix(".")


@unique
class CoreCondition(Condition):
    """Conditions of amqp_core."""

    # fmt: off
    # --- connection and login
    CONNECT_FAILED = (
        "Connecting to {peer} failed: {reason}.",
        "Check host, port, name servers and network, or raise the connect timeout.")
    OPEN_FILES_EXHAUSTED = (
        "Connecting to {peer} failed: {reason}.",
        "Raise the limit of open files (ulimit -n) for this process, or open fewer connections.",
        "A connection takes three file descriptors, and a query needs one for each queue of its source. The limit is "
        "for one process: several share the queues with option numReaders.")
    NO_HOST_USABLE = "No broker of the host list can be used: {reasons}.", "Start one of them, or correct the list."
    CONNECTION_LOST = (
        "The connection to {peer} ended: {reason}.",
        "Look into the log of the broker.",
        "A broker that expects TLS or another protocol often closes a connection without an answer.")
    CONNECTION_CLOSED = "The broker closed the connection: {code} {text}.", "Look into the log of the broker."
    CONNECTION_LIMIT_REACHED = (
        "The broker takes no more connections: {code} {text}.",
        "Close others, or raise the limit of the broker, the virtual host or the user.",
        "The connector tries again, since others may end: a connection that was lost counts until the broker notices "
        "it. A query needs one connection for each queue of its source, one that counts messages, another one at the "
        "start of AvailableNow, and one for each task of its sink that runs at a time.")
    CHANNEL_CLOSED = "The broker closed the channel{command}: {code} {description}.", "Look into the log of the broker."
    TLS_FAILED = "TLS with {peer} failed: {reason}.", "{action}."
    TLS_FILES_UNUSABLE = (
        "The TLS files {files} cannot be used: {reason}.",
        "Give PEM files, and a key without a passphrase.")
    LOGIN_REFUSED = (
        "The broker refused the login ({mechanism}): {reason}.",
        "Check user name and password, or with EXTERNAL the client certificate and the user that it names.")
    NO_SASL_MECHANISM = (
        "No SASL mechanism suits both sides: the broker offers {offered}; allowed are {allowed}{reasons}.",
        "Change the allowed mechanisms, the login or the URL.",
        "Without TLS an attacker could find the password, so PLAIN, AMQPLAIN and CRAM-MD5 must then be "
        "allowed explicitly.")
    BROKER_NOT_PROVED = (
        "The login with {mechanism} failed: {reason}.",
        "Check the address of the broker, since this may be another server.")
    PASSWORD_FILE_UNUSABLE = (
        "The password file {file!r} cannot be used: {reason}.",
        "Give a file with the password in UTF-8.")
    VIRTUAL_HOST_REFUSED = "The broker refused virtual host {vhost!r}: {code} {text}.", "Check the path of the URL."
    PROTOCOL_MISMATCH = (
        "{peer} does not speak {expected}; it {how} {offered}.",
        "Give the port for {expected}{alternative}.")
    PORT_SPEAKS_NO_AMQP = (
        "{peer} closes every connection when the protocol header of AMQP arrives: it speaks another protocol, or "
        "expects TLS.",
        "Give the port for AMQP, or amqps:// for TLS.",
        "The connector has connected twice. The second connection stayed open until the header was sent: a proxy whose "
        "broker is only starting would have closed it before.")

    # --- use of the client
    URL_INVALID = (
        "The URL is not valid: {reason}.",
        "Write amqp://host[:port][,host2[:port2]][/virtual-host], or amqps for TLS.")
    ARGUMENT_INVALID = "{name} is not valid: {reason}.", "Give an allowed value."
    CALL_NOT_ALLOWED = "The call is not allowed now: {reason}.", "Change the order of the calls."
    CLIENT_CLOSED = "The client is closed.", "Connect a new one."

    # --- protocol
    PROTOCOL_VIOLATED = "The peer violated the protocol: {reason}.", "Report it to the makers of the broker."
    DATA_MALFORMED = "The peer sent malformed data: {reason}.", "Find out which program sent it."
    LIMIT_EXCEEDED = "The peer exceeded a limit: {reason}.", "Find out which program sent it."

    # --- answers of the broker
    COMMAND_REFUSED = "The broker refused{command} with {code}: {description}.", "Look into the log of the broker."
    ACCESS_REFUSED = "The broker refused{command} with {code}: {description}.", "{remedy}."
    RESOURCE_NOT_FOUND = (
        "The broker refused{command} with {code}: {description}.",
        "Create the queue or exchange, or correct its name.",
        "A transaction branch is not found if it was resolved already, or its timer has ended it.")
    RESOURCE_LOCKED = (
        "The broker refused{command} with {code}: {description}.",
        "Close the session that holds the queue.")
    RESOURCE_LIMIT_REACHED = (
        "The broker refused{command} with {code}: {description}.",
        "Make room in the queue, or raise the limit.")
    DELIVERY_TIMED_OUT = (
        "The broker took unsettled messages back after its delivery timeout: {code} {description}.",
        "Raise the broker's consumer_timeout, or settle sooner.",
        "RabbitMQ closes the channel after 30 minutes by default. The argument x-consumer-timeout of a subscription, "
        "in milliseconds, overrides the setting consumer_timeout where the server knows it.")
    DECLARED_DIFFERENTLY = (
        "{kind} {name!r} exists with another {argument!r}: {current}, not {wanted}.",
        "Declare it with the existing value, or delete it.")
    CONSUMER_CANCELLED = (
        "The broker cancelled the consumer of queue {queue!r}: the queue was deleted, or its node has stopped.",
        "Create the queue again.")
    CHANNELS_EXHAUSTED = (
        "The broker allows {most} channel(s) on a connection, so channel {channel} cannot be opened.",
        "Raise the limit of channels of the broker (RabbitMQ and LavinMQ: channel_max), or of the user, to 3 or more.",
        "A client consumes on channel 1, publishes on channel 2, and asks on channel 3; it opens those that it uses.")
    NOT_SUPPORTED = "{what} is not possible with AMQP {protocol}: {reason}.", "{action}."
    DEADLINE_EXCEEDED = "{peer} did not answer in time: waited for {what}.", "See what the broker is doing."
    PUBLISHING_BLOCKED = (
        "{peer} has blocked its publishers for {seconds} s: {reason}.",
        "Give the broker memory or disk, or let consumers take messages.",
        "A broker whose memory or disk is low (connection.blocked of RabbitMQ) reads no more messages of publishers.")
    CONFIRMS_MISSING = (
        "{peer} has confirmed none of {count} message(s) for {seconds} s.",
        "See whether a queue has lost the majority of its nodes, or the broker is low on memory or disk.",
        "A quorum queue confirms nothing without a majority. A proxy may hide that the broker has blocked its "
        "publishers (connection.blocked).")
    PUBLISHER_STOPPED = (
        "{peer} has stopped this publisher for {seconds} s.",
        "Let consumers take messages from the full queue, or publish on a new connection.",
        "Broker-J stops a session whose message fills a queue with producer flow control (message.stop). It can forget "
        "to let the session go on if a consumer takes a message at that moment.")
    UNROUTABLE_DROPPED = (
        "{peer} confirms and drops what it cannot route: it has not returned a mandatory message to a queue that does "
        "not exist.",
        "Use another broker, or another protocol of this one.",
        "Lost messages would not be noticed. docs/delivery.md has what the sink expects of a broker.")
    OUTCOME_UNKNOWN = (
        "{count} published message(s) were not confirmed: {reason}.",
        "Publish them again, if duplicates are allowed.")
    MESSAGES_REJECTED = (
        "The broker rejected {count} published message(s) with code {code}: {text}.",
        "Bind a queue for them, or make room in the queue.")
    TRANSACTION_FAILED = "{operation} ended with {status} ({code}).", "Repeat the work of the transaction."
    TRANSACTION_COMMITTED = (
        "{operation} ended with {status} ({code}): the broker has committed the transaction by itself.",
        "Do not repeat its work.")
    TRANSACTION_MIXED = (
        "{operation} ended with {status} ({code}): the broker may have committed only a part of the transaction.",
        "Compare the messages in the queues with those of the transaction.")
    SESSION_DETACHED = "The broker detached session {name!r} with code {code}.", "Connect again."

    # --- messages and values
    MESSAGE_UNDECODABLE = (
        "The message with id {transfer_id} cannot be decoded: {reason}.",
        "Reject it, and correct its sender.")
    VALUE_NOT_ENCODABLE = "A value cannot be encoded: {reason}.", "Give one that its wire type can hold."
    # fmt: on
