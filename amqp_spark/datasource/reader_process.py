"""A further reader process: it receives some of the queues of a query (option ``numReaders``).

:class:`.DividedStream`, in the process that Spark started, starts it. It sends the options and then the calls of Spark
through a pipe that no other process has. A :class:`.MicroBatchStream` in this process answers the calls. The process
ends on SIGTERM, and when the pipe closes. Messages that were not accepted go back to the broker.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import traceback
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

from amqp_core.errors import AmqpError
from amqp_spark.datasource import driver_env
from amqp_spark.datasource.at_least_once import AtLeastOncePolicy
from amqp_spark.datasource.micro_batch_stream import MicroBatchStream
from amqp_spark.datasource.reader_calls import Answer

if TYPE_CHECKING:
    from collections.abc import Callable

    from amqp_spark.datasource.reader_calls import Call, Task


def serve(pipe: Connection) -> None:
    """Answer calls until the pipe closes or SIGTERM comes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for Spark, which stops the query
    driver_env.stop_in_order()
    try:
        task: Task = pipe.recv()
    except (EOFError, OSError):  # the first process has ended
        return
    watch = driver_env.watch_parent(task.parent)
    if os.getppid() != task.parent:  # its calls may still be in the pipe
        return
    stream = MicroBatchStream(
        task.options,
        AtLeastOncePolicy(task.options, task.connector),
        bounded=task.bounded,
        settings=task.settings,
        watch=watch,
    )
    calls: dict[str, Callable[..., object]] = {
        "begin": stream.begin,
        "latest_offset": stream.latest_offset,
        "partitions": stream.partitions,
        "commit": stream.commit,
    }
    try:
        while True:
            call: Call = pipe.recv()
            try:
                answer = Answer(calls[call.name](*call.offsets), report=stream.report())
            except Exception as error:  # noqa: BLE001  every error must reach the query
                answer = Answer(error=sent(error))
            pipe.send(answer)
    except (EOFError, OSError):  # the first process has ended
        pass
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # one that comes now must not interrupt the last accept
        stream.stop()


def sent(error: Exception) -> Exception:
    """An error as the first process raises it: ours as it is, another one as text, with where it was raised."""
    try:
        copy = pickle.loads(pickle.dumps(error))  # noqa: S301  it was made here
    except Exception:  # noqa: BLE001  whatever an error does when it is pickled
        copy = None
    if isinstance(error, AmqpError) and type(copy) is type(error):
        return error
    return RuntimeError("".join(traceback.format_exception(error)).rstrip())


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])))
