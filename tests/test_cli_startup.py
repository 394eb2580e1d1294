"""What needs no tensors does not import torch, nor anything else that takes long."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import cloister as cl
from cloister.runs import catalogue
from cloister.runs.signatures import introspected
from conftest import toy_task

HEAVY = (
    *("torch", "numpy", "scipy", "pandas", "matplotlib", "dp_accounting", "sklearn", "torchmetrics", "PIL"),
    *("safetensors", "pyarrow", "tensorboard", "mlflow", "opacus", "plotly", "jinja2", "reportlab"),
    *("fastapi", "uvicorn", "httpx"),
)
PRICING = ("numpy", "scipy", "dp_accounting", "safetensors")
"""What it takes to read a run and to price it."""

COMMANDS = (
    *("run", "resume", "plan", "keys", "show", "report", "landscape", "theory", "methods", "compare", "tune", "demo"),
    *("audit", "attack", "predict", "export", "keys new", "keys show", "serve", "join"),
    *("publish", "certificate", "verify", "completion", "reproduce", "studio"),
    *("federation", "federation init", "federation terms", "federation trial", "federation status"),
)
LIGHT = [
    *("", "--help", "--version", "data --help"),
    *(f"{name} --help" for name in COMMANDS),
    *(f"data {name} --help" for name in ("list", "get", "show", "inspect")),
    *("run method=pfl rounds=3 --help", "run --method dp_ftrl --help"),
    *("keys", "keys pfl", "keys pfl data=mnist model=cnn", "keys fedavg server=adam", "keys data=shakespeare"),
    *("completion bash", "completion fish -- ru", "completion fish -- run method=pfl l"),
    *("completion zsh -- reproduce d", "completion zsh -- run model=", "completion fish -- show --p"),
    *("methods", "methods --json", "methods pfl", "data list", "data list mnist"),
]
SLIPS = [
    *("nothing", "--nothing", "data", "run a b", "run rounds", "run nothing.toml", "run rounds=2 rounds=3"),
    *(
        "run method=nothing",
        "run colour=red",
        "run rounds=few",
        "run rounds=3",
        "run data=nothing",
        "run data=./nothing",
    ),
    *("run method=pfl factorization=tree rounds=2", "run method=nothing --help"),
    *("keys pfll", "keys colour=red", "keys model=3", "methods nothing", "data list nothing", "data get nothing"),
    *("data show", "data show nothing", "data show digits colour=red", "show", "compare", "compare nothing.toml"),
    *("plan colour=red", "plan method=nothing", "plan rounds=few", "plan sampling_rate=0.1 clients_per_round=3"),
    *(
        "completion",
        "completion tcsh",
        "tune",
        "tune rounds=3",
        "tune epsilon=1..2",
        "tune lr=1..x",
        "tune lr=0.1..1",
        "tune lr=0.1..1 --on test",
    ),
    *("plan rounds=3 sizes=[3] data=digits", "demo --seed few", "predict", "export"),
    *("audit colour=red", "audit method=nothing", "audit rounds=few", "audit --kind none", "audit --output x"),
    *("attack", "attack nothing", "attack a b", "attack a --kind none"),
    *("keys new", "keys show", "keys show nothing.key", "keys new no/such/folder.key"),
    *("federation init", "federation terms", "federation trial", "federation status", "serve", "join"),
    *("studio nothing", "verify", "verify nothing", "publish", "publish a", "certificate", "certificate nothing"),
    *("join https://a", "join https://a --data a --key k", "join https://a --data a --key k --limit few"),
]
RUNNER = """
import contextlib, io, json, sys
from cloister.__main__ import main
from cloister.runs import catalogue

catalogue._sources_are_newer = lambda: False  # as in an installation
heavy, found = set(json.loads(sys.argv[1])), {}
for words in json.loads(sys.argv[2]):
    sys.argv, code = ["cloister", *words.split()], 0
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
    found[words] = [code, len(out.getvalue()), len(err.getvalue()), sorted(heavy & set(sys.modules))]
print(json.dumps(found))
"""


def imported_by(commands: list[str], heavy: tuple[str, ...], cwd) -> dict[str, list]:
    """For every command, one after the other in a process: status, length of its output and errors, and what is
    imported by then."""
    words = [sys.executable, "-c", RUNNER, json.dumps(heavy), json.dumps(commands)]
    return json.loads(subprocess.run(words, capture_output=True, text=True, check=True, cwd=cwd).stdout)


def test_help_and_lists_import_nothing_heavy(tmp_path):
    for words, (code, out, _, heavy) in imported_by(LIGHT, HEAVY, tmp_path).items():
        assert heavy == [], words
        assert out > 0, words
        assert code == 0, words


def test_slips_are_refused_before_anything_heavy_is_imported(tmp_path):
    for words, (code, _, err, heavy) in imported_by(SLIPS, HEAVY, tmp_path).items():
        assert heavy == [], words
        assert (code, err > 0) == (2, True), words


def test_a_run_is_shown_without_torch(tmp_path):
    method = cl.methods.dp_fedavg(clip_norm=1.0, lr=0.1, local_steps=1)
    for name in ("one", "two"):
        cl.run(method, toy_task(), rounds=2, epsilon=4.0, delta=1e-2, folder=tmp_path / name)
    assert "cloister" in sys.modules
    commands = ["show one", "show one two", "show one --json", "resume nothing", "show nothing"]
    for words, (code, _, _, heavy) in imported_by(commands, HEAVY, tmp_path).items():
        assert set(heavy) <= set(PRICING), words
        assert code == (2 if "nothing" in words else 0), words


@pytest.mark.parametrize(
    "words",
    [
        *(
            "run --help",
            "run method=pfl --help",
            "plan --help",
            "keys",
            "keys dp_ftrl",
            "keys data=shakespeare targets=every",
        ),
        *(
            "methods",
            "methods --json",
            "methods pfl",
            "run colour=red",
            "run method=fed",
            "keys pfl factorization=tree",
        ),
        *("plan rounds=few", "plan method=pfl colour=red", "data show digits colour=red", "run rounds=3"),
    ],
)
def test_the_file_and_the_functions_say_the_same(command, monkeypatch, tmp_path, words):
    by_file = command(*words.split(), cwd=tmp_path)
    monkeypatch.setattr(catalogue, "stored", introspected)
    by_functions = command(*words.split(), cwd=tmp_path)
    assert (by_file.returncode, by_file.stdout, by_file.stderr) == (
        by_functions.returncode,
        by_functions.stdout,
        by_functions.stderr,
    )
    assert by_file.stdout or by_file.stderr
