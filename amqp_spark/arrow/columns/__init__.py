"""Columns of Arrow from bytes of many messages: what the protocols have in common."""
