"""The source side: receiving, planning and reading; one receiver per query, rows decoded on executors."""
