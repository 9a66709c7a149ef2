"""The report pages of `bara inspect` and `bara compare`."""
