"""Words in and out: what the commands share."""

from __future__ import annotations

import itertools
import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from cloister.cli import interrupts
from cloister.errors import CloisterError

if TYPE_CHECKING:
    from rich.console import Console


def file_and_words(arguments: list[str]) -> tuple[Path | None, list[str]]:
    """[FILE] KEY=VALUE --KEY VALUE --KEY=VALUE -> the file, and KEY=VALUE for all the rest."""
    file, words, rest = None, [], list(arguments)
    while rest:
        word = rest.pop(0)
        if word.startswith("--"):
            key, equals, value = word[2:].partition("=")
            if not equals:
                if not rest:
                    raise CloisterError(f"Expected a value after {word}, found none: write {word} VALUE.")
                value = rest.pop(0)
            words.append(f"{key.replace('-', '_')}={value}")
        elif "=" in word:
            words.append(word)
        elif file is None:
            file = Path(word)
        else:
            raise CloisterError(
                f"Expected one config file, found {str(file)!r} and {word!r}: give KEY=VALUE for the rest."
            )
    return file, words


def short_name(option: str) -> str:
    """What files are named after: the last part of a path, or of package.module:function.

    >>> short_name("/data/hospitals/"), short_name("lab.data:letters"), short_name("digits")
    ('hospitals', 'letters', 'digits')
    """
    return Path(option).stem if "/" in option or "\\" in option else option.rpartition(":")[2]


def new_folder(name: str) -> Path:
    """Where a run is kept, unless somebody says where: named after the time, and another if two begin at once."""
    path = Path("runs") / f"{name}-{datetime.now():%Y%m%d-%H%M%S}"
    others = (path.with_name(f"{path.name}-{number}") for number in itertools.count(2))
    return path if not path.exists() else next(other for other in others if not other.exists())


def program() -> str:
    """How to call this program again from here: the shortest words that find it, and no other."""
    called = sys.argv[0]
    if called.endswith("__main__.py"):
        beside = Path(sys.executable).with_name("cloister")
        return "cloister" if _found("cloister", beside) else f"{_python()} -m cloister"
    return "cloister" if os.sep not in called or _found("cloister", Path(called)) else _shorter(called)


def _python() -> str:
    return "python" if _found("python", Path(sys.executable)) else _shorter(sys.executable)


def _found(name: str, meant: Path) -> bool:
    """Whether the shell finds that program by its name alone."""
    found = shutil.which(name)
    return found is not None and meant.exists() and Path(found).absolute() == meant.absolute()


def _shorter(path: str) -> str:
    """From here, or from the root of the file system."""
    whole, from_here = os.path.abspath(path), os.path.relpath(path)
    return shlex.quote(min(from_here, whole, key=len))


def say(text: str, err: bool = False) -> None:
    if err:  # while a line shows progress, what goes through here is printed above it; echo would write into it
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()
    else:
        typer.echo(text)


def say_wrapped(text: str) -> None:
    """Lines as wide as the tables beside them; what is wrapped is indented."""
    import textwrap

    if not text:
        return
    width = stdout().width
    for line in text.split("\n"):
        indent = " " * (len(line) - len(line.lstrip()) + 4)
        say(textwrap.fill(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False))


def stdout() -> Console:
    """Where results go: with colors and frames on a terminal, and without elsewhere."""
    from rich.console import Console

    return Console()


def print_table(table: Any) -> None:
    stdout().print(table)


def print_whole(table: Any) -> None:
    """In lines as long as it takes: broken numbers cannot be read."""
    from rich.measure import Measurement

    console = stdout()
    needed = Measurement.get(console, console.options.update(max_width=10_000), table).maximum
    console.width = max(console.width, needed)
    console.print(table, crop=False)


@contextmanager
def working(what: str) -> Iterator[None]:
    from rich.console import Console

    with Console(stderr=True).status(f"{what} ..."):
        yield


@contextmanager
def interruptible(path: Path, continued: str) -> Iterator[None]:
    """Work that keeps what it does in a folder: whoever interrupts it is told how to go on, if there is a way."""
    try:
        with interrupts.working():
            yield
    except KeyboardInterrupt:
        say(f"interrupted; {continued if path.exists() else 'nothing was written yet'}", err=True)
        raise typer.Exit(interrupts.INTERRUPTED) from None
