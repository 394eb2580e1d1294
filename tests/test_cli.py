"""The command line as a user meets it: real processes, exit codes, and kill -9."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

import cloister
from cloister.methods import CATALOGUE, REGISTRY
from cloister.runs.folder import RunFolder

KEYS = ["clients=40", "rounds=4", "sampling_rate=0.5", "clip_norm=1.0", "lr=0.5", "local_steps=2", "delta=1e-2"]
NOISE = ["noise_multiplier=3.0"]
ENGINE = ["engine=vectorized"]
DOCS = Path(__file__).parent.parent / "docs"
PLAN = ["plan", "--clients", "9", "--rounds", "3", "--delta", "1e-3", "--epsilon", "1"]


def cloister_command(*words: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "cloister", *map(str, words)]
    return subprocess.run(
        command, capture_output=True, text=True, cwd=cwd, env={**os.environ, "COLUMNS": "100"}, check=False
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "a"
    done = cloister_command("run", *KEYS, *NOISE, *ENGINE, "--folder", folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_a_run_leaves_a_folder_and_says_where(finished):
    assert RunFolder.open(finished).finished
    assert (finished / "config.toml").is_file()


def test_help_is_helpful_everywhere(command):
    top = cloister_command("--help")
    assert top.returncode == 0
    for name in ("run", "resume", "plan", "keys", "show", "demo", "methods", "compare"):
        assert name in top.stdout
        page = command(name, "--help")
        assert page.returncode == 0
        assert "Usage:" in page.stdout


def test_methods_are_listed(command):
    listed = command("methods")
    assert listed.returncode == 0
    for name in CATALOGUE:
        assert name in listed.stdout
        assert REGISTRY[name].paper.split()[0] in listed.stdout
    assert list(json.loads(command("methods", "--json").stdout)) == list(CATALOGUE)
    one = command("methods", "lus")
    assert "Guarantee" in one.stdout
    assert "sparsity" in one.stdout
    assert command("methods", "luss").stderr.strip().endswith('perhaps you mean "lus".')


def test_methods_are_compared(command, tmp_path):
    file = tmp_path / "two-methods.toml"
    file.write_text(
        'epsilons = [4.0]\n[shared]\ndata = "digits"\nclients = 30\nlocal_steps = 1\nsampling_rate = 0.5\nrounds = '
        "2\ndelta = 1e-3\n"
        "clip_norm = 1.0\n[methods.fedavg]\n[methods.dp_fedavg]\n"
    )
    done = command("compare", str(file), "--folder", str(tmp_path / "runs"), "engine=vectorized", "--jobs", "1")
    assert done.returncode == 0, done.stderr
    assert re.search(r"^dp_fedavg +4 +0\.\d+ +[34]\.\d+ +0\.001$", done.stdout, re.MULTILINE)
    rows = json.loads((tmp_path / "runs" / "results.json").read_text())
    assert rows["command"] == f"cloister compare {file} engine=vectorized"
    rows = rows["rows"]
    assert [row["label"] for row in rows] == ["fedavg", "dp_fedavg"]
    assert rows[1]["epsilon"] <= 4
    assert (tmp_path / "runs" / "compare.png").stat().st_size > 5000


def test_methods_are_compared_without_a_file(command, tmp_path):
    words = ["data=digits", "method=[pfl,dp_fed]", "clients=5", "cohort=full", "local_epochs=1", "rounds=1"]
    folder = tmp_path / "runs"
    done = command("compare", *words, "epsilon=8", "delta=1e-3", "seed=[0,1]", "--folder", str(folder), "--jobs", "1")
    assert done.returncode == 0, done.stderr
    found = json.loads((folder / "results.json").read_text())
    assert [(row["label"], row["seeds"]) for row in found["rows"]] == [("pfl", [0, 1]), ("dp_fed", [0, 1])]
    assert "cloister compare data=digits 'method=[pfl,dp_fed]' clients=5" in found["command"], "as a shell takes it"
    nothing = command("compare")
    assert (nothing.returncode, "Expected a file, or keys of runs to compare" in nothing.stderr) == (2, True)
    told = shlex.split(nothing.stderr.split("try cloister ")[1].strip().removesuffix("."))
    tried = command(*told, "rounds=1", "seed=[0]", "--folder", str(tmp_path / "tried"), "--jobs", "1")
    assert "found 20 and 1: give it once" in tried.stderr, "what is told to try can be tried"


def test_version():
    assert cloister_command("--version").stdout.strip() == cloister.__version__


def test_show_prints_the_certificate_and_json(command, finished):
    text = command("show", finished)
    assert text.returncode == 0
    assert "PRIVACY CERTIFICATE" in text.stdout
    certificate = json.loads(command("show", finished, "--json").stdout)
    assert certificate["rounds_charged"] == 4


def test_show_compares_and_draws(command, finished, tmp_path):
    picture = tmp_path / "both.png"
    done = command("show", finished, finished, "--plot", picture)
    assert done.returncode == 0, done.stderr
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_resume_of_a_finished_run_says_so(command, finished):
    done = command("resume", finished)
    assert done.returncode == 0
    assert "already ended" in done.stdout


def test_options_can_be_written_both_ways(command, tmp_path):
    config = tmp_path / "run.toml"
    config.write_text("\n".join([*KEYS, "noise_multiplier=9.0"]))
    done = command("run", config, "--rounds", 2, "--noise-multiplier=3.5", "clip_norm=0.7", "--folder", tmp_path / "r")
    assert done.returncode == 0, done.stderr
    description = RunFolder.open(tmp_path / "r").description()
    assert description.rounds == 2
    assert description.method.mechanism.noise_multiplier == 3.5
    assert description.sensitivity == 0.7


def test_plan_prints_and_draws(command, tmp_path):
    done = command(
        "plan",
        "--clients",
        300,
        "--sampling-rate",
        0.5,
        "--rounds",
        20,
        "--epsilon",
        2,
        "--delta",
        "1/300",
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    for word in ("noise multiplier", "weak", "signal / noise", "add or remove one client"):
        assert word in done.stdout
    assert (tmp_path / "plan.png").is_file()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", *KEYS, *NOISE, "clip_nrm=1"], 'perhaps you mean "clip_norm"'),
        (["run", *KEYS, *NOISE, "momentum=-1"], "0 <= momentum < 1"),
        (["run", "clip_norm=-1", "local_steps=1", "rounds=1", "sampling_rate=0.5"], "clip_norm > 0"),
        (["run", "sampling_rate=1.5", "local_steps=1", "rounds=1", "clip_norm=1"], "0 < sampling_rate <= 1"),
        (["run", *KEYS, "clip_norm=2"], "Expected one value for clip_norm, found 1.0 and 2: give it once."),
        (["run", *KEYS, "--clip_norm", "2"], "Expected one value for clip_norm, found 1.0 and 2: give it once."),
        (["run", *KEYS, *NOISE, "memory=-1"], "memory to be a whole number of at least 1"),
        (["run", *KEYS, *NOISE, f"weight_decay=1{'0' * 40}"], "weight_decay <= 1e+18, found 1e+40"),
        (["run", *KEYS, *NOISE, f"weight_decay=1{'0' * 400}"], "found about 10^400"),
        (["run", *KEYS, *NOISE, f"weight_decay=1{'0' * 5000}"], "weight_decay >= 0 and finite"),
        (["run", *KEYS, "noise_multiplier=1e-300"], "between 0.001 and 1e+06"),
        (["run", *KEYS, "noise_multiplier=1e308"], "noise_multiplier <= 1e+18"),
        (["run", *KEYS, *NOISE, f"batch_size={2**63}"], "batch_size to be at most 1,000,000,000"),
        (
            ["plan", "--clients", "9", "--rounds", "3", "--delta", "1e-3", "--epsilon", "1", "--plot", "x.doc"],
            ".png,",
        ),
        ([*PLAN, "--plot", "x"], ".png,"),
        (["show", "nowhere", "--plot", "x.doc"], "a picture that ends in"),
        (["run", *KEYS, "epsilon=1e-9"], "some noise can reach"),
        (["run", *KEYS], "epsilon and delta, or a noise_multiplier"),
        (["run", "missing.toml"], "readable config file"),
        (["run", "--clip_norm"], "a value after --clip_norm"),
        (["run", "a.toml", "b.toml"], "one config file"),
        (["resume", "nowhere"], "folder of a run"),
        (["show", "nowhere"], "folder of a run"),
        (
            ["plan", "--clients", "9", "--rounds", "3", "--delta", "batch_sampling", "--epsilon", "1"],
            "delta to be a number",
        ),
        (["plan", "--clients", "9", "--rounds", "3", "--delta", "1e-3"], "either epsilon or noise_multiplier"),
        (["plan", "--clients", "9"], "Expected rounds, or both epsilon and noise_multiplier"),
        (["runn"], "No such command"),
    ],
)
def test_bad_input_is_one_sentence_status_2_and_nothing_written(command, tmp_path, words, message):
    done = command(*words, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    if done.stderr.startswith("error"):
        assert len(done.stderr.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_run_folder_that_exists_is_refused(command, finished):
    before = {path: path.read_bytes() for path in finished.iterdir()}
    done = command("run", *KEYS, *NOISE, "--folder", finished)
    assert done.returncode == 2
    assert "resume" in done.stderr
    assert before == {path: path.read_bytes() for path in finished.iterdir()}


@pytest.mark.parametrize("times", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_kill_minus_nine_and_resume_gives_the_same_bits(command, tmp_path, times):
    """The process is killed again and again, wherever it happens to be, until the run is done."""
    few = [key for key in KEYS if key != "rounds=4"]
    keys = [*few, *NOISE, *ENGINE, "rounds=31", "checkpoint_every=3", "server=adam"]
    assert command("run", *keys, "--folder", tmp_path / "whole").returncode == 0
    broken = tmp_path / "broken"
    program = [sys.executable, "-m", "cloister"]
    start = [*program, "run", *keys, "--folder", str(broken), "--quiet"]
    kills, target = 0, 5
    while kills < times:
        process = subprocess.Popen(start, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        while process.poll() is None and _charged(broken) < target:
            time.sleep(0.002)
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.communicate()
        assert process.returncode in (0, -signal.SIGKILL)
        kills, target = kills + 1, target + 7
        start = [*program, "resume", str(broken), "--quiet"]
        charged, saved = _charged(broken), RunFolder.open(broken).load("cpu").round
        assert charged >= saved, "the ledger never shows less than was released"
        assert len(RunFolder.open(broken).metrics()) <= charged
    assert command("resume", broken).returncode == 0
    whole, again = (load_file(folder / "model.safetensors") for folder in (tmp_path / "whole", broken))
    for name, tensor in whole.items():
        assert tensor.equal(again[name])
    ledgers = [(folder / "ledger.jsonl").read_bytes() for folder in (tmp_path / "whole", broken)]
    assert ledgers[0] == ledgers[1]


def _charged(folder: Path) -> int:
    try:
        return (folder / "ledger.jsonl").read_bytes().count(b"\n") - 1
    except FileNotFoundError:
        return 0


def test_damage_is_one_sentence_and_status_2(command, finished, tmp_path):
    for name in ("ledger.jsonl", "checkpoint.safetensors", "description.json"):
        folder = shutil.copytree(finished, tmp_path / name)
        (folder / "certificate.json").unlink()
        damaged = bytearray((folder / name).read_bytes())
        damaged[len(damaged) // 2] ^= 1
        (folder / name).write_bytes(bytes(damaged))
        done = command("resume", folder)
        assert done.returncode == 2
        assert done.stderr.startswith("error: Expected")
        assert len(done.stderr.strip().splitlines()) == 1


def test_the_demo_reaches_its_figures(tmp_path):
    """At least 0.90 test accuracy at user-level epsilon 2, delta 1e-3, on 300 clients.

    Noise depends on the machine that computes. Over 40 seeds the accuracy was 0.934 with a deviation of 0.0095, and
    0.914 at least: on another machine it is below 0.90 with probability 2e-4, and below 0.88 with 1e-8.
    """
    done = cloister_command("demo", "--folder", tmp_path / "demo")
    assert done.returncode == 0, done.stderr
    private = RunFolder.open(tmp_path / "demo" / "epsilon-2")
    assert private.metrics()[-1]["accuracy"] >= 0.88
    certificate = private.certificate()
    assert certificate.epsilon <= 2.0
    assert certificate.prices[0].delta == 1e-3
    for label in ("no privacy", "epsilon 8", "epsilon 2"):
        assert label in done.stdout
    assert (tmp_path / "demo" / "demo.png").is_file()
    _expect_quoted(tmp_path / "demo" / "demo.json")


def _expect_quoted(found: Path) -> None:
    """The demo gave the figures that the documents quote.

    What was spent is the same everywhere. The noise depends on the processor and on the versions of torch and numpy;
    over 40 seeds the accuracy at epsilon 2 had a deviation of 0.0095, so that two draws are 0.08 apart in one of 1e8
    cases at most.
    """
    now, broadcast = (json.loads(path.read_text()) for path in (found, DOCS / "digits.json"))
    alike = now["machine"] == broadcast["machine"]
    alike = alike and all(now["software"][name] == broadcast["software"][name] for name in ("torch", "numpy"))
    for row, quoted in zip(now["rows"], broadcast["rows"], strict=True):
        assert row["accuracy"] == pytest.approx(quoted["accuracy"], abs=1e-9 if alike else 0.08)
        for name in ("run", "epsilon", "delta", "epsilon at 1e-5", "noise", "rounds", "planned"):
            close = isinstance(row[name], float) and row[name] == pytest.approx(quoted[name], rel=5e-4)
            assert close or row[name] == quoted[name], name


def test_data_can_be_listed_and_looked_at(command, tmp_path):
    listed = command("data", "list", cwd=tmp_path)
    assert listed.returncode == 0
    for name in ("digits", "mnist", "cifar100", "shakespeare"):
        assert name in listed.stdout
    one = command("data", "list", "cifar10")
    assert "Krizhevsky" in one.stdout
    shown = command("data", "show", "digits", "partition=dirichlet", "alpha=0.3", "--clients", 12, cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert (tmp_path / "digits-dirichlet.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["data", "show"], "name of a data set"),
        (["data", "show", "digitz"], 'perhaps you mean "digits"'),
        (["data", "show", "digits", "partition=natural"], "know their owners"),
        (["data", "show", "mnist"], "cloister data get mnist"),
        (["data", "get", "nothing"], "found 'nothing'"),
        (["data", "show", "digits", "split_seed=-1"], "split_seed"),
        (["data", "show", "digits", "partition=[1]"], "one value for partition"),
        (["data", "show", "digits", "model=mlp"], "no choice but data, partition here"),
        (["data", "show", "digits", "--plot", "nowhere/at/all.png"], "a folder that exists"),
        (["data", "list", "nothing"], "found 'nothing'"),
    ],
)
def test_bad_data_requests_are_one_sentence(command, tmp_path, words, message, monkeypatch):
    monkeypatch.setenv("CLOISTER_DATA", str(tmp_path / "empty"))
    done = command(*words, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
