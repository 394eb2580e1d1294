"""What a release will hold and say: cheap checks of what `make release` finds out by building."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

import pytest

from release.contents import ROOT, differences, expected_in_wheel, in_sdist, in_wheel, tracked
from versions import minimal, pythons, record

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SETUPTOOLS = PROJECT["tool"]["setuptools"]
under_version_control = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a repository")


def matched(name: str, pattern: str) -> bool:
    """As setuptools does it: * stays within a folder, ** does not."""
    return PurePosixPath(name).match(pattern) and ("**" in pattern or name.count("/") == pattern.count("/"))


@under_version_control
def test_every_file_of_the_package_is_packed():
    """A wheel holds modules of packages, and what package-data names."""
    patterns = SETUPTOOLS["package-data"]["cloister"]
    for name in sorted(expected_in_wheel(tracked())):
        if not name.startswith("cloister/"):
            continue
        inside = name.removeprefix("cloister/")
        if inside.endswith(".py"):
            packages = [ROOT / "src" / parent for parent in PurePosixPath(name).parents if str(parent) != "."]
            assert all((folder / "__init__.py").is_file() for folder in packages), f"{name} lies in no package"
        else:
            assert any(matched(inside, pattern) for pattern in patterns), f"package-data lacks {inside}"


@under_version_control
def test_no_pattern_is_left_over():
    names = [name.removeprefix("src/cloister/") for name in tracked()]
    for pattern in SETUPTOOLS["package-data"]["cloister"]:
        assert any(matched(name, pattern) for name in names), pattern
    for patterns in SETUPTOOLS["data-files"].values():
        for pattern in patterns:
            assert list(ROOT.glob(pattern)), pattern


@under_version_control
def test_the_source_distribution_has_every_tracked_file():
    lines = [line.split() for line in (ROOT / "MANIFEST.in").read_text().splitlines()]
    grafted = [f"{folder}/" for line in lines if line[:1] == ["graft"] for folder in line[1:]]
    included = [pattern for line in lines if line[:1] == ["include"] for pattern in line[1:]]
    for name in tracked() - {"pyproject.toml", "MANIFEST.in"}:
        top = "/" not in name and any(fnmatch(name, pattern) for pattern in included)
        assert top or name.startswith(tuple(grafted)), f"MANIFEST.in lacks {name}"


def test_metadata_agree_with_the_documents():
    project = PROJECT["project"]
    cited = (ROOT / "CITATION.cff").read_text()
    assert f"version: {project['version']}\n" in cited
    assert f"license: {project['license']}\n" in cited
    assert f"## {project['version']}" in (ROOT / "CHANGELOG.md").read_text()
    for name in ("3.11", "3.12", "3.13"):
        assert f"Programming Language :: Python :: {name}" in project["classifiers"]
    assert project["requires-python"] == ">=3.11"
    assert project["readme"] == "README.md"


def test_every_extra_is_documented():
    """In the README's table, with what it brings."""
    table = re.search(r"<!-- extras -->\n(.*?)<!-- end of extras -->", (ROOT / "README.md").read_text(), re.DOTALL)
    assert table is not None
    documented = set(re.findall(r"^\| `(\w+)` \|", table[1], re.MULTILINE))
    assert documented == set(PROJECT["project"]["optional-dependencies"])


def floors(requirements: list[str]) -> dict[str, str]:
    found = (re.match(r"([\w.-]+)>=([\w.]+)", one) for one in requirements)
    return {one[1].lower(): one[2] for one in found if one}


def test_the_lowest_versions_are_those_that_are_tested():
    """constraints-minimal.txt has the floors of pyproject.toml; of torch there is no small build of that age."""
    lines = (ROOT / "constraints-minimal.txt").read_text().splitlines()
    tested = {name.lower(): number for name, _, number in (line.partition("==") for line in lines if "==" in line)}
    extras = PROJECT["project"]["optional-dependencies"]
    listed = floors(PROJECT["project"]["dependencies"])
    for extra in ("scattering", "hdf5", "parquet", "report", "tune", "onnx", "tensorboard"):
        listed |= floors(extras[extra])
    for name, floor in listed.items():
        if name != "torch":
            assert re.fullmatch(rf"{re.escape(floor)}(\.0)*", tested[name]), f"{name}: {floor} and {tested[name]}"


def test_the_contents_are_compared():
    assert differences("a", {"x", "y"}, {"y", "z"}) == ["a lacks z", "a has x, which is not under version control"]


@pytest.mark.slow
@under_version_control
def test_what_is_built_holds_what_is_tracked(tmp_path):
    pytest.importorskip("build", reason="make release does it, in an environment of its own")
    setuptools = pytest.importorskip("setuptools")
    if int(setuptools.__version__.partition(".")[0]) < 77:
        pytest.skip("setuptools is older than pyproject.toml wants")
    files = tracked()
    for name in files:
        target = tmp_path / "tree" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, target)
    (tmp_path / "tree" / "tests" / "__pycache__").mkdir()
    (tmp_path / "tree" / "tests" / "__pycache__" / "a.cpython-311.pyc").touch()
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tmp_path / "dist")]
    subprocess.run([*command, str(tmp_path / "tree")], check=True, capture_output=True)
    (wheel,), (sdist,) = (list(Path(tmp_path / "dist").glob(pattern)) for pattern in ("*.whl", "*.tar.gz"))
    assert differences("wheel", in_wheel(wheel), expected_in_wheel(files)) == []
    assert differences("sdist", in_sdist(sdist), files) == []


def test_what_is_tested_with_other_versions_is_there():
    for name in (*minimal.TESTS, *pythons.light_tests()):
        assert (ROOT / name).exists(), name
    assert len(pythons.light_tests()) > 10
    assert {"torch", "numpy", "dp-accounting"} <= set(record.dependencies())


def test_results_are_counted_and_written(tmp_path, monkeypatch):
    file = tmp_path / "test_two.py"
    file.write_text("import pytest\ndef test_a(): pass\ndef test_b(): assert False\ndef test_c(): pytest.skip('no')\n")
    found = record.run_tests(sys.executable, ["-q", "--noconftest", f"--rootdir={tmp_path}", str(file)])
    assert found == {"status": 1, "passed": 1, "failed": 1, "skipped": 1}
    monkeypatch.setattr(record, "FILE", tmp_path / "versions.json")
    record.write("b", {"python": "3.12"})
    record.write("a", {"python": "3.11"})
    record.write("b", {"python": "3.13"})
    assert json.loads(record.FILE.read_text()) == {"a": {"python": "3.11"}, "b": {"python": "3.13"}}
