"""What a user writes by hand to get a queue into Parquet files: programs that the query is compared with.

Each has a prefetch, makes files of so many messages, and settles the messages of a file when it is complete, so that
nothing is settled that is not on disk. Each prints its seconds, from the first message wanted to the last one settled,
and its processor time in those (:func:`tests.bench.peers.files.timed`).
"""
