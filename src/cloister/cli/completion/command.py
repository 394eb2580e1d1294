"""`cloister completion`: the script of a shell, and its questions."""

from __future__ import annotations

import re
import shlex
from typing import Annotated, Any

import typer

from cloister.cli.completion.candidates import Candidate, candidates
from cloister.cli.completion.scripts import SCRIPTS
from cloister.cli.output import say
from cloister.errors import CloisterError, expect_one_of

_BROKEN_AT = "=:"
"""Where bash takes words apart."""


def completion(
    ctx: typer.Context,
    shell: Annotated[str, typer.Argument(help="bash, zsh or fish.")],
) -> None:
    """Print a script by which a shell completes commands, options, keys, values and runs.

    \b
    once, in a shell; or in its startup file, for all:
      source <(cloister completion bash)        ~/.bashrc
      source <(cloister completion zsh)         ~/.zshrc
      cloister completion fish | source         ~/.config/fish/config.fish

    A key press asks the stored catalogue: nothing heavy is imported, and no code of yours.
    """
    expect_one_of("the shell", shell, tuple(SCRIPTS))
    asked = ctx.args  # what stands under the cursor, where it is a script that calls
    if not asked:
        say(SCRIPTS[shell].rstrip("\n"))
        return
    try:
        found = answer(ctx.find_root().command, shell, asked)
    except (CloisterError, OSError):
        return  # an error message in the middle of a line helps nobody
    if found:
        say("\n".join(found))


def answer(top: Any, shell: str, asked: list[str]) -> list[str]:
    """The lines that a shell gets: bash sends the line up to the cursor, the others the words."""
    if shell != "bash":
        *before, word = asked
        return [f"{one.value}\t{_short(one)}".rstrip("\t") for one in candidates(top, before, word)]
    line = asked[0] if asked else ""
    words = split(line)
    before, word = words[1:-1], words[-1]
    kept = max(word.rfind(sign) for sign in _BROKEN_AT) + 1
    return [_escaped(one.value[kept:]) for one in candidates(top, before, word)]


def split(line: str) -> list[str]:
    """The words of a line as a shell would see them; the last may be empty, and its quotes unfinished.

    >>> split("cloister run method=p"), split("cloister show "), split("cloister show 'my ru")
    (['cloister', 'run', 'method=p'], ['cloister', 'show', ''], ['cloister', 'show', 'my ru'])
    """
    for end in ("", "'", '"'):
        try:
            words = shlex.split(line + end)
        except ValueError:
            continue
        ended = not end and (not line or line[-1].isspace()) and not line.endswith("\\ ")
        return [*words, ""] if ended or not words else words
    return line.rstrip("\\").split(" ")


def _escaped(value: str) -> str:
    """As it has to be typed in bash."""
    return re.sub(r"([\s'\"\\$`!&;()<>|*?\[\]{}#~])", r"\\\1", value)


def _short(one: Candidate) -> str:
    """A line of at most so many characters, and nothing that a shell would read."""
    text = " ".join(one.help.split())
    return text if len(text) <= 70 else f"{text[:67]}..."
