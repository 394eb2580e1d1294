"""One value has one text."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.deploy.wire.canonical import canonical, parse_canonical
from cloister.deploy.wire.refused import Refused
from cloister.errors import CloisterError

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


@given(VALUES)
def test_a_value_comes_back_as_it_was(value):
    again = parse_canonical(canonical(value))
    assert again == value
    assert repr(again) == repr(
        json.loads(json.dumps(value, sort_keys=True))
    )  # 1 and 1.0 and True are equal, not the same


def test_the_order_of_keys_does_not_count():
    assert canonical({"a": 1, "b": 2}) == canonical({"b": 2, "a": 1}) == b'{"a":1,"b":2}'


@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), (1, 2), {1: 2}, {None: 1}, b"bytes", {"a": {1, 2}}, object(), "\ud800", 2**5000],
)
def test_what_json_would_change_is_refused(value):
    with pytest.raises(CloisterError, match="Expected"):
        canonical(value)


@pytest.mark.parametrize(
    "text",
    [
        b'{"a": 1}',
        b'{"b":1,"a":2}',
        b'{"a":1,"a":1}',
        b"[1.00]",
        b"NaN",
        b"[1",
        b"\xff",
        b'"\\u0041"',
        b"[" * 100000,
        b"",
    ],
)
def test_another_text_of_a_value_is_refused(text):
    with pytest.raises(Refused, match="canonical JSON"):
        parse_canonical(text)
