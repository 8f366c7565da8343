"""From rows to bytes, for every protocol: bytes of many rows at once, maps and lists, and rows that cannot be sent."""
