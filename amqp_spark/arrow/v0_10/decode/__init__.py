"""The columns of the source: their names and types, and their decoding from frames to Arrow."""
