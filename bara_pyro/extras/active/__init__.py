"""Which rows to label next."""
