"""The page of `bara inspect`."""
