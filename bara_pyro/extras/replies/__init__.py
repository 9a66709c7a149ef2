"""Replies: generated with uncertainty, scored by reward models, run in a sandbox."""
