"""Run the blocks of a page: in order, in one namespace and in one folder."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from cloister.cli.app import main
from documentation.code_blocks import Block, Page, commands

_OTHERS = ("python", "mkdir", "cd", "export")
Command = Callable[[Sequence[str]], int]


def run_page(page: Page, folder: Path, *, slow: bool) -> list[int]:
    """The lines of the blocks that were run; slow ones only where they are asked for."""
    names: dict[str, Any] = {"__name__": "__main__"}
    ran = []
    for block in page.blocks:
        if block.skipped or (block.slow and not slow) or not _data_is_there(block):
            continue
        try:
            _run_block(block, folder, names)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            pytest.fail(f"{page.name}, line {block.line}: {type(error).__name__}: {error}\n\n{block.text}")
        if block.is_python or block.is_commands:
            ran.append(block.line)
    return ran


def _data_is_there(block: Block) -> bool:
    needed = block.value("needs")
    if needed is None:
        return True
    from cloister.data import registry, storage

    return storage.present(registry.entry(needed), storage.data_folder()) is True


def _run_block(block: Block, folder: Path, names: dict[str, Any]) -> None:
    for setup in (one.removeprefix("setup=") for one in block.markers if one.startswith("setup=")):
        importlib.import_module(f"documentation.setups.{setup}").prepare(folder, names)
    if file := block.value("file"):
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(block.text, encoding="utf-8")
    elif block.is_python:
        _run_python(block, names)
    elif block.is_commands:
        _run_commands(block)


def _run_python(block: Block, names: dict[str, Any]) -> None:
    expected = block.value("raises")
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            exec(compile(block.source, f"line {block.line}", "exec"), names)
        except Exception as error:
            if type(error).__name__ != expected:
                raise
            return
    assert expected is None, f"expected {expected}, and nothing was raised"


def _run_commands(block: Block) -> None:
    lines = commands(block.source, block.language)
    status = int(block.value("status") or 0)
    for place, line in enumerate(lines, 1):
        words = shlex.split(line, comments=True)
        if not words:
            continue
        expected = status if place == len(lines) else 0
        code, said = _command([*words, *block.added] if words[0] == "cloister" else words)
        assert code == expected, f"`{line}` ended with status {code}: {said}"


def _command(words: list[str]) -> tuple[int, str]:
    if words[0] == "cloister":
        return _cloister(words[1:])
    assert words[0] in _OTHERS, f"{words[0]} cannot be run by a test: mark the block with `skip because ...`"
    if words[0] == "python":
        done = subprocess.run([sys.executable, *words[1:]], capture_output=True, text=True, check=False)
        return done.returncode, done.stderr
    if words[0] == "mkdir":
        for one in words[1:]:
            if not one.startswith("-"):
                Path(one).mkdir(parents=True, exist_ok=True)
    elif words[0] == "cd":
        os.chdir(words[1])
    else:
        os.environ.update(word.split("=", 1) for word in words[1:])
    return 0, ""


def _cloister(words: list[str]) -> tuple[int, str]:
    """The command line without a new process (and so without importing torch again)."""
    out, err, given = io.StringIO(), io.StringIO(), sys.argv
    sys.argv = ["cloister", *words]
    code: Any = 0
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
    except SystemExit as end:
        code = end.code
    finally:
        sys.argv = given
    return (code if isinstance(code, int) else int(code is not None)), err.getvalue() or out.getvalue()[-2000:]
