"""Freed memory stays with the process: glibc's own count of blocks that it returns when they are freed."""

import ctypes
import platform
import subprocess
import sys

import pytest

COUNT = """
import ctypes, torch
from bara_pyro.fast.kept_memory import LARGEST, keep_freed
class Info(ctypes.Structure):
    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in names.split()]
info = ctypes.CDLL(None).mallinfo2
info.restype = Info
if {kept}:
    with torch.device("meta"):  # whatever the default
        keep_freed()
before = info().hblks
block = torch.empty(LARGEST - 2**20, dtype=torch.uint8)
print(info().hblks - before)
"""
GLIBC = platform.libc_ver()[0] == "glibc" and hasattr(ctypes.CDLL(None), "mallinfo2")


@pytest.mark.skipif(not GLIBC, reason="other allocators have other thresholds")
@pytest.mark.parametrize(("kept", "returned"), [(False, 1), (True, 0)])
def test_a_large_block_is_not_returned_when_it_is_freed(kept: bool, returned: int) -> None:
    done = subprocess.run([sys.executable, "-c", COUNT.format(kept=kept)], capture_output=True, check=True)
    assert int(done.stdout) == returned
