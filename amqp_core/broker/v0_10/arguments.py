"""Arguments of queue.declare: those of the Qpid brokers in terms of the model, and what only 0-10 knows of a queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from amqp_core.broker.model.backlog import LOWEST
from amqp_core.broker.model.dead_letters import ALTERNATE
from amqp_core.broker.v0_10.errors import Code, Failed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from amqp_core.broker.model.queues import Queue

_DECLARED: Final = "amqp_core.declared"

_NAMES: Final = {
    "qpid.max_count": "x-max-length",
    "qpid.max_size": "x-max-length-bytes",
    "x-qpid-capacity": "x-max-length-bytes",
    "x-qpid-priorities": "x-max-priority",
    "qpid.priorities": "x-max-priority",
    "x-qpid-maximum-delivery-count": "x-delivery-limit",
}
_ALL_PRIORITIES: Final = 10
_MOST_DIGITS: Final = 20
_POLICY: Final = "qpid.policy_type"
_FLOW_CONTROL: Final = "producer_flow_control"
_POLICIES: Final = {
    "reject": "reject-publish",
    "ring": "drop-head",
    "ring_strict": "drop-head",
    _FLOW_CONTROL: "flow-control",
}

# Queues of the Qpid brokers that keep, order or hand out their messages in another way than all queues here.
_OTHER_QUEUES: Final = (
    "qpid.LVQ_key",
    "qpid.browse-only",
    "qpid.group_header_key",
    "qpid.last_value_queue",
    "qpid.last_value_queue_key",
    "qpid.last_value_queue_no_browse",
    "qpid.lvq_key",
    "qpid.queue_sort_key",
    "qpid.shared_msg_group",
)


def model_arguments(arguments: Mapping[str, object], alternate: str | None) -> dict[str, object]:
    """The arguments of a queue in the model.

    Raises:
        Failed: INVALID_ARGUMENT, a policy that is not served; NOT_IMPLEMENTED, a kind of queue that is not served.
    """
    other = next((name for name in _OTHER_QUEUES if arguments.get(name)), None)
    if other is not None:
        raise Failed(Code.NOT_IMPLEMENTED, f"this broker has no queues with argument {other}")
    made = dict(arguments) | {_DECLARED: dict(arguments)}
    for name, ours in _NAMES.items():
        if name in arguments:
            value = _number(arguments[name])
            if ours == "x-max-priority" and isinstance(value, int) and not isinstance(value, bool):
                if value <= 1:
                    continue  # a single level is none
                # n levels are numbered from 0 to n - 1; of less than ten, the middle is at 4, which most messages have
                if value < _ALL_PRIORITIES and ours not in made:
                    made[LOWEST] = 5 - (value + 1) // 2
                value = value - 1
            # n deliveries are n - 1 redeliveries; 0 is no limit
            if ours == "x-delivery-limit" and isinstance(value, int) and not isinstance(value, bool):
                value = value - 1
            made.setdefault(ours, value)
    limited = "qpid.max_count" in arguments or "qpid.max_size" in arguments
    by_default = _FLOW_CONTROL if "x-qpid-capacity" in arguments else "reject" if limited else None
    policy = arguments.get(_POLICY, by_default)
    if policy is not None and policy != "none":
        overflow = _POLICIES.get(policy) if isinstance(policy, str) else None
        if overflow is None:
            raise Failed(
                Code.INVALID_ARGUMENT, f"{_POLICY} must be reject, ring or {_FLOW_CONTROL}, not {policy!r:.100}"
            )
        made.setdefault("x-overflow", overflow)
    if alternate:
        made[ALTERNATE] = alternate
        made["x-dead-letter-exchange"] = alternate
    return made


def _number(value: object) -> object:
    """Texts of digits as integers, which Broker-J takes for them; all else as it is."""
    digits = isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= _MOST_DIGITS
    return int(str(value)) if digits else value


def declared_arguments(queue: Queue) -> dict[str, object]:
    """The arguments with which a queue was declared, by whichever protocol."""
    declared = queue.arguments.get(_DECLARED, queue.arguments)
    return dict(declared) if isinstance(declared, dict) else {}


def alternate_of(queue: Queue) -> str | None:
    """The alternate exchange of a queue, if it was declared with one."""
    alternate = queue.arguments.get(ALTERNATE)
    return alternate if isinstance(alternate, str) else None
