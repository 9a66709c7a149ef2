"""Serve runs over HTTP."""
