"""Message selectors of JMS: from a text to a predicate over messages."""
