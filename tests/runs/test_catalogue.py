"""The stored catalogue says what the functions say, and where it might not, they are asked."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import os
import pkgutil
import tomllib
from pathlib import Path

import pytest

import cloister
from cloister.errors import CloisterError
from cloister.runs import catalogue
from cloister.runs.catalogue import ask, from_json, leads_outside, stored, text_of, to_json
from cloister.runs.choices import PARTS
from cloister.runs.resolution import grouped_keys, values_of
from cloister.runs.signatures import introspected


def test_the_file_says_what_the_functions_say():
    remedy = "keys or texts have changed: run `python -m cloister.runs.catalogue`, and commit the file with them"
    assert catalogue.FILE.read_text(encoding="utf-8") == text_of(introspected()), remedy


def test_nothing_is_lost_on_the_way_to_the_file_and_back():
    live, found = introspected(), from_json(json.loads(text_of(introspected())))
    for part in PARTS:
        assert list(found.choices[part]) == list(live.choices[part])
        for option, choice in live.choices[part].items():
            assert found.choices[part][option] == choice
    for name in ("own_data", "run", "plan", "plan_help", "model_input"):
        assert getattr(found, name) == getattr(live, name)
    assert to_json(found) == to_json(live)
    assert len(found.all_keys()) > 300


def test_a_changed_default_or_type_is_noticed():
    known = json.loads(text_of(introspected()))
    key = known["choices"]["method"]["pfl"]["keys"]["lr"]
    for change in ({"default": key["default"] * 2}, {"kinds": ["int"]}, {"help": "something else"}):
        changed = json.loads(json.dumps(known))
        changed["choices"]["method"]["pfl"]["keys"]["lr"] |= change
        other = from_json(changed)
        assert other.choice("method", "pfl") != introspected().choice("method", "pfl")
        assert text_of(other) != text_of(introspected())


def test_a_refusal_is_confirmed_by_sources_that_are_newer(monkeypatch, tmp_path):
    old = json.loads(text_of(introspected()))
    del old["choices"]["method"]["pfl"]
    monkeypatch.setattr(catalogue, "stored", lambda: from_json(old))
    package = tmp_path / "cloister"
    (package / "runs").mkdir(parents=True)
    file, source = package / "runs" / "catalogue.json", package / "methods.py"
    file.write_text("{}")
    source.write_text("")
    monkeypatch.setattr(catalogue, "FILE", file)
    with pytest.raises(CloisterError, match="Expected method to be one of"):
        ask(lambda known: known.method_keys("pfl"))  # both were written at the same time
    os.utime(source, (file.stat().st_mtime + 3600,) * 2)
    assert ask(lambda known: known.method_keys("pfl")) == introspected().method_keys("pfl")
    with pytest.raises(CloisterError, match="found 'pfll'"):
        ask(lambda known: known.method_keys("pfll"))
    assert catalogue._sources_are_newer(), "as long as the file says something else"
    file.write_text(text_of(introspected()), encoding="utf-8")
    os.utime(file, (source.stat().st_mtime - 7200,) * 2)
    assert catalogue._sources_are_newer()
    os.utime(source)
    with pytest.raises(CloisterError, match="found 'pfll'"):
        ask(lambda known: known.method_keys("pfll"))
    assert not catalogue._sources_are_newer(), "once it was found to be the same"


@pytest.mark.parametrize(
    ("values", "outside"),
    [
        ({}, False),
        ({"method": "pfl", "data": "digits", "rounds": 3}, False),
        ({"method": "laboratory.methods:own"}, True),
        ({"model": "laboratory.models:Net"}, True),
        ({"data": "hospitals/"}, True),
        ({"data": "patients.csv"}, True),
        ({"data": "./nothing"}, False),
        ({"rounds": "1:2", "method": 3}, False),
    ],
)
def test_what_lies_outside_is_not_asked_of_the_file(monkeypatch, tmp_path, values, outside):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hospitals").mkdir()
    (tmp_path / "patients.csv").write_text("")
    assert leads_outside(values) == outside


def test_functions_of_other_packages_are_described_by_themselves(monkeypatch, tmp_path):
    (tmp_path / "laboratory_models.py").write_text(
        "def net(shape: tuple, classes: int, width: int = 7):\n    return None\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    (key,) = stored().keys_of("model", "laboratory_models:net")
    assert (key.name, key.default, key.owner) == ("width", 7, "model laboratory_models:net")


def test_the_file_comes_with_an_installation():
    root = Path(__file__).parents[2]
    packaged = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["cloister"]
    assert str(catalogue.FILE.relative_to(Path(cloister.__file__).parent)) in packaged


@pytest.mark.parametrize("name", ["cloister", "cloister.data", "cloister.runs.report"])
def test_names_that_are_imported_late_are_the_same_for_type_checkers(name):
    package = importlib.import_module(name)
    tree = ast.parse(Path(package.__file__).read_text())
    (checked,) = [one for one in tree.body if isinstance(one, ast.If) and ast.unparse(one.test) == "TYPE_CHECKING"]
    places = {alias.name: one.module for one in checked.body for alias in one.names}
    assert set(places) == set(package.__all__) == set(dir(package))
    for one, module in places.items():
        found = getattr(importlib.import_module(module), one, None) or importlib.import_module(f"{module}.{one}")
        assert getattr(package, one) is found
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = package.nothing


@pytest.mark.parametrize("name", ["cloister", "cloister.data", "cloister.runs.report"])
def test_no_module_takes_the_place_of_a_name_that_is_imported_late(name):
    package = importlib.import_module(name)
    modules = {one.name for one in pkgutil.iter_modules(package.__path__)} & set(package.__all__)
    assert all(getattr(package, one) is importlib.import_module(f"{name}.{one}") for one in modules)


@pytest.mark.parametrize("data", sorted(stored().choices["data"]))
def test_listed_defaults_are_those_that_a_run_takes(data):
    """A data set may have others than the parts that deal and train it."""
    for keys in grouped_keys(stored(), {"data": data}).values():
        given = [key for key in keys if key.owner != "choice" and key.default is not inspect.Parameter.empty]
        taken = values_of(given, {"data": data})
        assert {key.name: key.default for key in given if key.default is not None} == taken
