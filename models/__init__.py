"""Generative programs, one a file."""
