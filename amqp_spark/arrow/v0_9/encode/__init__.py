"""From rows to the frames of basic.publish."""
