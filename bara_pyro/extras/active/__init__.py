"""Choose which rows to label next."""
