"""Tensors that are read without torch are those that torch wrote."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load, save

from cloister.core.hashing import hash_of
from cloister.runs.tensor_file import hash_of_stored, read_tensors

TYPES = [
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.bool, torch.complex64),
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float8_e4m3fn, torch.float8_e5m2),
]


def tensors_of(dtype: torch.dtype) -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(0)
    whole = torch.randint(0, 100, (3, 4), generator=random)
    pieces = {"w": whole, "state/a": whole[0], "none": whole[:0], "one": whole[1, 2]}
    return {name: piece.clone().to(dtype) for name, piece in pieces.items()}


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_every_type_is_read_as_it_was_written(dtype):
    tensors = tensors_of(dtype)
    stored, facts = read_tensors(save(tensors, {"round": "3"}))
    assert facts == {"round": "3"}
    assert stored.keys() == tensors.keys() == load(save(tensors)).keys()
    for name, tensor in tensors.items():
        found = stored[name].tensor()
        assert (found.dtype, found.shape) == (tensor.dtype, tensor.shape)
        assert stored[name].dtype == str(tensor.dtype)
        assert hash_of({"x": found}) == hash_of({"x": tensor})  # to the bit
    for about in ("", "words"):
        assert hash_of_stored(stored, about) == hash_of(tensors, about)


def test_a_hash_tells_names_types_shapes_and_bytes_apart():
    w = torch.arange(6, dtype=torch.float32)
    others = [{"v": w}, {"w": w.view(torch.int32)}, {"w": w.reshape(2, 3)}, {"w": w + 1}, {"w": w, "b": w[:0]}]
    hashes = {hash_of_stored(read_tensors(save(one))[0]) for one in ({"w": w}, *others)}
    assert len(hashes) == 1 + len(others)


def test_what_is_damaged_holds_nothing():
    whole = save(tensors_of(torch.float32), {"round": "3"})
    header = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}).encode()
    wrong = len(header).to_bytes(8, "little") + header + bytes(4)
    for damaged in (b"", b"\0", whole[:-1], whole[:40], whole[8:], whole + b"\0", wrong, bytes(64), b"\xff" * 64):
        assert read_tensors(damaged) == ({}, {})
