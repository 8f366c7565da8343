"""Where exactly-once keeps the batches that it has accepted, until Spark has committed them.

:mod:`spool` has the files of one queue of one consumer, :mod:`identity` says whose directory it is, :mod:`location` how
its errors are told, :mod:`directories` how each kind of file system is written to so that a file is complete or not
there, and :mod:`format` what is in a file.
"""
