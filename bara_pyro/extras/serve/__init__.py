"""Runs behind HTTP."""
