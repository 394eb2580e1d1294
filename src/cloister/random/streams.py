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
from torch.overrides import handle_torch_function, has_torch_function_unary

from cloister.errors import CloisterError
from cloister.random.transformed import is_transformed

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
            draws = np.frombuffer(os.urandom(8 * count), dtype=np.uint64) >> np.uint64(1)
        elif device.type == "cuda":
            # random_() without a range takes 63 of 64 bits; randint would reduce them modulo another number.
            return torch.empty(count, dtype=torch.int64, device=device).random_(
                generator=self._cuda_generator(device, purpose, *position)
            )
        else:
            draws = self._generator(purpose, *position).bit_generator.random_raw(count)
            draws >>= np.uint64(1)  # in place: new memory takes as long as drawing
        return torch.from_numpy(draws.view(np.int64)).to(device)

    def protective_words(self, count: int, purpose: str, *position: int) -> Tensor:
        """`count` words of 64 random bits, on the host. Seeded ones come from the generator of float32's noise, which
        takes half as long as that of `protective_bits`."""
        if self.secure:
            return torch.from_numpy(np.frombuffer(os.urandom(8 * count), dtype=np.int64).copy())
        return torch.from_numpy(_GENERATORS.sfc(self._digest(24, purpose, *position)).random_raw(count).view(np.int64))

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
    3e10 should be.

    Computed where the result lies: new memory would have to be cleared first.
    """
    half = (count + 1) // 2
    normal = torch.empty(2 * half)
    normal.numpy()[:] = _GENERATORS.sfc(key).random_raw(half).view(np.uint32)
    radius, angle = normal[:half], normal[half:]
    radius.add_(1).mul_(2.0**-32).log_().mul_(-2).sqrt_()
    angle.mul_(2 * math.pi * 2.0**-32)
    cosine = torch.cos(angle)
    torch.mul(radius, angle.sin_(), out=angle)
    radius.mul_(cosine)
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


def uniform_pairs(key: Tensor, count: int) -> Tensor:
    """As `uniform`, two draws from each scrambled integer: half the work."""
    bits = fold(key, torch.arange((count + 1) // 2, device=key.device))
    halves = torch.cat([_shift_right(bits, 40), (bits >> 16) & 0xFFFFFF])
    return halves[:count].to(torch.float32) * 2.0**-24


def coins(key: Tensor, shape: torch.Size | tuple[int, ...], probability: float, skip: Tensor | None = None) -> Tensor:
    """Whether each of many coins, which is True with this probability (to 24 bits), falls on True, under one key.

    As `uniform`, in 32-bit arithmetic, of which a GPU does several times as much: the finalizer that Wellons found to
    have the least bias, over a position and one half of the key, with the other half in between.

    >>> coins(torch.tensor(1), (8,), 0.5).sum() < 8
    tensor(True)
    """
    if has_torch_function_unary(key):  # an engine may have a kernel that draws the same
        return handle_torch_function(coins, (key,), key, shape, probability, skip)
    count = math.prod(shape)
    if key.device.type == "cpu" and skip is None and not is_transformed(key):
        return _coins_by_blocks(int(key), count, limit_of(probability)).view(shape)
    places = torch.arange(count, dtype=torch.int32, device=key.device)
    if skip is not None:
        places = places + (skip * count).to(torch.int32)
    x = ~places * _STEP + key.to(torch.int32)  # written with bits: see `fold`
    x = (x ^ _shift_right(x, 16)) * _FACTORS[0] ^ (key >> 32).to(torch.int32)
    x = (x ^ _shift_right(x, 15)) * _FACTORS[1]
    x = x ^ _shift_right(x, 15)
    return (_shift_right(x, 8) < limit_of(probability)).view(shape)


_STEP, _FACTORS = 1640531527, (569420461, 1935289751)


def _coins_by_blocks(key: int, count: int, limit: int) -> Tensor:
    """The same on the host, some thousand at a time, while they are in the processor's cache: every pass over a new
    tensor costs more than its arithmetic."""
    found = np.empty(count, dtype=np.bool_)
    steps = _steps(min(count, _AT_ONCE))
    bits, shifted = np.empty_like(steps), np.empty_like(steps)
    high = np.uint32(key >> 32 & 0xFFFFFFFF)
    for first in range(0, count, _AT_ONCE):
        some = min(count - first, _AT_ONCE)
        x, y = bits[:some], shifted[:some]
        np.add(steps[:some], np.uint32((key - first * _STEP) % 2**32), out=x)
        for shift, factor in ((16, _FACTORS[0]), (15, _FACTORS[1])):
            np.right_shift(x, np.uint32(shift), out=y)
            np.bitwise_xor(x, y, out=x)
            np.multiply(x, np.uint32(factor), out=x)
            if shift == 16:
                np.bitwise_xor(x, high, out=x)
        np.right_shift(x, np.uint32(15), out=y)
        np.bitwise_xor(x, y, out=x)
        np.right_shift(x, np.uint32(8), out=x)
        np.less(x, np.uint32(limit), out=found[first : first + some])
    return torch.from_numpy(found)


@cache
def _steps(count: int) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    """What is added for positions 0, 1, ...: their complements, in steps."""
    return ~np.arange(count, dtype=np.uint32) * np.uint32(_STEP)


_AT_ONCE = 2**15


def limit_of(probability: float) -> int:
    """Below which number 24 random bits stay with this probability."""
    return math.ceil(probability * 2**24)


def _shift_right(x: Tensor, bits: int) -> Tensor:
    """The logical shift, which torch does not have for signed integers."""
    width = 32 if x.dtype == torch.int32 else 64
    return (x >> bits) & ((1 << (width - bits)) - 1)


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
    """Box-Muller over the system's bits; both uniforms have 53 bits, the radius never takes log(0).

    Some thousand at a time, while they are in the processor's cache: half the time for long vectors.
    """
    found = np.empty(count + count % 2)
    for first in range(0, len(found), 2 * _AT_ONCE):
        some = found[first : first + 2 * _AT_ONCE]
        half = len(some) // 2
        bits = _system_bits(2 * half)
        radius = np.sqrt(-2 * np.log((bits[:half] + np.uint64(1)) * 2.0**-53))
        angle = 2 * np.pi * (bits[half:] * 2.0**-53)
        np.multiply(radius, np.cos(angle), out=some[:half])
        np.multiply(radius, np.sin(angle), out=some[half:])
    return found[:count]
