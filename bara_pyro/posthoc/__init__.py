"""Corrections fitted once training is over: they change what draws say, and no program knows of them."""
