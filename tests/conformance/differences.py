"""Where a broker does something else than the specification says, and why. The suite checks that it does just that.

The reference is the specification of the protocol; for 0-9-1 also what RabbitMQ documents, where that adds to it or
decides what it leaves open: other methods and arguments, and reply codes. Broker-J is 9.2.1, RabbitMQ 4.3. The embedded
broker has rows only where a client of the Qpid brokers would break on the specification.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Difference:
    """What brokers do instead in some cases, for one reason.

    Args:
        targets: broker and protocol, as ``broker-j-0-10``.
        reason: why, or how it is known.
        cases: names of the cases in the suite, and the outcome in the form in which the case has it.
        since: the first release that does it, if older ones do what is specified.
    """

    targets: tuple[str, ...]
    reason: str
    cases: Mapping[str, object]
    since: tuple[int, ...] = ()


EMBEDDED_0_10: Final = ("embedded-0-10",)
RABBITMQ: Final = ("rabbitmq-0-9-1",)
BROKER_J: Final = ("broker-j-0-10", "broker-j-0-9-1")
BROKER_J_0_10: Final = ("broker-j-0-10",)
BROKER_J_0_9_1: Final = ("broker-j-0-9-1",)

DIFFERENCES: Final = (
    Difference(
        EMBEDDED_0_10,
        "unknown arguments are ignored, as on qpidd: clients of the Qpid brokers send some that mean nothing here",
        {
            "0-10: declare: an exchange with an unknown argument": "ok",
            "0-10: declare: a queue with an unknown argument": "ok",
        },
    ),
    Difference(
        ("embedded-0-10", "broker-j-0-10"),
        "the default exchange can be declared as what it is: the JMS client of Qpid does so",
        {"0-10: exchange-name-required": "ok"},
    ),
    Difference(
        ("embedded-0-10", "broker-j-0-10"),
        "an alternate exchange gets all that cannot be routed, as on qpidd: clients rely on it, whatever they ask for",
        {
            "alternate exchange: accept-mode none, discard-unroutable": "alternate",
            "alternate exchange: accept-mode explicit": "alternate",
            "alternate exchange: accept-mode explicit, discard-unroutable": "alternate",
        },
    ),
    # ------------------------------------------------------------------------------------------------- RabbitMQ
    Difference(
        RABBITMQ,
        "unbinding has no errors: what is not there is unbound",
        {"0-9-1: unbind: no queue": "ok", "0-9-1: unbind: no exchange": "ok"},
    ),
    Difference(
        RABBITMQ,
        "release 4 checks the type as a precondition, not as a command",
        {"0-9-1: declare: an unknown type": ("channel", 406)},
    ),
    Difference(
        RABBITMQ,
        "a key has at most two #, against patterns that cost much",
        {"0-9-1: bind: three hashes": ("channel", 406)},
        since=(4, 3),
    ),
    Difference(
        RABBITMQ,
        "channel.flow from a client is refused: prefetch is meant to be used",
        {"channel.flow: off": ("connection", 540)},
    ),
    Difference(
        RABBITMQ,
        "takes a prefetch of the channel for one of each consumer (global_qos was deprecated)",
        {"qos: global": 10},
        since=(4, 3),
    ),
    Difference(
        RABBITMQ,
        "channel-max limits how many channels are open, whatever their numbers",
        {"0-9-1: channel.open: above channel-max": "ok"},
    ),
    Difference(
        RABBITMQ,
        "basic.get flags a dead letter that waited in an idle queue, although nobody had it; basic.deliver does not",
        {"dead letter: flagged as redelivered": [True, True]},
    ),
    # ------------------------------------------------------------------------------- Broker-J, both protocols
    Difference(
        BROKER_J,
        "its matcher has one empty word in an empty key, and none behind a last dot",
        {"topic: key ''": ["", "#", "#.#", "*"], "topic: key '.'": ["#", "#.#"]},
    ),
    Difference(
        BROKER_J,
        "any of no fields counts as met, with fields that begin with x- left out before",
        {
            "headers: any, no field": True,
            "headers: any, no field, message with headers": True,
            "headers: any, a name that begins with x-": True,
        },
    ),
    Difference(
        BROKER_J,
        "all-with-x and any-with-x are values of RabbitMQ: fields that begin with x- are left out with them, too",
        {"headers: all-with-x, one of two is there": True},
    ),
    Difference(
        BROKER_J,
        "an empty text in a binding of a headers exchange is met by any value",
        {"headers: all, an empty text": True},
    ),
    Difference(BROKER_J, "queue.purge takes what consumers hold, too", {"purge: what is held": []}),
    # ---------------------------------------------------------------------------------------- Broker-J on 0-10
    Difference(
        BROKER_J_0_10,
        "a message without application-headers matches no binding of a headers exchange that has to match all",
        {"headers: all, no field": False},
    ),
    Difference(
        BROKER_J_0_10,
        "x-match is required; it ends the session with an internal error",
        {"headers: no x-match": ("session", 541)},
    ),
    Difference(
        BROKER_J_0_10,
        "a subscription that lacks bytes for the next message waits until that is gone: more credit does not wake it",
        {"credit: bytes that come later": 0, "window: bytes that come back": 2},
    ),
    Difference(
        BROKER_J_0_10,
        "never sends message.accept; what is not rejected is taken when it is completed",
        {"transfer: accept-mode explicit": []},
    ),
    Difference(BROKER_J_0_10, "does not look at immediate", {"transfer: immediate": ({}, [b"0"])}),
    Difference(
        BROKER_J_0_10,
        "one code for all that it rejects: unroutable",
        {"a full queue: code of message.reject": 1},
    ),
    Difference(
        BROKER_J_0_10,
        "rollback of a local transaction requeues at once what was accepted in it",
        {"rollback: what was accepted": [b"0"]},
    ),
    Difference(
        BROKER_J_0_10,
        "does not check that tx was selected, or is for the first time; each select makes a new transaction",
        {
            "commit without select": "ok",
            "select twice": "ok",
            "0-10: tx.rollback select-required": "ok",
            "dtx tx.select: dtx is selected": "ok",
            "subscribe with accept-mode none in a transaction": "ok",
            "select with a subscription of accept-mode none": "ok",
        },
    ),
    Difference(
        BROKER_J_0_10,
        "an unknown exchange is taken for the default one, so that the message is unroutable",
        {
            "0-10: nonexistent-exchange": "ok",
            "an unknown exchange in a transaction": "ok",
            "an unknown exchange in a transaction: the rest": [b"undone"],
        },
    ),
    Difference(
        BROKER_J_0_10,
        "dtx.end with fail rolls nothing back, and what a dead session left open can be prepared",
        {
            "dtx: end with fail, then prepare": (0, 0),
            "dtx: prepare what a dead session left open": 0,
        },
    ),
    Difference(
        BROKER_J_0_10,
        "wrong uses of dtx.start and dtx.end are invalid commands there; a second branch replaces the first",
        {
            "dtx start: not selected": ("session", 503),
            "dtx start: join and resume": ("session", 503),
            "dtx end: suspend and fail": ("session", 503),
            "dtx start: in another branch": "ok",
        },
    ),
    Difference(
        BROKER_J_0_10,
        "unknown arguments are illegal, not unimplemented",
        {
            "0-10: declare: an exchange with an unknown argument": ("session", 531),
            "0-10: declare: a queue with an unknown argument": ("session", 531),
        },
    ),
    Difference(
        BROKER_J_0_10,
        "does not check names as the specification has it",
        {
            "0-10: bind empty-queue": ("session", 404),
            "0-10: reserved-prefix": "ok",
            "0-10: declare: a queue without a name": "ok",
            "0-10: queue.purge empty-name": ("session", 531),
            "0-10: subscribe: without a queue": ("session", 531),
        },
    ),
    Difference(
        BROKER_J_0_10,
        "of a queue that exists the alternate exchange does not count",
        {"0-10: queue.declare pre-existing-exchange": "ok"},
    ),
    Difference(
        BROKER_J_0_10,
        "an exclusive queue is closed to declare, delete and subscribe alone",
        {
            "0-10: declare passive: another's exclusive queue": "ok",
            "0-10: purge: another's exclusive queue": "ok",
            "0-10: bind: another's exclusive queue": "ok",
        },
    ),
    Difference(
        BROKER_J_0_10,
        "a shared queue can be declared as exclusive although it has consumers",
        {"0-10: declare: exclusively what others consume": "ok"},
    ),
    Difference(
        BROKER_J_0_10,
        "unbinding what is not bound is no error",
        {"0-10: unbind non-existent-binding-key": "ok"},
    ),
    Difference(
        BROKER_J_0_10,
        "user-id is not compared with the login unless qpid.broker_msg_auth is set",
        {"0-10: transfer: user-id is another": "ok"},
    ),
    Difference(
        BROKER_J_0_10,
        "what its decoder does not know ends the connection without a word",
        {"0-10: a command of class file": ("connection", 0), "0-10: an unknown command": ("connection", 0)},
    ),
    Difference(
        BROKER_J_0_10,
        "an exception names the command by its id alone",
        {"execution.exception: class and command": (None, None)},
    ),
    Difference(
        BROKER_J_0_10,
        "says nothing to the subscribers of a queue that is deleted",
        {"subscribe: its queue is deleted": "ok"},
    ),
    # --------------------------------------------------------------------------------------- Broker-J on 0-9-1
    Difference(
        BROKER_J_0_9_1,
        "has none of the arguments of RabbitMQ, and refuses what it does not know",
        {
            "declare: alternate-exchange": ("connection", 542),
            "declare: x-dead-letter-exchange": ("connection", 542),
            "declare: x-dead-letter-routing-key": ("connection", 542),
            "declare: x-max-length": ("connection", 542),
            "declare: x-max-length-bytes": ("connection", 542),
            "declare: x-max-length, x-overflow": ("connection", 542),
            "declare: x-max-length, x-dead-letter-exchange, x-dead-letter-routing-key": ("connection", 542),
            "declare: x-message-ttl": ("connection", 542),
            "declare: x-message-ttl, x-dead-letter-exchange, x-dead-letter-routing-key": ("connection", 542),
            "declare: x-expires": ("connection", 542),
            "declare: x-max-priority": ("connection", 542),
            "0-9-1: declare: a queue with another argument": ("connection", 542),
            "0-9-1: declare: an argument of a wrong type": ("connection", 542),
            "0-9-1: declare: an unknown argument": ("connection", 542),
        },
    ),
    Difference(
        BROKER_J_0_9_1,
        "does not know exchange.bind: it cuts the connection",
        {"bind: exchange to exchange": ("connection", 0)},
    ),
    Difference(
        BROKER_J_0_9_1,
        "does not look at the flag internal, which 0-9-1 reserves",
        {"publish to an internal exchange": "ok"},
    ),
    Difference(
        BROKER_J_0_9_1,
        "queue, exchange and key are a binding, as in 0-10; the last arguments count",
        {"headers: two bindings with one key": [b"1"]},
    ),
    Difference(
        BROKER_J_0_9_1,
        "basic.qos is of the channel, whatever its flag says: the last one counts for all consumers",
        {"qos: of each consumer": (3, 0), "consume: x-priority": ([b"0", b"1", b"2"], [])},
    ),
    Difference(
        BROKER_J_0_9_1,
        "has a prefetch in bytes, and basic.recover without requeue, as specified; RabbitMQ has neither",
        {"qos: prefetch-size": "ok", "recover: without requeue": "ok"},
    ),
    Difference(
        BROKER_J_0_9_1,
        "queue.declare counts what consumers hold, too",
        {"queue.declare: does not count what is held": 10},
    ),
    Difference(
        BROKER_J_0_9_1,
        "without a limit of deliveries, what is rejected is kept until the channel ends, and comes back then",
        {"reject: without dead letters": [b"0", b"1"], "nack: requeue=False": [b"0"]},
    ),
    Difference(
        BROKER_J_0_9_1,
        "basic.nack does not look at multiple",
        {"nack: multiple": [b"2"]},
    ),
    Difference(
        BROKER_J_0_9_1,
        "expiration is a time in ms since 1970, so that what was meant as some minutes is over",
        {"expiration: in ms from now": [], "expiration: of one message": [b"endless"]},
    ),
    Difference(
        BROKER_J_0_9_1,
        "rollback returns all that is held; the end of a transactional channel does not flag it; basic.reject is no "
        "part of a transaction",
        {
            "rollback: what was accepted": [b"0", b"1"],
            "end in a transaction: redelivered": [False, False],
            "release in a transaction: at once": True,
        },
    ),
    Difference(
        BROKER_J_0_9_1,
        "a commit without select is an invalid command; tx and confirms go together",
        {
            "commit without select": ("channel", 503),
            "0-9-1: tx.rollback: without select": ("channel", 503),
            "0-9-1: tx.select: with confirms": "ok",
        },
    ),
    Difference(
        BROKER_J_0_9_1,
        "closes the connection for an unroutable mandatory message of a transaction (qpid.close_when_no_route)",
        {"mandatory in a transaction": ("connection", 312)},
    ),
    Difference(
        BROKER_J_0_9_1,
        "returns a mandatory message, and does not confirm it but nacks it",
        {"publish: unroutable and mandatory": [("returned and refused", 312), ("taken", 0)]},
    ),
    Difference(
        BROKER_J_0_9_1,
        "ends the connection where the specification ends the channel",
        {
            "0-9-1: get: no queue": ("connection", 404),
            "0-9-1: consume: a queue with an exclusive consumer": ("connection", 403),
            "0-9-1: consume: exclusively where others consume": ("connection", 403),
        },
    ),
    Difference(
        BROKER_J_0_9_1,
        "what may not be done with the default exchange and with amq. is not-allowed, a code that ends the connection",
        {
            "0-9-1: bind: the default exchange": ("connection", 530),
            "0-9-1: delete: amq.direct": ("channel", 530),
            "0-9-1: delete: the default exchange": ("connection", 530),
            "0-9-1: declare: an exchange named amq.": ("connection", 530),
            "0-9-1: declare: an exchange of another type": ("connection", 530),
            "0-9-1: declare: the default exchange": "ok",
            "0-9-1: declare: a queue named amq.": "ok",
        },
    ),
    Difference(
        BROKER_J_0_9_1,
        "deleting and unbinding what is not there are errors (as the specification has it; RabbitMQ has none)",
        {
            "0-9-1: unbind: no binding": ("channel", 404),
            "0-9-1: delete: no queue": ("channel", 404),
            "0-9-1: delete: no exchange": ("channel", 404),
        },
    ),
    Difference(
        BROKER_J_0_9_1,
        "of what exists the flags do not count, but for exclusive and auto-delete of a queue",
        {
            "0-9-1: declare: an exchange that is durable now": "ok",
            "0-9-1: declare: a queue that is durable now": "ok",
            "0-9-1: declare: a queue that is auto-delete now": ("channel", 405),
        },
    ),
    Difference(
        BROKER_J_0_9_1,
        "another's exclusive queue is not-allowed, not locked; binding it is no error",
        {
            "0-9-1: declare: another's exclusive queue": ("connection", 530),
            "0-9-1: declare passive: another's exclusive queue": ("connection", 530),
            "0-9-1: bind: another's exclusive queue": "ok",
            "0-9-1: consume: another's exclusive queue": ("connection", 403),
            "0-9-1: get: another's exclusive queue": ("connection", 530),
            "0-9-1: purge: another's exclusive queue": ("connection", 530),
            "0-9-1: delete: another's exclusive queue": ("connection", 530),
        },
    ),
    Difference(
        BROKER_J_0_9_1,
        "settling what it does not know is no error",
        {
            "0-9-1: ack: an unknown tag": "ok",
            "0-9-1: ack: an unknown tag, multiple": "ok",
            "multiple: a tag that is not held": "ok",
            "0-9-1: nack: an unknown tag": "ok",
            "0-9-1: reject: an unknown tag": "ok",
        },
    ),
    Difference(
        BROKER_J_0_9_1,
        "takes immediate, which RabbitMQ has given up; it checks neither user-id nor x-match",
        {
            "0-9-1: publish: immediate": "ok",
            "0-9-1: publish: user-id is another": "ok",
            "0-9-1: bind: an unknown x-match": "ok",
        },
    ),
    Difference(
        BROKER_J_0_9_1,
        "an expiration that is no number, and a frame that is too large, cut the connection",
        {
            "0-9-1: publish: expiration is no number": ("connection", 0),
            "a frame larger than frame-max": ("connection", 0),
        },
    ),
    Difference(
        BROKER_J_0_9_1,
        "codes of its own for a login that fails",
        {"open: an unknown virtual host": ("connection", 404), "login: a wrong password": ("connection", 530)},
    ),
    Difference(
        BROKER_J_0_9_1,
        "says nothing to the consumers of a queue that is deleted",
        {"consumer: its queue is deleted": []},
    ),
)
