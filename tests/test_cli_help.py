"""Help: it fits a screen, nothing in it is cut off, and every key can be found."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
from dataclasses import replace
from typing import Annotated

import pytest

from cloister.cli.output import program
from cloister.core.arguments import Group, flat_arguments
from cloister.data.defaults import defaults_of
from cloister.runs.choices import PARTS
from cloister.runs.keys import in_groups
from cloister.runs.request import Options
from cloister.runs.signatures import introspected, keys_in

SCREEN = (40, 100)


def lines_of(page) -> list[str]:
    assert page.returncode == 0, page.stderr
    return page.stdout.splitlines()


def expect_whole(lines: list[str], width: int) -> None:
    assert max(map(len, lines)) <= width
    assert not [line for line in lines if line != line.rstrip() or "…" in line or "\\[" in line]


def test_the_help_of_a_run_fits_a_screen(command):
    lines = lines_of(command("run", "--help"))
    assert len(lines) <= SCREEN[0]
    expect_whole(lines, SCREEN[1])
    page = "\n".join(lines)
    for word in (*PARTS, "cloister keys METHOD", "cloister methods", "cloister data list"):
        assert word in page
    for key in introspected().run:
        assert re.search(rf"\b{key.name}\b", page)
    for part in PARTS.values():
        assert part.default in page


@pytest.mark.parametrize(
    "name",
    [
        *("plan", "keys", "resume", "show", "report", "compare", "demo", "methods", "tune", "reproduce", "landscape"),
        *("theory", "audit", "attack", "predict", "export", "keys new", "keys show", "serve", "join"),
        *("publish", "certificate", "verify", "completion", "studio"),
        *("federation", "federation init", "federation terms", "federation trial", "federation status"),
    ],
)
def test_the_help_of_every_command_fits_a_screen(command, name):
    lines = lines_of(command(*name.split(), "--help"))
    assert len(lines) <= SCREEN[0]
    expect_whole(lines, SCREEN[1])


def test_help_with_keys_is_about_the_method_that_is_chosen(command):
    page = command("run", "method=pfl", "rounds=3", "--help").stdout
    for key in introspected().keys_of("method", "pfl"):
        assert f"  {key.name} " in page
    assert "checkpoint_every" not in page
    assert "cloister keys pfl" in page
    assert "  factorization " in command("run", "--method", "dp_ftrl", "--help").stdout


def described(page: str, key) -> bool:
    """Whether a key is there with its default and all of its meaning, which may be wrapped."""
    flat = " ".join(page.split())
    return f" {key.name} {key.shown_default} {key.help}".replace("  ", " ") in flat


@pytest.mark.parametrize(
    ("part", "option"), [(part, option) for part, known in introspected().choices.items() for option in known]
)
def test_every_key_of_every_choice_is_in_keys(command, part, option):
    if part == "server":
        words = ["dp_fedavg", f"server={option}"]
    else:
        words = [option] if part == "method" else [f"{part}={option}"]
    lines = lines_of(command("keys", *words))
    expect_whole(lines, SCREEN[1])
    page = "\n".join(lines)
    own = defaults_of(option if part == "data" else PARTS["data"].default, {})  # the data set's, where it has some
    for key in introspected().keys_of(part, option):
        assert described(page, replace(key, default=own.get(key.name, key.default))), key.name
    for key in introspected().run:
        assert described(page, key), key.name


@pytest.mark.parametrize("columns", [60, 80, 100, 200])
def test_the_width_of_the_terminal_is_respected(command, monkeypatch, columns):
    monkeypatch.setattr("shutil.get_terminal_size", lambda *_: os.terminal_size((columns, 40)))
    widest = max(map(len, lines_of(command("keys", "dp_ftrl"))))
    assert 0.9 * min(columns, 100) < widest <= min(columns, 100)


def test_all_choices_are_named(command):
    page = " ".join(command("keys").stdout.split())
    for known in introspected().choices.values():
        assert ", ".join(known) in page


def test_keys_are_grouped_where_they_are_defined():
    groups = {heading: [key.name for key in keys] for heading, keys in in_groups(introspected().run).items()}
    assert {"epsilon", "delta", "secure_rng"} <= set(groups["privacy"])
    assert "device" in groups["computing"]

    @dataclasses.dataclass(frozen=True)
    class More(Options):
        fresh: Annotated[int, "a key that names no heading"] = 3
        kept: Annotated[int, "a key that does", Group("keeping")] = 3

    def run(*, rounds: Annotated[int, "number of rounds", Group("training")], options: More) -> None: ...

    run.__annotations__["options"] = More
    found = in_groups(keys_in(flat_arguments(run), "every run", without=("progress", "config")))
    groups = {heading: [key.name for key in keys] for heading, keys in found.items()}
    assert groups["other"] == ["fresh"]
    assert groups["keeping"] == ["checkpoint_every", "log", "record", "kept"]
    assert list(groups)[-1] == "other"


def test_nothing_said_says_what_to_do_next(command, tmp_path):
    page = command(cwd=tmp_path)
    lines = lines_of(page)
    assert len(lines) <= 12
    for name in ("demo", "plan", "run", "keys METHOD", "completion bash", "--help"):
        assert f"cloister {name}" in page.stdout


def test_the_newest_run_is_named(command, tmp_path):
    for age, name in enumerate(("runs/a run", "runs/compared/second", "runs/oldest")):
        (tmp_path / name).mkdir(parents=True)
        for file in ("description.json", "ledger.jsonl"):
            (tmp_path / name / file).touch()
            os.utime(tmp_path / name / file, (1e9 - age, 1e9 - age))
    assert lines_of(command(cwd=tmp_path))[-1] == "  cloister resume 'runs/a run'"
    (tmp_path / "runs" / "a run" / "certificate.json").touch()
    assert lines_of(command(cwd=tmp_path))[-1] == "  cloister show 'runs/a run'"
    os.utime(tmp_path / "runs" / "compared" / "second" / "ledger.jsonl")
    assert lines_of(command(cwd=tmp_path))[-1] == "  cloister resume runs/compared/second"


def test_the_program_is_named_as_the_shell_finds_it(monkeypatch, tmp_path):
    ours, other = tmp_path / "venv" / "bin" / "cloister", tmp_path / "other" / "cloister"
    for path in (ours, other):
        path.parent.mkdir(parents=True)
        path.touch(mode=0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(ours)])
    monkeypatch.setenv("PATH", str(ours.parent))
    assert program() == "cloister"
    monkeypatch.setenv("PATH", str(other.parent))
    assert program() == "venv/bin/cloister", "another program of this name comes first"
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "cloister" / "__main__.py")])
    monkeypatch.setattr(sys, "executable", str(ours.with_name("python")))
    monkeypatch.setenv("PATH", str(ours.parent))
    assert program() == "cloister"
    monkeypatch.setenv("PATH", "")
    assert program() == "venv/bin/python -m cloister"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["pfll"], 'perhaps you mean "pfl"'),
        (["pfl", "dp_ftrl"], "one config file"),
        (["pfl", "method=dp_ftrl"], "Expected one method"),
        (["data=nothing"], "data to be one of"),
        (["model=3"], "model to be one of"),
        (["partition=iidd"], 'perhaps you mean "iid"'),
        (["cohort=nobody"], "cohort to be one of"),
        (["pfl", "factorization=tree"], "belongs to method dp_ftrl"),
        (["colour=red"], "Expected a known key"),
        (["--method"], "a value after --method"),
        (["=3"], "Expected key=value"),
        (["method=no.such:thing"], "a module that can be imported"),
        (["data=digits", "data=mnist"], "one value for data"),
    ],
)
def test_bad_questions_are_one_sentence(command, words, message):
    done = command("keys", *words)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("words", [["--help"], []])
def test_first_help_imports_nothing_heavy(words):
    code = (
        f"import sys; sys.argv = ['cloister', *{words}]\n"
        "from cloister.__main__ import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print([name for name in ('torch', 'numpy', 'matplotlib', 'dp_accounting') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("[]")
