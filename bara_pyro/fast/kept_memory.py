"""Freed memory that the process keeps, so that each layer does not fetch its pages from the system again."""

from functools import cache

import torch

LARGEST = 2**25 - 2**12  # bytes: just below the largest block that glibc adapts its threshold to


@cache
def keep_freed() -> None:
    """Let glibc keep up to 64 MiB of freed memory, from now on; other allocators are not affected.

    By default it returns memory when a few MiB are free, which happens in every layer. The page faults took a
    quarter of the time of ten draws on a CPU. Glibc raises its threshold to twice the largest block that was
    freed; the block here is never written to. If MALLOC_TRIM_THRESHOLD_ is set, glibc keeps to that.
    """
    torch.empty(LARGEST, dtype=torch.uint8, device="cpu")
