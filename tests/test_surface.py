"""The public names, and what an import costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

import cloister as cl


def test_every_public_name_exists():
    for name in cl.__all__:
        assert getattr(cl, name) is not None
    assert set(dir(cl)) == set(cl.__all__)


def test_a_wrong_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'epsilom'"):
        _ = cl.epsilom


@pytest.mark.parametrize(
    "statement", ["import cloister", "import cloister.cli.app", "import cloister; cloister.CloisterError"]
)
def test_heavy_imports_wait_until_they_are_needed(statement):
    heavy = ["torch", "dp_accounting", "matplotlib", "sklearn", "scipy", "numpy", "pandas"]
    code = f"import sys\n{statement}\nprint([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_interrupts_are_provided_for_before_anything_else_is_imported():
    code = "import sys, cloister.__main__\nprint([name for name in ('typer', 'rich') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
