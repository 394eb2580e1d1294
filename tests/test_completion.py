"""Completion by the Tab key: what is offered where, and that shells really get it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import typing
from pathlib import Path

import pytest
import typer

from cloister.cli import attack, audit, show
from cloister.cli.app import app
from cloister.cli.completion import words
from cloister.cli.completion.candidates import candidates
from cloister.cli.completion.command import answer
from cloister.engine import ENGINES
from cloister.methods import CATALOGUE
from cloister.runs.export import FORMATS
from cloister.runs.metric_catalogue import CATALOGUE as METRICS
from cloister.runs.recorded import NAMES
from cloister.runs.request import DTYPES
from cloister.runs.signatures import introspected
from cloister.runs.trackers import _IN_FOLDER
from cloister.studies.papers.files import titles
from cloister.studies.papers.scale import NAMED
from cloister.studies.tuning.on import On

TOP = typer.main.get_command(app)


def offered(line: str) -> list[str]:
    """What may follow, as whole words; a line that ends in a space begins a new one."""
    *before, word = line.split(" ")
    return [one.value for one in candidates(TOP, before, word)]


@pytest.fixture
def runs(tmp_path, monkeypatch) -> Path:
    """Three runs, of which one has not ended, and a comparison."""
    for name in ("runs/done", "runs/broken", "runs/compared/one", "elsewhere/third"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "description.json").touch()
        if name != "runs/broken":
            (tmp_path / name / "certificate.json").touch()
    (tmp_path / "pfl.toml").write_text('method = "pfl"\nrounds = 3\n')
    (tmp_path / "rows.csv").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_commands():
    assert offered("ru") == ["run"]
    assert {"run", "show", "data", "federation", "completion"} <= set(offered(""))
    assert not [one for one in offered("") if one.startswith("-") or " " in one]
    assert "--version" in offered("--v")
    assert offered("data ") == ["list", "get", "show", "inspect"]
    assert offered("federation tr") == ["trial"]
    assert offered("nothing ") == []
    assert offered("data nothing ") == []


def test_options_and_their_values():
    assert offered("run --fo") == ["--folder"]
    assert "--quiet" in offered("run --")
    assert offered("audit --kind one") == ["one_run", "one_shot"]
    assert offered("export run --format ") == ["onnx", "torchscript", "safetensors"]
    assert offered("run --learning") == []


def test_keys_are_those_of_the_chosen_method(runs):
    pfl = {key.name for key in introspected().keys_of("method", "pfl")}
    found = offered("run method=pfl ")
    assert {f"{name}=" for name in pfl} <= set(found)
    assert "method=" not in found, "it is given"
    assert "factorization=" not in found
    assert "factorization=" in offered("run method=dp_ftrl ")
    assert "factorization=" in offered("run --method dp_ftrl ")
    assert "local_epoch=" in offered("run pfl.toml ")
    assert "--local_epoch" in offered("run pfl.toml --local_e")
    assert "rounds=" not in offered("run pfl.toml ")
    assert "sizes=" in offered("plan method=pfl ")
    assert "rounds=" not in offered("keys pfl ")
    assert "schema=" in offered("run data=./rows.csv ")


def test_values_of_keys(runs):
    for part, known in introspected().choices.items():
        assert offered(f"run {part}=") == [f"{part}={name}" for name in known]
    assert offered("run lr_schedule=co") == ["lr_schedule=constant", "lr_schedule=cosine"]
    assert offered("run secure_rng=") == ["secure_rng=true", "secure_rng=false"]
    assert offered("run engine=v") == ["engine=vectorized"]
    assert offered("run metrics=accuracy,f") == ["metrics=accuracy,f1"]
    assert offered("run --method pf") == ["pfl"]
    assert offered("run lr=") == []
    assert offered("run data=./ro") == ["data=./rows.csv"]
    assert offered("run data=./rows.csv schema=pf") == ["schema=pfl.toml"]


def test_names(runs):
    assert offered("methods ") == list(CATALOGUE)
    assert offered("methods pfl ") == []
    assert set(CATALOGUE) <= set(offered("keys "))
    assert {"new", "show"} <= set(offered("keys "))
    assert set(titles()) <= set(offered("reproduce "))
    assert "mnist" in offered("data get ")


def test_files_and_runs(runs):
    assert "pfl.toml" in offered("run ")
    assert "rows.csv" not in offered("run ")
    assert "pfl.toml" not in offered("run pfl.toml ")
    assert "rows.csv" in offered("predict runs/done ")
    assert offered("show ") == ["runs/broken", "runs/compared/", "runs/done", "elsewhere/"]
    assert offered("resume runs/") == ["runs/broken", "runs/compared/"]
    assert offered("show runs/compared/") == ["runs/compared/one"]
    assert offered("report runs/d") == ["runs/done"]
    assert offered("publish runs/done -o el") == ["elsewhere/"]


def test_nothing_of_others_is_imported(tmp_path, monkeypatch):
    (tmp_path / "lab.py").write_text("raise RuntimeError('a key press has imported this')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert "rounds=" in offered("run method=lab:mine ")
    assert "lab" not in sys.modules


@pytest.mark.parametrize(
    "line", ["run =", "run ==", "run x=", "run \x00", "show \x00", "run method=[1] ", "data show ", "-", "run --=", " "]
)
def test_odd_words_are_no_errors(line):
    offered(line)


def test_config_files_that_cannot_be_read_are_left_out(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe.toml")  # which nobody writes into: whoever reads it waits
    Path("deep.toml").write_text("a=" + "[" * 100_000)
    Path("large.toml").write_text('method = "pfl"\n' + "#" * 2**20)
    for name in ("pipe", "deep", "large", "missing"):
        assert "method=" in offered(f"run {name}.toml ")


def test_names_with_line_breaks_are_not_offered(runs):
    (runs / "runs" / "a\n$(touch made)").mkdir()
    assert not [one for one in offered("show runs/") if "touch" in one]


def test_bash_replaces_what_follows_the_sign(runs):
    (runs / "runs" / "my run").mkdir()
    (runs / "runs" / "my run" / "description.json").touch()
    assert answer(TOP, "bash", ["cloister run method=pf"]) == ["pfl"]
    assert answer(TOP, "bash", ["cloister show runs/my"]) == ["runs/my\\ run"]
    assert answer(TOP, "bash", ["cloister show 'runs/my"]) == ["runs/my\\ run"]
    assert answer(TOP, "bash", ["cloister run met"]) == ["method=", "metrics="]
    (other,) = answer(TOP, "zsh", ["run", "method=pf"])
    assert other.startswith("method=pfl\t"), "whole words, with what they mean"


def test_the_words_are_those_of_the_sources():
    assert words.KEYS["engine"] == ENGINES
    assert words.KEYS["dtype"] == tuple(DTYPES)
    assert set(words.KEYS["metrics"]) == set(METRICS)
    assert words.KEYS["record"] == NAMES
    assert words.KEYS["log"] == tuple(_IN_FOLDER)
    assert words.OPTIONS["export", "--format"] == tuple(FORMATS)
    assert words.OPTIONS["audit", "--kind"] == audit._KINDS
    assert words.OPTIONS["attack", "--kind"] == attack._KINDS
    assert words.OPTIONS["show", "--of"] == show._PICTURES
    assert words.OPTIONS["tune", "--on"] == typing.get_args(On)
    assert words.OPTIONS["reproduce", "--scale"] == NAMED
    known = {key.name for key in introspected().all_keys()}
    assert {*words.KEYS, *words.FILES} <= known
    for name, option in words.OPTIONS:
        assert option in [text for one in TOP.commands[name].params for text in one.opts]


@pytest.fixture
def program(tmp_path) -> Path:
    """A program of that name in a folder of its own."""
    path = tmp_path / "bin" / "cloister"
    path.parent.mkdir()
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m cloister "$@"\n')
    path.chmod(0o755)
    return path


def in_shell(shell: str, script: str, program: Path, cwd: Path) -> list[str]:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    quiet = {"bash": ["--norc"], "zsh": ["-f"], "fish": ["--no-config"]}[shell]
    environment = {**os.environ, "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        [shell, *quiet, "-c", script], capture_output=True, text=True, check=True, cwd=cwd, env=environment
    )
    assert done.stderr == ""
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("cloister run method=pf", ["pfl"]),
        ("cloister sho", ["show"]),
        ("cloister show runs/d", ["runs/done"]),
        ("cloister run method=pfl local_epoch=", ["pass", "batch"]),
    ],
)
def test_bash_gets_what_it_asks_for(runs, program, line, expected):
    script = (
        'source <(cloister completion bash); complete -p cloister >/dev/null || exit 1; COMP_LINE="' + line + '"; '
        'COMP_POINT=${#COMP_LINE}; _cloister_completion cloister; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    assert in_shell("bash", script, program, runs) == expected


def test_bash_leaves_names_escaped_where_they_match_files(runs, program):
    for name in ("$(touch made)", "a*b"):
        (runs / "runs" / name).mkdir()
        (runs / "runs" / name / "description.json").touch()
    script = (
        "source <(cloister completion bash); shopt -s nullglob; COMP_LINE='cloister show runs/'; "
        'COMP_POINT=${#COMP_LINE}; _cloister_completion cloister; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    found = in_shell("bash", script, program, runs)
    assert {r"runs/\$\(touch\ made\)", r"runs/a\*b"} <= set(found)
    assert not (runs / "made").exists()


def test_fish_gets_what_it_asks_for(runs, program):
    script = "cloister completion fish | source; complete -C 'cloister run method=pf'"
    assert [line.split("\t")[0] for line in in_shell("fish", script, program, runs)] == ["method=pfl"]


def test_zsh_reads_its_script(runs, program):
    script = "source <(cloister completion zsh) && print $_comps[cloister]"
    assert in_shell("zsh", script, program, runs) == ["_cloister_completion"]


def test_another_shell_is_refused(command):
    done = command("completion", "tcsh")
    assert done.returncode == 2
    assert "bash, zsh, fish" in done.stderr
