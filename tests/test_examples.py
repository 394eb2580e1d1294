"""Every example runs as its docstring says, and prints what it promises."""

from __future__ import annotations

import contextlib
import io
import re
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest

from contract.data_files import CASES

EXAMPLES = Path(__file__).parent.parent / "examples"


def printed(name: str, *words: object) -> str:
    """What an example prints, run as its file would be."""
    shown, given = io.StringIO(), sys.argv
    sys.argv = [str(EXAMPLES / name), *map(str, words)]
    try:
        with contextlib.redirect_stdout(shown):
            runpy.run_path(sys.argv[0], run_name="__main__")
    finally:
        sys.argv = given
    return shown.getvalue()


def numbers(pattern: str, text: str) -> list[float]:
    return [float(number) for number in re.findall(pattern, text)]


@pytest.mark.slow
def test_first_private_model():
    text = printed("first_private_model.py")
    (accuracy,) = numbers(r"^accuracy ([\d.]+)", text)
    (epsilon,) = numbers(r"\nepsilon ([\d.]+) at delta 0\.001", text)
    assert accuracy > 0.85
    assert 1.9 < epsilon <= 2
    assert "PRIVACY CERTIFICATE" in text
    assert "budget: epsilon 2 at delta 0.001" in text


@pytest.mark.slow
def test_compare_methods():
    rows = dict(re.findall(r"^(\w+) +([\d. ]+)$", printed("compare_methods.py"), re.MULTILINE))
    assert list(rows) == ["dp_fedavg", "dp_fedsam", "fed_smp_rand_k"]
    for row in rows.values():
        accuracy, epsilon, noise = map(float, row.split())
        assert accuracy > 0.75
        assert 3.9 < epsilon <= 4
        assert noise > 0


@pytest.mark.slow  # and below, on the command line
def test_own_method():
    (accuracy,) = numbers(r"accuracy ([\d.]+)", printed("own_method.py"))
    assert accuracy > 0.7


def test_own_method_on_the_command_line(monkeypatch, tmp_path, command):
    """The commands of its docstring, with fewer rounds."""
    text = (EXAMPLES / "own_method.py").read_text()
    shown, trained = (line.split() for line in re.findall(r"^    cloister (.*)$", text, re.MULTILINE))
    monkeypatch.chdir(EXAMPLES)
    monkeypatch.setattr(sys, "path", [*sys.path])
    found = command(*shown)
    assert found.returncode == 0
    assert "fraction of the coordinates that is sent" in found.stdout
    found = command(*("rounds=2" if word == "rounds=30" else word for word in trained), "--folder", tmp_path / "run")
    assert found.returncode == 0, found.stderr
    assert 'method = "own_method:masked_normalized"' in (tmp_path / "run" / "config.toml").read_text()


@pytest.mark.slow
def test_sample_level_hospitals():
    text = printed("sample_level_hospitals.py")
    assert numbers(r"accuracy ([\d.]+)", text)[0] > 0.8
    accounts = re.findall(r"^(\w+) .* ([\d.]+) +([\d.]+)\s*$", text, re.MULTILINE)[-4:]
    budgets = [("Avon", 1), ("Brent", 1), ("Clyde", 2), ("Dee", 4)]
    assert [(client, float(budget)) for client, _, budget in accounts] == budgets
    assert all(0 < float(spent) <= float(budget) for _, spent, budget in accounts)


def test_server_and_nodes():
    text = printed("server_and_nodes.py")
    replies = numbers(r"(\d) replies", text)
    assert replies[0] == 3
    assert replies[-1] == 2, "the node with the smallest budget has stopped"
    assert numbers(r"accuracy ([\d.]+)", text)[-1] > 0.7
    spent = numbers(r"sample of client \d: epsilon ([\d.]+)", text)
    assert len(spent) == 3
    assert all(0 < used <= budget for used, budget in zip(spent, [1.0, 1.3, 4.0], strict=True))


def made_up_hospitals(folder: Path) -> Path:
    """Files like those of UCI heart disease: the sick are older, with slower hearts, and much was not measured."""
    random = np.random.default_rng(0)
    for hospital, count in (("cleveland", 90), ("hungarian", 70), ("switzerland", 40), ("va", 50)):
        lines = []
        for _ in range(count):
            sick = int(random.integers(2))
            known = [45 + 20 * sick, 1, 1 + 3 * sick, 140, 0 if random.random() < 0.3 else 240, 0, random.integers(3)]
            known += [170 - 50 * sick, sick, 2.5 * sick, 1 + sick, sick, 7 if sick else 3]
            cells = ["?" if place > 2 and random.random() < 0.2 else f"{cell:g}" for place, cell in enumerate(known)]
            lines.append(",".join([*cells, str(sick * int(random.integers(1, 5)))]))
        (folder / f"processed.{hospital}.data").write_text("\n".join(lines) + "\n")
    return folder


def test_hospitals_csv(tmp_path):
    text = printed("hospitals_csv.py", made_up_hospitals(tmp_path))
    planned = dict(re.findall(r"^(\w+) .*  ([\d.]+) +2 +[\d.]+$", text, re.MULTILINE))
    assert list(planned) == ["cleveland", "hungarian", "switzerland", "va"]
    assert all(1.99 < float(epsilon) <= 2 for epsilon in planned.values())
    assert numbers(r"<Run: accuracy ([\d.]+)", text)[0] > 0.85
    assert "clients: cleveland, hungarian, switzerland, va" in text
    assert "a noisy mean and mean square of the inputs" in text
    assert text.endswith("63 years old: sick\n")


def test_own_cnn(monkeypatch, tmp_path):
    """On a few pictures of noise in the files' own format, where there is nothing to be learned."""
    case = CASES["qmnist"]
    case.write(tmp_path, case.rows(0), case.rows(1))
    monkeypatch.setenv("CLOISTER_DATA", str(tmp_path))
    text = printed("own_cnn.py", "2")
    assert re.search(r"<Task qmnist: \d+ clients, .* of 1x28x28", text)
    assert all(3.9 < epsilon <= 4 for epsilon in numbers(r"<Run: .* epsilon ([\d.]+) at delta 0.0001, 2 rounds", text))
    assert "protected unit: one client" in text


def made_up_patients(folder: Path) -> Path:
    """Files like those of TCGA-BRCA: who is older dies earlier, and a code of a site is NA."""
    random = np.random.default_rng(0)
    sites = {"A2": "West", "AO": "Northeast", "NA": "South", "BH": "Midwest", "E9": "Europe", "HN": "Canada"}
    lines = [f"{code},somewhere,USA,XX,{region}" for code, region in {**sites, "PL": "Other"}.items()]
    (folder / "centers.csv").write_text("\n".join(["TSS Code,Source Site,Country,State,Region", *lines]) + "\n")
    rows = ["pid,age_at_index,race_white,E,T"]
    for number in range(700):
        code, age = [*sites, "PL"][number % 7], random.integers(30, 90)
        days, ended = random.exponential(4000 * np.exp(-(age - 60) / 10)), random.exponential(3000)
        rows.append(
            f"TCGA-{code}-{number:04},{age},{random.integers(2)},{float(days <= ended)},{min(days, ended):.0f}.0"
        )
    (folder / "brca.csv").write_text("\n".join(rows) + "\n")
    return folder


@pytest.mark.slow
def test_survival_six_regions(tmp_path):
    text = printed("survival_six_regions.py", made_up_patients(tmp_path))
    assert "<Task tcga_brca: 6 clients, " in text, "those of no region are left out"
    free, private = numbers(r"concordance ([\d.]+) on", text)
    assert free > 0.7
    assert private > 0.65
    spent = re.findall(r"epsilon ([\w.]+) at delta 0.0001", text)
    assert spent[0] == "inf"
    assert 3.9 < float(spent[1]) <= 4
    assert len(re.findall("<ClientScores: concordance of 6 clients: .*, not private>", text)) == 2
    assert "protected unit: one sample" in text


@pytest.mark.slow
def test_shakespeare_lora(monkeypatch, tmp_path):
    """At its small scale: there is no text in an empty folder."""
    monkeypatch.setenv("CLOISTER_DATA", str(tmp_path))
    text = printed("shakespeare_lora.py")
    accuracies = dict(re.findall(r"^(adapters|all parameters|public alone) +accuracy ([\d.]+)", text, re.MULTILINE))
    assert list(accuracies) == ["adapters", "all parameters", "public alone"]
    assert float(accuracies["adapters"]) > 0.9 * float(accuracies["public alone"]) > 0.1, "adapters keep what is known"
    assert all(7.9 < epsilon <= 8 for epsilon in numbers(r"epsilon ([\d.]+)", text))
    adapters, everything = (int(found.replace(",", "")) for found in re.findall(r"([\d,]+) bytes", text))
    assert adapters < everything / 2


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_examples_are_short_and_tested(path):
    text = path.read_text()
    assert len(text.splitlines()) < 60
    assert f"python examples/{path.name}" in text, "its docstring says how it is run"
    assert f"def test_{path.stem}(" in Path(__file__).read_text()
