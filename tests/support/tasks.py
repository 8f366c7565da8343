"""Tasks of the sink, with access to the policy that keeps their guarantee."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from amqp_spark.sink.exactly_once import ExactlyOnce
from amqp_spark.sink.task_writer import TaskWriter

if TYPE_CHECKING:
    from amqp_spark.arrow.encode import MessagePlan, TaskId
    from amqp_spark.options import SinkOptions
    from amqp_spark.sink.prepared_transactions import PreparedBranch


class ExactlyOnceTask(TaskWriter):
    """A task writer with its policy; ``more`` are the keyword arguments of :class:`ExactlyOnce`."""

    def __init__(self, plan: MessagePlan, options: SinkOptions, task_id: TaskId, **more: Any) -> None:
        self.policy = ExactlyOnce(options, task_id, **more)
        super().__init__(plan, self.policy)

    @property
    def prepared(self) -> PreparedBranch:
        return self.policy.prepared
