"""The command line in clumsy hands: Ctrl-C, folders that are taken, help, and what comparisons leave unsaid."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cloister.runs import training
from cloister.runs.report import settings_text
from cloister.studies.planning import planned
from cloister.studies.settings import differing

KEYS = [
    "clients=20",
    "rounds=2",
    "sampling_rate=0.5",
    "clip_norm=1.0",
    "local_steps=1",
    "delta=1e-2",
    "noise_multiplier=3.0",
    "engine=loop",
]
FILE = """
epsilons = [4.0]
[shared]
data = "digits"
clients = 20
local_steps = 1
sampling_rate = 0.5
rounds = 1
delta = 1e-2
clip_norm = 1.0
engine = "loop"
[methods.fedavg]
[methods.dp_fedavg]
[methods.dp_fedsam]
"""


@pytest.fixture(autouse=True)
def _somewhere(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def comparison(tmp_path) -> Path:
    path = tmp_path / "methods.toml"
    path.write_text(FILE)
    return path


@pytest.mark.parametrize("module", ["typer", "torch"])
def test_an_interrupt_while_modules_are_imported_is_no_traceback(module, tmp_path):
    """The module that is imported presses Ctrl-C itself, and goes on as if nothing were."""
    (tmp_path / f"{module}.py").write_text(
        "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(9)\n"
    )
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-m", "cloister", "run", *KEYS, "--folder", tmp_path / "run"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
        check=False,
    )
    assert done.returncode == 130
    assert done.stderr.split() == ["interrupted"]
    assert not (tmp_path / "run").exists()


def test_an_interrupt_of_the_work_says_how_it_goes_on(command, comparison, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(training, "run_round", interrupted)
        done = command("run", *KEYS, "--folder", "run")
        assert (done.returncode, done.stderr) == (130, "interrupted; continue it with `cloister resume run`\n")
        assert command("compare", comparison, "--folder", "many", "--jobs", "1").returncode == 130
        patch.setattr("cloister.runs.run.prepare", interrupted)
        done = command("run", *KEYS, "--folder", "other")
        assert (done.returncode, done.stderr) == (130, "interrupted; nothing was written yet\n")
    assert command("resume", "run").returncode == 0
    assert command("compare", comparison, "--folder", "many", "--jobs", "1").returncode == 0


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_a_folder_with_something_else_in_it_is_refused_before_the_work(command, comparison, tmp_path, monkeypatch):
    assert command("run", *KEYS, "--folder", "taken").returncode == 0
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "thoughts.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "half" / "fedavg").mkdir(parents=True)
    before = contents(tmp_path)
    monkeypatch.setattr("cloister.runs.run.prepare", lambda *_, **__: pytest.fail("the work had begun"))
    for name, found in [
        ("taken", "certificate.json in taken"),
        ("notes", "thoughts.txt in notes"),
        ("file", "found that file is a file"),
        ("half", "fedavg in half"),
    ]:
        for words in (["demo"], ["compare", comparison, "--jobs", "1"]):
            done = command(*words, "--folder", name)
            assert done.returncode == 2
            assert done.stderr.startswith("error: Expected a new folder")
            assert found in done.stderr
            assert len(done.stderr.splitlines()) == 1
    assert contents(tmp_path) == before


def test_a_plain_file_is_not_to_be_resumed(command, tmp_path):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "empty").mkdir()
    for name, found in (("file", "file exists and is no folder: choose another."), ("empty", "empty exists: choose")):
        done = command("run", *KEYS, "--folder", name)
        assert done.returncode == 2
        assert found in done.stderr
        assert "resume" not in done.stderr


def test_a_comparison_that_was_killed_while_a_folder_was_made_goes_on(command, comparison, tmp_path):
    (tmp_path / "many" / ".fedavg.4711").mkdir(parents=True)
    (tmp_path / "many" / "results.json.new").write_text("{")
    assert command("compare", comparison, "--folder", "many", "--jobs", "1").returncode == 0
    (tmp_path / "many" / "fedavg" / "config.toml").write_text("rounds = 3\n")
    assert "the settings with which" in command("compare", comparison, "--folder", "many", "--jobs", "1").stderr


def test_a_comparison_says_which_settings_differ(command, comparison, tmp_path):
    done = command("compare", comparison, "--folder", "many", "--jobs", "1")
    assert done.returncode == 0, done.stderr
    assert "Settings in which the methods differ" in done.stdout
    for line in (
        "clip_norm 1.0, but -: fedavg",
        "momentum 0.0, but 0.5: dp_fedsam",
        "weight_decay 0.0, but 0.0005: dp_fedsam",
    ):
        assert line in done.stdout
    assert "lr_decay 1.0, but 0.998: dp_fedsam" in done.stdout
    assert "rounds" not in done.stdout.split("Settings in which")[1]
    rows = {row["label"]: row for row in json.loads((tmp_path / "many" / "results.json").read_text())["rows"]}
    assert rows["dp_fedsam"]["settings"] == {
        "batch_size": 32,
        "momentum": 0.5,
        "weight_decay": 0.0005,
        "lr_decay": 0.998,
        "clip_norm": 1.0,
    }
    assert rows["dp_fedavg"]["settings"]["momentum"] == 0.0
    assert rows["fedavg"]["settings"]["clip_norm"] is None


def test_settings_that_are_the_same_are_said_to_be(comparison):
    comparison.write_text(FILE.replace("[methods.dp_fedsam]", "").replace("[methods.fedavg]", ""))
    assert settings_text(differing(planned(comparison, []))).strip() == (
        "All settings that the methods share are the same."
    )


@pytest.mark.parametrize(
    ("epsilons", "message"),
    [
        ("3", "Expected epsilons to be a list of numbers, found 3: write epsilons = [8.0, 2.0] on top."),
        ('["2"]', "Expected epsilons to be positive numbers, found '2'"),
        ("[nan]", "positive numbers, found nan"),
        ("[true]", "positive numbers, found True"),
        ("[[1]]", "positive numbers, found [1]"),
        ("[-1]", "positive numbers, found -1"),
    ],
)
def test_epsilons_of_a_comparison_are_numbers(command, comparison, epsilons, message):
    done = command("compare", comparison, f"epsilons={epsilons}")
    assert done.returncode == 2
    assert message in done.stderr


@pytest.mark.parametrize("words", [["resume"], ["plan"], ["show"], ["methods"], ["data", "get"], ["data", "list"]])
def test_help_is_plain_and_has_a_word_for_every_argument(command, words):
    page = command(*words, "--help").stdout
    assert "\\[" not in page
    assert "Positional" not in page
    assert "[required]" in page or words[-1] in ("methods", "list", "plan")
    arguments = page.partition("Arguments:\n")[2].partition("\n\n")[0].splitlines()
    assert all(len(line.split()) > 2 for line in arguments)
