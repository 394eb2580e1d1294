"""Blocks that are freed are used again: no page is asked of the kernel a second time."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

SCRIPT = """
import resource
from cloister.deploy.operation.large_blocks import keep_large_blocks

def faults(times=10):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(times):
        bytearray(48 * 2**20)[::4096] = b"x" * (48 * 2**20 // 4096)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

before = faults()
assert keep_large_blocks()
faults(2)
print(before, faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it asks glibc")
def test_large_blocks_are_used_again():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    before, after = map(int, done.stdout.split())
    assert after < before / 5
