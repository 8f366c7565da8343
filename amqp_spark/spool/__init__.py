"""The spool: stores batches that exactly-once has accepted, until Spark has committed them.

:mod:`spool` handles the files of one queue of one consumer, :mod:`identity` records the owner of the directory,
:mod:`location` turns file system errors into SpoolError, :mod:`directories` writes files atomically on each kind of
file system, and :mod:`format` defines the contents of a file.
"""
