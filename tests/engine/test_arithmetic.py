"""What decides how sums are rounded here, and what does not."""

from __future__ import annotations

import pytest
import torch

from cloister.engine.arithmetic import arithmetic

CPU = torch.device("cpu")


@pytest.mark.parametrize("name", ["KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK"])
def test_what_importing_scikit_learn_sets_changes_nothing(name, monkeypatch):
    monkeypatch.delenv(name, raising=False)
    before = arithmetic(CPU)
    monkeypatch.setenv(name, "other")
    assert arithmetic(CPU) == before


@pytest.mark.parametrize(
    "name", ["KMP_DETERMINISTIC_REDUCTION", "MKL_CBWR", "ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA"]
)
def test_what_makes_libraries_take_other_kernels_is_noticed(name, monkeypatch):
    monkeypatch.delenv(name, raising=False)
    before = arithmetic(CPU)
    monkeypatch.setenv(name, "other")
    assert arithmetic(CPU) != before
