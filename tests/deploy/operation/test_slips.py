"""Slips on the command line of a federation: one sentence each."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from cloister.cli.app import app
from cloister.deploy.terms import Terms
from cloister.errors import CloisterError
from deploy.halves.federations import PFL, tables


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["federation", "terms", "t.toml", "--node", "ann", "--rows", "-1"], "--rows to be a whole number of at least"),
        (["federation", "terms", "t.toml", "--rows", "3"], "Expected --node beside --rows"),
        (["verify", __file__], "certificates or receipts (.json)"),
        (["verify", "nowhere"], "found nothing at nowhere"),
    ],
)
def test_slips_are_told(words, message):
    error = CliRunner().invoke(app, words).exception
    assert isinstance(error, CloisterError)
    assert message in str(error)


def test_terms_have_no_data_and_say_so():
    with pytest.raises(CloisterError, match=r"Expected no choice but method, model, .* here, found 'data': remove it"):
        Terms.from_tables(tables({**PFL, "data": "mnist"}))
