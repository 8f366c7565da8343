"""What sessions of 0-10 do on the embedded broker, in the plainest words: the model of random histories."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from amqp_core.v0_10 import spec
from tests.core.broker.queue_model import Host, Item, Queue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

Code = spec.ExecutionErrorCode
Detached = spec.SessionDetachCode
OK, ROLLED_BACK, TIMED_OUT = "XA_OK", "XA_RBROLLBACK", "XA_RBTIMEOUT"
KNOWN_S = 3600.0


class Failed(Exception):
    """A command is refused: that ends the session."""

    def __init__(self, code: Code) -> None:
        super().__init__(code)
        self.code = code


class Published(NamedTuple):
    """A message of a client. ``size``: of header and body; ``dead``: as a dead letter."""

    number: int
    exchange: str
    key: str
    priority: int
    ttl: float | None
    size: int
    dead: int
    body: int
    immediate: bool
    discard: bool
    explicit: bool


@dataclass(eq=False)
class Subscription:
    """A subscription with its credit."""

    session: Session
    destination: str
    queue: Queue
    rank: int
    browse: bool
    settled: bool
    exclusive: bool
    window: bool = True
    messages: float = 0
    nbytes: float = 0
    seen: dict[int, int] = field(default_factory=dict)

    @property
    def no_ack(self) -> bool:
        return self.settled and not self.browse

    @property
    def has_credit(self) -> bool:
        return self.messages > 0 and self.nbytes > 0

    def has_room(self, size: int) -> bool:
        return self.has_credit and self.nbytes >= size and self.session.can_send

    def deliver(self, item: Item) -> None:
        self.session.deliver(self, item)

    def cancelled(self) -> None:
        self.session.queue_gone(self)

    def stop(self) -> None:
        self.messages = self.nbytes = 0
        windows = self.session.windows
        for ordinal in [each for each, (subscription, _) in windows.items() if subscription is self]:
            del windows[ordinal]


@dataclass(eq=False)
class Work:
    """A transaction, or a branch of one."""

    published: list[tuple[Published, list[Queue]]] = field(default_factory=list)
    accepted: dict[Any, Item] = field(default_factory=dict)
    released: dict[int, bool] = field(default_factory=dict)
    prepared: bool = False
    undone: str = ""
    sessions: dict[Session, bool] = field(default_factory=dict)
    timeout: int = 60
    until: float = 0

    def take(self) -> list[Item]:
        accepted = list(self.accepted.values())
        self.published.clear()
        self.accepted.clear()
        return accepted


class Broker(Host):
    """Queues, branches, and the names of sessions."""

    def __init__(self) -> None:
        super().__init__()
        self.branches: dict[int, Work] = {}
        self.names: dict[bytes, Session] = {}

    def route(self, message: Published) -> list[Queue]:
        if message.exchange == "":
            return [self.queues[message.key]] if message.key in self.queues else []
        if message.exchange == "amq.fanout":
            return list(self.fanout)
        raise Failed(Code.NOT_FOUND)

    def item(self, message: Published, queue: Queue) -> Item:
        expires = None if message.ttl is None else self.now + message.ttl
        return Item(
            message.number, queue, 0, message.priority, message.size, message.size, message.dead, message.body, expires
        )

    def commit(self, work: Work) -> None:
        for message, queues in work.published:
            for queue in queues:
                if not queue.deleted:
                    queue.admit(self.item(message, queue))
            self.drain()
        self.accept(work.take())

    def has_room(self, work: Work) -> bool:
        bodies: dict[Queue, list[int]] = {}
        for message, queues in work.published:
            for queue in queues:
                bodies.setdefault(queue, []).append(message.body)
        return not any(
            queue.policy == "reject" and queue.is_over(len(queue.waiting) + len(its), queue.nbytes + sum(its))
            for queue, its in bodies.items()
        )

    def expire(self) -> None:
        for xid, branch in list(self.branches.items()):
            if branch.prepared or branch.until > self.now:
                continue
            if not branch.undone:
                self.undo(branch, TIMED_OUT)
            elif not branch.sessions:
                del self.branches[xid]
        for queue in self.queues.values():
            queue.expire()
        self.drain()

    def undo(self, branch: Work, why: str) -> None:
        self.release(self.mark_undone(branch, why))

    def mark_undone(self, branch: Work, why: str) -> list[Item]:
        if not branch.undone:
            branch.undone, branch.until = why, self.now + KNOWN_S
        return branch.take()


class Client:
    """A connection. ``log`` is what it should receive by channel, without accepts."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.sessions: dict[int, Session] = {}
        self.log: dict[int, list[tuple[object, ...]]] = {0: [], 1: []}
        self.accepted: set[tuple[int, int, int]] = set()
        """Channel, number of the session on it, and command id of transfers that should be accepted."""
        self.attached = [0, 0]
        self.failing: list[Session] = []
        self.paused = False
        self.ending = False

    def attach(self, channel: int, name: bytes, *, force: bool) -> None:
        holder = self.broker.names.get(name)
        if holder is not None:
            if not force:
                self.log[channel].append(("detached", Detached.SESSION_BUSY))
                return
            holder.end()
            holder.client.sessions.pop(holder.channel)
            holder.client.log[holder.channel].append(("detached", Detached.SESSION_BUSY))
        self.attached[channel] += 1
        self.broker.names[name] = self.sessions[channel] = Session(self, channel, name, self.attached[channel])
        self.log[channel].append(("attached",))

    def detach(self, channel: int) -> None:
        session = self.sessions.get(channel)
        if session is None:
            self.log[channel].append(("detached", Detached.NOT_ATTACHED))
            return
        session.hurry()
        self.log[channel].append(("detached", Detached.NORMAL))
        self.sessions.pop(channel)
        session.end()

    def command(self, channel: int, do: Callable[[Session], None]) -> None:
        session = self.sessions.get(channel)
        if session is None:
            self.log[channel].append(("detached", Detached.NOT_ATTACHED))
        else:
            session.receive(do)

    def resume(self) -> None:
        """The client reads again."""
        self.paused = False
        for session in list(self.sessions.values()):
            session.wake()

    def fail(self) -> None:
        """End the sessions whose queues were deleted."""
        while self.failing:
            session = self.failing.pop()
            if not session.ended:
                session.fail(session.failed)

    def read(self) -> None:
        """The client has read, and answered session.detach."""
        self.sessions = {channel: session for channel, session in self.sessions.items() if not session.ended}

    def relieve(self) -> None:
        for session in self.sessions.values():
            session.relieve()

    def end(self, *, lost: bool) -> None:
        if not lost:
            for session in list(self.sessions.values()):
                session.hurry()
        self.ending = True
        for session in self.sessions.values():
            session.give_back()
        for session in self.sessions.values():
            session.end()
        self.sessions.clear()


class Session:
    """A session, from session.attach until the client knows that it has ended."""

    def __init__(self, client: Client, channel: int, name: bytes, number: int) -> None:
        self.client = client
        self.broker = client.broker
        self.channel = channel
        self.name = name
        self.number = number
        self.subscriptions: dict[str, Subscription] = {}
        self.held: dict[int, Item] = {}
        self.browsed: dict[int, tuple[Item, Subscription]] = {}
        self.windows: dict[int, tuple[Subscription, int]] = {}
        self.count = 0
        self.transaction: Work | None = None
        self.distributed = False
        self.active: tuple[int, Work] | None = None
        self.flushing: Subscription | None = None
        self.waiting: deque[Callable[[Session], None]] = deque()
        self.stopped: list[Queue] = []
        self.failed: Code | None = None
        self.ended = False

    @property
    def can_send(self) -> bool:
        return not (self.ended or self.failed or self.client.paused or self.client.ending)

    def say(self, *what: object) -> None:
        self.client.log[self.channel].append(what)

    # --- deliveries

    def deliver(self, subscription: Subscription, item: Item) -> None:
        ordinal, self.count = self.count, self.count + 1
        self.say("transfer", subscription.destination, item.number, item.returns > 0)
        is_unlimited = subscription.messages == subscription.nbytes == math.inf
        if subscription.window and not is_unlimited:
            self.windows[ordinal] = subscription, int(min(item.sent, subscription.nbytes))
        if subscription.browse:
            self.browsed[ordinal] = item, subscription
        elif not subscription.settled:
            self.held[ordinal] = item
        subscription.messages -= 1
        subscription.nbytes = max(0, subscription.nbytes - item.sent)

    def queue_gone(self, subscription: Subscription) -> None:
        self.subscriptions.pop(subscription.destination, None)
        if not self.ended and not self.failed:
            self.failed = Code.RESOURCE_DELETED
            self.client.failing.append(self)

    def ready(self, subscriptions: Iterable[Subscription]) -> None:
        for queue in {each.queue: None for each in subscriptions if each.has_credit}:
            self.broker.ready(queue)

    def completed(self, below: int) -> None:
        """session.completed: the client has completed its first transfers."""
        changed: dict[str, Subscription] = {}
        for ordinal in [each for each in self.windows if each < below]:
            subscription, size = self.windows.pop(ordinal)
            if subscription.window:
                subscription.messages += 1
                subscription.nbytes += size
            changed[subscription.destination] = subscription
        self.ready(changed.values())

    # --- commands, one after the other

    def receive(self, do: Callable[[Session], None]) -> None:
        if self.flushing is not None:
            self.waiting.append(do)
        elif not self.ended:
            try:
                do(self)
            except Failed as failed:
                self.fail(failed.code)

    def wake(self) -> None:
        self.ready(self.subscriptions.values())
        while self.flushing is not None and not (self.flushing.has_credit and self.client.paused):
            self.end_flush()

    def hurry(self) -> None:
        while self.flushing is not None:
            self.end_flush()

    def end_flush(self) -> None:
        assert self.flushing is not None
        self.flushing.stop()
        self.flushing = None
        while self.waiting and self.flushing is None:
            self.receive(self.waiting.popleft())

    def fail(self, code: Code | None) -> None:
        self.say("exception", code)
        self.give_up()

    def give_up(self) -> None:
        self.say("detach")
        self.end()

    def give_back(self) -> None:
        if self.ended:
            return
        self.ended = True
        self.flushing = None
        self.waiting.clear()
        items: list[Item] = []
        for branch in self.broker.branches.values():
            if branch.sessions.pop(self, None) is not None:
                items += self.broker.mark_undone(branch, ROLLED_BACK)
        items += self.held.values()
        if self.transaction is not None:
            items += self.transaction.take()
        self.broker.release(items)

    def end(self) -> None:
        self.give_back()
        if self.broker.names.get(self.name) is self:
            del self.broker.names[self.name]
        subscriptions, self.subscriptions = self.subscriptions, {}
        for each in subscriptions.values():
            self.broker.cancel(each, each.queue)
        for queue in [each for each in self.broker.queues.values() if each.owner is self]:
            self.broker.delete(queue)

    # --- publishing

    def publish(self, message: Published, command_id: int) -> None:
        work = self.active[1] if self.active is not None else self.transaction
        queues = self.broker.route(message)
        if message.immediate and not (
            queues and all(any(each.has_room(message.size) for each in queue.takers) for queue in queues)
        ):
            self.answer(message, command_id, None if message.discard else spec.MessageRejectCode.IMMEDIATE)
            return
        if work is not None:
            if queues and not work.undone:
                work.published.append((message, queues))
            self.stop([queue for queue in queues if queue.holds])
            taken = bool(queues)
        else:
            restraints, taken, refused = [], False, False
            for queue in queues:
                if queue.put(self.broker.item(message, queue)):
                    taken = True
                    if queue.holds:
                        restraints.append(queue)
                else:
                    refused = True
            self.broker.drain()
            self.stop(restraints)
            if refused:
                if not message.explicit:
                    raise Failed(Code.RESOURCE_LIMIT_EXCEEDED)
                self.answer(message, command_id, spec.MessageRejectCode.UNSPECIFIED)
                return
        self.answer(message, command_id, None if taken or message.discard else spec.MessageRejectCode.UNROUTABLE)

    def answer(self, message: Published, command_id: int, rejected: spec.MessageRejectCode | None) -> None:
        if not message.explicit:
            return
        if rejected is not None:
            self.say("reject", command_id, rejected)
        else:
            self.client.accepted.add((self.channel, self.number, command_id))

    def stop(self, queues: list[Queue]) -> None:
        if queues and not self.stopped:
            self.say("stop")
        self.stopped += queues

    def relieve(self) -> None:
        if self.stopped:
            self.stopped = [queue for queue in self.stopped if queue.holds]
            if not self.stopped and not self.ended:
                self.say("go on")

    # --- settlement; each is given ordinals of transfers that the client has received

    def take(self, ordinals: list[int]) -> dict[int, Item]:
        for ordinal in ordinals:
            self.browsed.pop(ordinal, None)
        return {each: self.held.pop(each) for each in ordinals if each in self.held}

    def accept(self, ordinals: list[int]) -> None:
        taken = self.take(ordinals)
        if self.active is not None:
            branch = self.active[1]
            if branch.undone:
                self.broker.release(list(taken.values()))
            else:
                branch.accepted.update({item: item for item in taken.values()})
        elif self.transaction is not None:
            self.transaction.accepted.update(taken)
        else:
            self.broker.accept(list(taken.values()))

    def release(self, ordinals: list[int], *, redelivered: bool) -> None:
        taken = self.take(ordinals)
        if self.transaction is not None:
            self.transaction.released |= {each: redelivered for each in ordinals if each in self.transaction.accepted}
        self.broker.release(list(taken.values()), delivered=redelivered)

    def reject(self, ordinals: list[int]) -> None:
        self.broker.reject(list(self.take(ordinals).values()))

    def acquire(self, ordinals: list[int]) -> None:
        acquired = [
            each for each in ordinals if each in self.browsed and self.seen(each).queue.acquire(self.seen(each))
        ]
        self.broker.drain()
        for ordinal in acquired:
            item, subscription = self.browsed.pop(ordinal)
            if subscription.settled:
                self.broker.accept([item])
            else:
                self.held[ordinal] = item
        self.say("acquired", tuple(acquired))

    def seen(self, ordinal: int) -> Item:
        return self.browsed[ordinal][0]

    # --- subscriptions

    def subscribe(
        self, destination: str, name: str, *, rank: int, browse: bool, settled: bool, exclusive: bool
    ) -> None:
        if destination in self.subscriptions or (settled and self.transaction is not None):
            raise Failed(Code.NOT_ALLOWED)
        queue = self.queue(name)
        others = queue.consumers
        if others and (exclusive or any(isinstance(each, Subscription) and each.exclusive for each in others)):
            raise Failed(Code.RESOURCE_LOCKED)
        subscription = Subscription(self, destination, queue, rank, browse, settled, exclusive)
        queue.attach(subscription)
        self.subscriptions[destination] = subscription

    def queue(self, name: str) -> Queue:
        queue = self.broker.queues.get(name)
        if queue is None:
            raise Failed(Code.NOT_FOUND)
        if queue.owner is not None and queue.owner is not self:
            raise Failed(Code.RESOURCE_LOCKED)
        return queue

    def subscription(self, destination: str) -> Subscription:
        if destination not in self.subscriptions:
            raise Failed(Code.NOT_FOUND)
        return self.subscriptions[destination]

    def cancel(self, destination: str) -> None:
        subscription = self.subscription(destination)
        del self.subscriptions[destination]
        subscription.stop()
        if subscription.browse and subscription.settled:
            self.browsed = {each: seen for each, seen in self.browsed.items() if seen[1] is not subscription}
        self.broker.cancel(subscription, subscription.queue)

    def flow(self, destination: str, *, of_bytes: bool, value: float) -> None:
        subscription = self.subscription(destination)
        if of_bytes:
            subscription.nbytes += value
        else:
            subscription.messages += value
        self.ready([subscription])

    def stop_subscription(self, destination: str) -> None:
        self.subscription(destination).stop()

    def set_mode(self, destination: str, *, window: bool) -> None:
        subscription = self.subscription(destination)
        if subscription.messages or subscription.nbytes:
            raise Failed(Code.PRECONDITION_FAILED)
        subscription.window = window

    def flush(self, destination: str) -> None:
        subscription = self.subscription(destination)
        self.ready([subscription])
        if subscription.has_credit and self.client.paused:
            self.flushing = subscription
        else:
            subscription.stop()

    # --- transactions

    def tx_select(self) -> None:
        if self.transaction is not None or self.distributed:
            raise Failed(Code.ILLEGAL_STATE)
        if any(each.settled for each in self.subscriptions.values()):
            raise Failed(Code.NOT_ALLOWED)
        self.transaction = Work()

    def tx_commit(self) -> None:
        transaction = self.selected()
        if not self.broker.has_room(transaction):
            raise Failed(Code.RESOURCE_LIMIT_EXCEEDED)
        transaction.released.clear()
        self.broker.commit(transaction)

    def tx_rollback(self) -> None:
        transaction = self.selected()
        released, transaction.released = transaction.released, {}
        for ordinal, item in transaction.accepted.items():
            if ordinal not in released:
                assert isinstance(ordinal, int)
                self.held[ordinal] = item
        for redelivered in (False, True):
            items = [transaction.accepted[each] for each, how in released.items() if how is redelivered]
            self.broker.release(items, delivered=redelivered)
        transaction.take()

    def selected(self) -> Work:
        if self.transaction is None:
            raise Failed(Code.ILLEGAL_STATE)
        return self.transaction

    # --- distributed transactions

    def dtx_select(self) -> None:
        if self.transaction is not None:
            raise Failed(Code.ILLEGAL_STATE)
        self.distributed = True

    def dtx_start(self, xid: int, *, join: bool, resume: bool) -> None:
        branches = self.broker.branches
        branch = branches.get(xid)
        if join and resume:
            raise Failed(Code.NOT_ALLOWED)
        if not self.distributed:
            raise Failed(Code.ILLEGAL_STATE)
        if self.active is not None and (join or resume) == (branch is not None):
            raise Failed(Code.ILLEGAL_STATE)
        if not (join or resume):
            if branch is not None:
                raise Failed(Code.NOT_ALLOWED)
            branch = branches[xid] = Work(until=self.broker.now + 60)
        elif branch is None:
            raise Failed(Code.NOT_ALLOWED)
        elif (resume and branch.sessions.get(self, True)) or (join and (branch.prepared or self in branch.sessions)):
            raise Failed(Code.ILLEGAL_STATE)
        if not branch.undone:
            branch.sessions[self] = True
            self.active = xid, branch
        self.say("xa", branch.undone or OK)

    def dtx_end(self, xid: int, *, fail: bool, suspend: bool) -> None:
        branch = self.broker.branches.get(xid)
        if fail and suspend:
            raise Failed(Code.NOT_ALLOWED)
        if branch is None or self not in branch.sessions or (suspend and not branch.sessions[self]):
            raise Failed(Code.ILLEGAL_STATE)
        if suspend:
            branch.sessions[self] = False
        else:
            del branch.sessions[self]
        if self.active is not None and self.active[0] == xid:
            self.active = None
        if fail:
            self.broker.undo(branch, ROLLED_BACK)
        self.say("xa", branch.undone or OK)

    def left(self, xid: int) -> Work:
        branch = self.broker.branches.get(xid)
        if branch is None:
            raise Failed(Code.NOT_FOUND)
        if branch.sessions:
            raise Failed(Code.ILLEGAL_STATE)
        return branch

    def dtx_prepare(self, xid: int) -> None:
        branch = self.left(xid)
        if branch.prepared:
            raise Failed(Code.ILLEGAL_STATE)
        if not branch.undone and not self.broker.has_room(branch):
            self.broker.undo(branch, ROLLED_BACK)
        if branch.undone == TIMED_OUT:
            del self.broker.branches[xid]
        branch.prepared = not branch.undone
        self.say("xa", branch.undone or OK)

    def dtx_commit(self, xid: int, *, one_phase: bool) -> None:
        branch = self.left(xid)
        if not branch.undone and branch.prepared == one_phase:
            raise Failed(Code.ILLEGAL_STATE)
        if one_phase and not branch.undone and not self.broker.has_room(branch):
            self.broker.undo(branch, ROLLED_BACK)
        del self.broker.branches[xid]
        if not branch.undone:
            self.broker.commit(branch)
        self.say("xa", branch.undone or OK)

    def dtx_rollback(self, xid: int) -> None:
        branch = self.left(xid)
        del self.broker.branches[xid]
        self.broker.release(branch.take())
        self.say("xa", TIMED_OUT if branch.undone == TIMED_OUT else OK)

    def dtx_forget(self, xid: int) -> None:
        raise Failed(Code.NOT_FOUND if xid not in self.broker.branches else Code.ILLEGAL_STATE)

    def dtx_timeout(self, xid: int, seconds: int | None) -> None:
        if xid not in self.broker.branches:
            raise Failed(Code.NOT_FOUND)
        branch = self.broker.branches[xid]
        if seconds is None:
            self.say("timeout", branch.timeout)
            return
        branch.timeout = seconds or 60
        if not branch.undone:
            branch.until = self.broker.now + branch.timeout

    def dtx_recover(self) -> None:
        self.say("recover", tuple(xid for xid, branch in self.broker.branches.items() if branch.prepared))

    # --- queues

    def declare(self, name: str, *, exclusive: bool) -> None:
        if name in self.broker.queues:
            self.queue(name)
            return
        made = Queue(name, self.broker, owner=self if exclusive else None, auto_delete=not exclusive)
        self.broker.queues[name] = made

    def bind(self, name: str) -> None:
        self.broker.fanout[self.queue(name)] = None

    def delete(self, name: str) -> None:
        self.broker.delete(self.queue(name))

    def purge(self, name: str) -> None:
        queue = self.queue(name)
        for item in queue.waiting:
            item.state = "gone"
        queue.waiting.clear()

    def query(self, name: str) -> None:
        queue = self.broker.queues.get(name)
        if queue is None:
            self.say("no queue")
        else:
            self.say("queue", len(queue.waiting) + queue.held, len(queue.consumers))
