"""Python processes that Spark starts: they import this package from an archive, and collect less garbage.

Spark starts the reader process of a streaming query without the paths of ``--py-files`` (Spark 4.3), so unpickling the
data source there fails with ModuleNotFoundError. Therefore unpickling a :class:`Portable` object first adds the archive
from which this package was imported to ``sys.path``, before a class of the package is looked up. The instructions in
the pickle use only functions of pyspark and of the standard library; if the package is installed, nothing is added.
"""

from __future__ import annotations

import atexit
import gc
import operator
import os
import shutil
import tempfile
import threading
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark import TaskContext
from pyspark.worker_util import add_path

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark import SparkContext
    from pyspark.sql import SparkSession

#: Suffixes of the files that SparkContext.addPyFile adds to the path of workers.
_KNOWN_TO_SPARK = frozenset({".zip", ".egg", ".jar"})

_spared = False
_shipped: Final[weakref.WeakSet[SparkContext]] = weakref.WeakSet()
_shipping: Final = threading.Lock()


def archive() -> str | None:
    """Return the archive (zip, egg or wheel file) from which this package was imported; ``None`` for a directory."""
    root = Path(__file__).parents[1]
    return str(root) if root.is_file() else None


def ship(spark: SparkSession) -> None:
    """Send the package to the workers if it runs from a wheel, which Spark distributes but does not import; once for
    each application: Spark refuses a second file of the same name.

    A zip in ``--py-files`` reaches the workers by itself; an installed package need not be sent.
    """
    source = archive()
    if source is None or Path(source).suffix.lower() in _KNOWN_TO_SPARK:
        return
    with _shipping:
        if spark.sparkContext in _shipped:
            return
        # Kept while the application runs: Spark's file server serves it to executors that start later.
        directory = tempfile.mkdtemp(prefix="amqp-spark-")
        atexit.register(_remove, directory, os.getpid())
        copy = Path(directory) / f"{Path(source).stem}.zip"
        shutil.copyfile(source, copy)
        spark.sparkContext.addPyFile(str(copy))
        _shipped.add(spark.sparkContext)


def _remove(directory: str, process: int) -> None:
    if os.getpid() == process:  # and not a fork of it
        shutil.rmtree(directory, ignore_errors=True)


class Portable:
    """Mixin: its pickles can be unpickled in processes that have the archive file, but not in their ``sys.path``."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Add the archive to the path first, then build the object from its class and ``__getstate__``."""
        source = archive()
        if source is None:
            return super().__reduce_ex__(protocol)
        # Arguments are unpickled from left to right: the path is set when the class is looked up.
        return operator.getitem, ((_Call(add_path, source), _Call(object.__new__, type(self), state=self)), 1)


class _Call:
    """Pickled as a function call; this class does not appear in the pickle."""

    def __init__(self, function: Callable[..., object], *args: object, state: object = None) -> None:
        self._function = function
        self._args = args
        self._of = state

    def __reduce__(self) -> tuple[Any, ...]:
        if self._of is None:
            return self._function, self._args
        return self._function, self._args, self._of.__getstate__()


def spare_collections() -> None:
    """Exclude all current objects from garbage collection, once per worker.

    The loop of a reused worker (``pyspark.daemon``) runs a full garbage collection after every task. With the modules
    of pyspark, pyarrow and numpy in memory that takes 40 ms of processor time, as much as decoding 30,000 messages.
    The objects that exist after the first task are mainly those modules, which live as long as the process:
    ``gc.freeze`` excludes them, and 2 ms remain. Reference counting is unaffected. Outside of a task nothing is done:
    the process may not be a Spark worker.
    """
    global _spared  # noqa: PLW0603 - one fact per process
    if not _spared and TaskContext.get() is not None:
        _spared = True
        gc.freeze()
