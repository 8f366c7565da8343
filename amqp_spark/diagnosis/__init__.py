"""The doctor: what a broker, a login and a Spark can do together, found out without touching what is the user's.

:func:`amqp_spark.doctor` and ``amqp-spark doctor`` report it; docs/doctor.md says what each finding means.
"""
