"""The report pages of `bara inspect`, `bara compare` and `bara prune`."""
