"""The store of the embedded broker: what is durable, in an SQLite file."""
