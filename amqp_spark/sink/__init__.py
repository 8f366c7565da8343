"""The sink: rows of Spark to an exchange."""
