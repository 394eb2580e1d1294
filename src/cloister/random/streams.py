"""Random streams: every draw is a function of (run seed, purpose, round, client), or comes from the system.

Because no draw depends on the order in which others are made, the loop, vectorized, chunked and resumed runs
agree. Two kinds of source:

* seeded: reproducible, for simulation. Whoever knows the seed can subtract the noise.
* secure: the operating system's generator, for the draws that protect somebody (who takes part, and the
  noise). What protects nobody (initialization, batches, dropout) stays seeded.
"""

from __future__ import annotations

import hashlib
import math
import os
import threading
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cloister.errors import CloisterError

_GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed 64-bit integer


@dataclass(frozen=True)
class Streams:
    """The random streams of one run."""

    seed: int
    secure: bool = False
    run: str = ""
    """What tells this run from others with the same seed: two runs must not share their noise."""
    repeatable: bool = True
    """Whether a round that is computed again gives the same bits. If not, it is a new release, with new noise."""

    @property
    def replays(self) -> bool:
        """Whether a round that is played again releases the same bits, and so nothing new."""
        return self.repeatable and not self.secure

    def key(self, purpose: str, *position: int) -> int:
        """A 64-bit key (signed) for a purpose and a place in the run."""
        text = "/".join([str(self.seed), purpose, *map(str, position)])
        digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big", signed=True)

    def protective_uniform(self, count: int, purpose: str, *position: int) -> Tensor:
        """`count` uniform float64 draws from [0, 1) with 53 random bits each."""
        if self.secure:
            return torch.from_numpy(_system_bits(count) * 2.0**-53)
        return torch.from_numpy(self._generator(purpose, *position).random(count))

    def protective_integers(self, count: int, below: int, purpose: str, *position: int) -> Tensor:
        """`count` whole numbers from 0 to `below` - 1, each exactly equally likely."""
        if self.secure:
            return torch.from_numpy(_system_integers(count, below))
        return torch.from_numpy(self._generator(purpose, *position).integers(below, size=count))

    def protective_bits(self, count: int, device: torch.device, purpose: str, *position: int) -> Tensor:
        """`count` whole numbers of 63 random bits each."""
        if self.secure:
            draws = np.frombuffer(os.urandom(8 * count), dtype=np.uint64)
        elif device.type == "cuda":
            # random_() without a range takes 63 of 64 bits; randint would reduce them modulo another number.
            return torch.empty(count, dtype=torch.int64, device=device).random_(
                generator=self._cuda_generator(device, purpose, *position)
            )
        else:
            draws = self._generator(purpose, *position).bit_generator.random_raw(count)
        return torch.from_numpy((draws >> np.uint64(1)).view(np.int64)).to(device)

    def protective_normal(self, like: Tensor, purpose: str, *position: int) -> Tensor:
        """Standard normal draws in the shape, type and place of `like`, whose numbers are real."""
        if not like.is_floating_point():
            raise CloisterError(
                f"Expected a floating type for Gaussian noise, found {like.dtype}: discrete noise is for whole numbers."
            )
        if self.secure:
            draws = _system_normal(like.numel())
        elif like.is_cuda:
            generator = self._cuda_generator(like.device, purpose, *position)
            return torch.randn(like.shape, generator=generator, dtype=like.dtype, device=like.device)
        else:
            if like.dtype == torch.float32:
                return _float32_normal(like.numel(), self._digest(24, purpose, *position)).view(like.shape)
            draws = self._generator(purpose, *position).standard_normal(like.numel())
        return torch.from_numpy(draws).view(like.shape).to(like)

    def subset(self, count: int, of: int, device: torch.device, purpose: str, *position: int) -> Tensor:
        """`count` of the numbers 0 to `of` - 1, sorted; nothing that protects anybody."""
        if device.type == "cuda":  # drawn where it is needed: a copy would wait for all that was queued
            generator = self._cuda_generator(device, purpose, *position)
            return torch.randperm(of, generator=generator, device=device)[:count].sort().values
        chosen = torch.zeros(of, dtype=torch.bool)
        picked = self._generator(purpose, *position).choice(of, count, replace=False, shuffle=False)
        chosen[torch.from_numpy(picked)] = True
        return chosen.nonzero().flatten().to(device)

    def signs(self, count: int, like: Tensor, purpose: str, *position: int) -> Tensor:
        """Random signs, in the type and place of `like`; nothing that protects anybody."""
        if like.is_cuda:
            generator = self._cuda_generator(like.device, purpose, *position)
            return torch.randint(2, (count,), generator=generator, device=like.device).to(like.dtype) * 2 - 1
        bits = np.frombuffer(self._generator(purpose, *position).bytes(-(-count // 8)), dtype=np.uint8)
        return torch.from_numpy(np.unpackbits(bits)[:count]).to(like.device).to(like.dtype) * 2 - 1

    def _cuda_generator(self, device: torch.device, purpose: str, *position: int) -> torch.Generator:
        seed = self.key(f"{self.run}/{purpose}", *position) & (2**63 - 1)
        return torch.Generator(device).manual_seed(seed)

    def _generator(self, purpose: str, *position: int) -> np.random.Generator:
        """NumPy's Philox with a key of 128 bits; torch's CPU generator would keep only 32 bits of its seed.

        Each thread has one, which is given a new key: making one asks the system for bits that nobody wants. What it
        draws must be drawn before the next is asked for.
        """
        return _GENERATORS.philox(int.from_bytes(self._digest(16, purpose, *position), "big"))

    def _digest(self, size: int, purpose: str, *position: int) -> bytes:
        text = "/".join([str(self.seed), self.run, purpose, *map(str, position)])
        return hashlib.blake2b(text.encode(), digest_size=size).digest()


class _Generators(threading.local):
    """Generators that are given a new state: as new ones, at a fraction of the cost."""

    def __init__(self) -> None:
        self._philox, self._sfc = np.random.Philox(key=0), np.random.SFC64(0)
        self._generator = np.random.Generator(self._philox)
        self._philox_state: Any = self._philox.state
        self._sfc_state: Any = self._sfc.state

    def philox(self, key: int) -> np.random.Generator:
        self._philox_state["state"]["key"][:] = (key & (2**64 - 1), key >> 64)
        self._philox.state = self._philox_state
        return self._generator

    def sfc(self, key: bytes) -> np.random.SFC64:
        """Doty-Humphrey's SFC64, started from 192 bits as its author has it: a counter of one, twelve rounds ahead."""
        self._sfc_state["state"]["state"][:] = (*np.frombuffer(key, dtype=np.uint64), 1)
        self._sfc.state = self._sfc_state
        self._sfc.random_raw(12, output=False)
        return self._sfc


_GENERATORS = _Generators()


def _float32_normal(count: int, key: bytes) -> Tensor:
    """Normal draws by Box and Muller, several times as fast as NumPy's. None is beyond 6.66 deviations, which one in
    3e10 should be."""
    half = (count + 1) // 2
    uniform = torch.from_numpy(_GENERATORS.sfc(key).random_raw(half).view(np.uint32).astype(np.float32))
    radius, angle = uniform[:half], uniform[half:]
    radius.add_(1).mul_(2.0**-32).log_().mul_(-2).sqrt_()
    angle.mul_(2 * math.pi * 2.0**-32)
    normal = torch.empty(2 * half)
    torch.mul(radius, torch.cos(angle), out=normal[:half])
    torch.mul(radius, angle.sin_(), out=normal[half:])
    return normal[:count]


def mix(x: Tensor) -> Tensor:
    """Scramble 64-bit integers (the finalizer of SplitMix64; Steele, Lea & Flood 2014), elementwise.

    Pure integer arithmetic on tensors, so it gives the same bits on every device, under `vmap` and in a
    compiled graph. Not a cryptographic generator: only for draws that protect nobody.
    """
    x = (x ^ _shift_right(x, 30)) * -4658895280553007687
    x = (x ^ _shift_right(x, 27)) * -7723592293110705685
    return x ^ _shift_right(x, 31)


def fold(key: Tensor, position: Tensor | int) -> Tensor:
    """A new key for a position under a key; broadcasts.

    >>> keys = fold(torch.tensor(1), torch.arange(1000))
    >>> len(set(keys.tolist()))
    1000
    """
    if isinstance(position, int):  # wrapped by hand: a constant, and nothing to send to the device
        return mix(key + (((position + 1) * _GOLDEN + 2**63) % 2**64 - 2**63))
    # (position + 1) * _GOLDEN, written with bits: Inductor reckons with sums of positions beyond 64 bits, and gives up.
    return mix(key + ~position * -_GOLDEN)


def uniform(key: Tensor, shape: torch.Size | tuple[int, ...], skip: Tensor | None = None) -> Tensor:
    """Uniform float32 draws from [0, 1) under one key, after `skip` times as many others."""
    count = math.prod(shape)
    places = torch.arange(count, device=key.device)
    bits = fold(key, places if skip is None else places + skip * count)
    return (_shift_right(bits, 40).to(torch.float32) * 2.0**-24).view(shape)


def at_least(threshold: float, key: Tensor, shape: torch.Size | tuple[int, ...]) -> Tensor:
    """`uniform(key, shape) >= threshold`, a few thousand at a time, while they are in the processor's cache.

    For a key on the host, and outside of all transforms, where every pass over a new tensor costs more than its
    arithmetic.
    """
    count = math.prod(shape)
    found = np.empty(count, dtype=np.bool_)
    smallest = math.ceil(np.float32(threshold) * 2.0**24) << 40  # of the bits whose upper 24 make a number as large
    if smallest >= 2**64:
        return torch.zeros(shape, dtype=torch.bool)
    steps = _steps(min(count, _AT_ONCE))
    bits, shifted = np.empty_like(steps), np.empty_like(steps)
    start = int(key)
    for first in range(0, count, _AT_ONCE):
        some = min(count - first, _AT_ONCE)
        x, y = bits[:some], shifted[:some]
        np.add(steps[:some], np.uint64((start + first * _GOLDEN) % 2**64), out=x)
        for shift, factor in ((30, -4658895280553007687), (27, -7723592293110705685)):
            np.right_shift(x, np.uint64(shift), out=y)
            np.bitwise_xor(x, y, out=x)
            np.multiply(x, np.uint64(factor % 2**64), out=x)
        np.right_shift(x, np.uint64(31), out=y)
        np.bitwise_xor(x, y, out=x)
        np.greater_equal(x, np.uint64(smallest), out=found[first : first + some])
    return torch.from_numpy(found).view(shape)


@cache
def _steps(count: int) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    """What `fold` adds for positions 0, 1, ..."""
    return np.arange(1, count + 1, dtype=np.uint64) * np.uint64(_GOLDEN % 2**64)


_AT_ONCE = 2**15


def uniform_pairs(key: Tensor, count: int) -> Tensor:
    """As `uniform`, two draws from each scrambled integer: half the work."""
    bits = fold(key, torch.arange((count + 1) // 2, device=key.device))
    halves = torch.cat([_shift_right(bits, 40), (bits >> 16) & 0xFFFFFF])
    return halves[:count].to(torch.float32) * 2.0**-24


def _shift_right(x: Tensor, bits: int) -> Tensor:
    """The logical shift, which torch does not have for signed integers."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _system_bits(count: int) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    return np.frombuffer(os.urandom(8 * count), dtype=np.uint64) >> np.uint64(11)


def _system_integers(count: int, below: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """As many bits as `below` - 1 has; what is too large is drawn again, for a remainder would prefer small ones."""
    mask = np.uint64(2 ** (below - 1).bit_length() - 1)
    found = np.empty(0, dtype=np.int64)
    while len(found) < count:
        draws = np.frombuffer(os.urandom(16 * count), dtype=np.uint64) & mask
        found = np.concatenate([found, draws[draws < below].astype(np.int64)])
    return found[:count]


def _system_normal(count: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Box-Muller over the system's bits; both uniforms have 53 bits, the radius never takes log(0)."""
    half = (count + 1) // 2
    radius = np.sqrt(-2 * np.log((_system_bits(half) + np.uint64(1)) * 2.0**-53))
    angle = 2 * np.pi * (_system_bits(half) * 2.0**-53)
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]
