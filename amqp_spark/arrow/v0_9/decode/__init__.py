"""The columns of messages of 0-9 and 0-9-1, from frames to Arrow."""
