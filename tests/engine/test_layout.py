"""One layout for all chunks of a run: enough places, few of them empty."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from torch.utils._pytree import tree_leaves

from cloister.engine.chunking import constant_places
from cloister.engine.disk_cache import DiskCache
from cloister.engine.gradients import grad


def fed(name: str, expected: float, clients: int) -> SimpleNamespace:
    return SimpleNamespace(
        cohort=SimpleNamespace(name=name), denominator=expected, population=SimpleNamespace(clients=clients)
    )


@pytest.mark.parametrize(("expected", "most", "places"), [(50, 1000, 50), (50, 20, 17), (1000, 300, 250), (1, 9, 1)])
def test_cohorts_of_one_size_leave_no_place_empty(expected, most, places):
    assert constant_places(fed("fixed_size", expected, 10**6), most) == places


@pytest.mark.parametrize("expected", [3, 20, 120, 1000, 20_000])
def test_cohorts_that_are_drawn_rarely_need_another_chunk_and_waste_little(expected):
    """By simulation: 4,000 cohorts with a seed."""
    sizes = torch.poisson(torch.full((4000,), float(expected)), torch.Generator().manual_seed(0)).clamp(min=1)
    places = constant_places(fed("poisson", expected, 10**9), 10**9)
    used = (sizes / places).ceil() * places
    best = min(float(((sizes / p).ceil() * (p + 8)).mean()) for p in range(1, 2 * expected, max(1, expected // 50)))
    assert float(((sizes / places).ceil() * (places + 8)).mean()) < 1.05 * best
    assert used.mean() < expected + 3 * math.sqrt(expected) + 1


def test_processes_share_a_cohort():
    whole, part = (constant_places(fed("poisson", 120, 3000), 10**6, processes) for processes in (1, 4))
    assert whole / 4 <= part < whole / 2


def test_what_is_remembered_outlives_a_process_and_damage(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    DiskCache("x.json").remember("a", [1, 2])
    DiskCache("x.json").remember("b", "c")
    assert DiskCache("x.json").recall("a") == [1, 2]
    assert DiskCache("y.json").recall("a") is None
    (tmp_path / "cloister" / "x.json").write_text("[]")
    assert DiskCache("x.json").recall("a") is None
    (tmp_path / "cloister" / "x.json").write_text("{")
    DiskCache("x.json").remember("a", 3)
    assert DiskCache("x.json").recall("a") == 3
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cloister" / "x.json"))  # where nothing can be written
    nowhere = DiskCache("z.json")
    nowhere.remember("a", 4)
    assert nowhere.recall("a") == 4


@pytest.mark.parametrize("has_aux", [False, True])
@pytest.mark.parametrize("several", [False, True])
def test_gradients_are_those_of_torch(has_aux, several):
    """Under vmap, with arguments that the value does not depend on, and of a value that depends on none."""

    def function(argument, x):
        w = argument[0] if several else argument
        value = (torch.tanh(w @ x) ** 2).sum()
        return (value, w * 2) if has_aux else value

    w, x = torch.randn(4, 3, 5, dtype=torch.float64), torch.randn(4, 5, dtype=torch.float64)
    argument = (w, x.clone()) if several else w
    found = torch.func.vmap(grad(function, has_aux=has_aux))(argument, x)
    expected = torch.func.vmap(torch.func.grad(function, has_aux=has_aux))(argument, x)
    for one, other in zip(tree_leaves(found), tree_leaves(expected), strict=True):
        assert torch.equal(one, other)
        assert not one.requires_grad
    assert torch.equal(grad(lambda w: torch.ones(()))(w), torch.zeros_like(w))
