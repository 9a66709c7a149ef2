"""Freed memory stays with the process: the pages of a second round of large tensors are there already."""

import platform
import subprocess
import sys

import pytest

COUNT = """
import resource, torch
torch.set_num_threads(1)
from bara_pyro.fast.kept_memory import keep_freed
if {kept}:
    keep_freed()
def layers():
    for _ in range(20):
        tensors = [torch.ones(2**19) for _ in range(6)]
        del tensors
layers()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
layers()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators have other thresholds")
def test_a_second_round_of_large_tensors_needs_no_new_pages() -> None:
    def faults(kept: bool) -> int:
        done = subprocess.run(
            [sys.executable, "-c", COUNT.format(kept=kept)], capture_output=True, check=True
        )
        return int(done.stdout)

    pages = 20 * 6 * 2**21 // 4096
    assert faults(True) < pages // 10 < faults(False)
