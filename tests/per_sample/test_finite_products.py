"""Sums of rows times factors: what is not finite counts as zero, for one client, for many, and in a traced program."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cloister.client.per_sample.products import finite_product
from cloister.engine.compilation import Compiled, traced


def made(*batch, dtype=torch.float64, spoiled=True):
    random = torch.Generator().manual_seed(3)
    factors = torch.randn(*batch, 3, 8, generator=random, dtype=dtype)
    rows = torch.randn(*batch, 8, 40, generator=random, dtype=dtype)
    if spoiled:  # a sample of some client, which does not count, and single numbers of others
        factors[..., 2] = 0
        rows.view(-1, 8, 40)[0, 2] = torch.inf
        rows.view(-1, 8, 40)[-1, 5, 7:10] = torch.tensor([torch.nan, -torch.inf, torch.inf])
    return factors, rows


def by_hand(factors, rows):
    clean = np.where(np.isfinite(rows.numpy()), rows.numpy(), 0.0)
    return torch.from_numpy(np.einsum("...mb,...bn->...mn", factors.numpy(), clean))


@pytest.mark.parametrize("spoiled", [False, True])
def test_what_is_not_finite_counts_as_zero(spoiled):
    factors, rows = made(spoiled=spoiled)
    torch.testing.assert_close(finite_product(factors, rows), by_hand(factors, rows))


@pytest.mark.parametrize("spoiled", [False, True])
def test_many_clients_at_once(spoiled):
    factors, rows = made(5, spoiled=spoiled)
    found = torch.func.vmap(finite_product)(factors, rows)
    torch.testing.assert_close(found, by_hand(factors, rows))
    shared = torch.func.vmap(finite_product, in_dims=(None, 0))(factors[1], rows)
    torch.testing.assert_close(shared, by_hand(factors[1].expand_as(factors), rows))
    last = torch.func.vmap(finite_product, in_dims=(2, 1))(factors.permute(1, 2, 0), rows.transpose(0, 1))
    torch.testing.assert_close(last, by_hand(factors, rows))


def test_nested_maps():
    factors, rows = made(2, 4)
    found = torch.func.vmap(torch.func.vmap(finite_product))(factors, rows)
    torch.testing.assert_close(found, by_hand(factors, rows))


def test_a_program_that_was_traced_without_such_numbers_meets_them():
    """The look at the result is part of the program, and not decided when it is traced."""
    program = Compiled(lambda *given: (torch.func.vmap(finite_product)(*given),), traced, patience=0)
    for spoiled in (False, True, False):
        factors, rows = made(5, spoiled=spoiled)
        torch.testing.assert_close(program(factors, rows)[0], by_hand(factors, rows))


def test_a_sum_that_overflows_is_left_as_it_is():
    """Numbers that are finite are never taken for others, also where their sum is not."""
    factors, rows = torch.ones(1, 2), torch.full((2, 3), 3e38)
    rows[:, 1] = 1.0
    assert finite_product(factors, rows).tolist() == [[torch.inf, 2.0, torch.inf]]
