"""Running from an archive: ``--py-files`` without installation.

Spark starts the reader process of a streaming query without the paths of ``--py-files`` (Spark 4.3), so unpickling our
data source there fails with ModuleNotFoundError. A pickle of a :class:`Portable` object therefore adds the archive
that this package was imported from to ``sys.path`` before it names a class of the package. The instructions in the
pickle use functions of pyspark and of the standard library only, and nothing is added when the package is installed.
"""

from __future__ import annotations

import operator
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.worker_util import add_path

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

#: What SparkContext.addPyFile puts on the path of workers.
_KNOWN_TO_SPARK = frozenset({".zip", ".egg", ".jar"})


def archive() -> str | None:
    """The archive (zip, egg or wheel file) that this package was imported from; ``None`` for a directory."""
    root = Path(__file__).parents[1]
    return str(root) if root.is_file() else None


def ship(spark: SparkSession) -> None:
    """Send the package to the workers when they would not get it: a wheel, which Spark distributes but never imports.

    A zip in ``--py-files`` reaches the workers by itself, an installed package does not have to.
    """
    source = archive()
    if source is None or Path(source).suffix.lower() in _KNOWN_TO_SPARK:
        return
    # Kept while the application runs: Spark's file server hands it out to executors that start later.
    copy = Path(tempfile.mkdtemp(prefix="amqp-spark-")) / f"{Path(source).stem}.zip"
    shutil.copyfile(source, copy)
    spark.sparkContext.addPyFile(str(copy))


class Portable:
    """Mixin: pickles so that it can be unpickled where only the archive is, not its path."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Find the archive first, then build the object from its class and ``__getstate__``."""
        source = archive()
        if source is None:
            return super().__reduce_ex__(protocol)
        # Arguments are unpickled from left to right: the path is there when the class is looked up.
        return operator.getitem, ((_Call(add_path, source), _Call(object.__new__, type(self), state=self)), 1)


class _Call:
    """Pickles as the call of a function; this class is never named in the pickle."""

    def __init__(self, function: Callable[..., object], *args: object, state: object = None) -> None:
        self._function = function
        self._args = args
        self._of = state

    def __reduce__(self) -> tuple[Any, ...]:
        if self._of is None:
            return self._function, self._args
        return self._function, self._args, self._of.__getstate__()
