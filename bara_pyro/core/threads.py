"""One thread at a time runs a program: Pyro keeps one stack of handlers for the whole process."""

import threading

PROGRAM = threading.RLock()
"""Held while a program runs; forwards of other threads wait. To be taken again by the thread that has it."""
