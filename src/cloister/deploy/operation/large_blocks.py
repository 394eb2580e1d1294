"""Memory for large messages, kept by the process between one message and the next."""

from __future__ import annotations

import ctypes

_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1
"""Parameters of glibc's `mallopt`."""
_LARGEST, _KEPT = 2**30, 2**31 - 1


def keep_large_blocks() -> bool:
    """Let blocks of up to a gigabyte be used again rather than given back; whether the system's library can.

    glibc asks the kernel for each block above 32 MiB anew, and every page of it has to be zeroed before it is written.
    A round with 11 million parameters moves some thirty copies of 44 MB: half of its time went there. The process keeps
    the memory that its largest round took, which is what a server or a node needs in the next round.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another library than glibc, or none that can be asked
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _LARGEST)) and bool(mallopt(_TRIM_THRESHOLD, _KEPT))
