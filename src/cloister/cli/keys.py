"""`cloister keys`, and the help of `cloister run`: what there is to choose, and what each choice has to say."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import typer

from cloister.cli.commands import Command, columns, keys_page, page_width
from cloister.cli.output import file_and_words, say
from cloister.errors import CloisterError


def keys(ctx: typer.Context) -> None:
    """Every key of a run, with its default and its meaning: of a method, of the other choices, and of every run.

    \b
    cloister keys                           all choices; keys of the defaults
    cloister keys pfl                       the keys of one method
    cloister keys pfl data=mnist model=cnn  those of other choices beside it

    Keys of another kind, with which members of a federation sign: cloister keys new, cloister keys show.
    """
    from cloister.runs import catalogue
    from cloister.runs.config_file import load
    from cloister.runs.resolution import grouped_keys

    name, words = file_and_words(ctx.args)
    if name is not None and any(word.startswith("method=") for word in words):
        raise CloisterError(f"Expected one method, found {str(name)!r} and {words}: name it once.")
    values = load(None, words)
    values = values if name is None else {"method": str(name), **values}
    groups = catalogue.ask(lambda known: grouped_keys(known, values))
    chosen = groups.pop("choices")
    names = catalogue.stored().choices
    width = page_width()
    rows = [(key.name, str(key.default), f"{key.help}: {', '.join(names[key.name])}") for key in chosen]
    widths = [max(len(row[place]) for row in rows) for place in (0, 1)]
    say("\n".join(["choices (what is chosen here, and all there is):", *columns(rows, widths, width)]))
    say("")
    say("\n".join(keys_page(groups, width)))
    say("")
    say("\n".join(columns([(_OUTSIDE,)], [], width)))


_OUTSIDE = "method, data and model can also be package.module:function; its arguments are keys."


class RunCommand(Command):
    """`cloister run`, whose help fits a screen; it is made only when somebody asks for it."""

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        words = [word for word in ctx.meta.get("words", ()) if word not in ("--help", "--quiet")]
        formatter.write("\n" + "\n".join(_of_method(words) if words else _overview()) + "\n")


def _of_method(words: list[str]) -> list[str]:
    """The keys of the method that is chosen, and nothing else."""
    from cloister.runs import catalogue
    from cloister.runs.choices import PARTS
    from cloister.runs.config_file import load

    name = str(load(*file_and_words(words)).get("method", PARTS["method"].default))
    more = [("", f"Keys of the other choices, and of every run: cloister keys {name}")]
    keys = catalogue.ask(lambda known: known.method_keys(name))
    return [*keys_page({f"method {name}": keys}, page_width()), "", *columns(more, [0], page_width())]


def _overview() -> list[str]:
    from cloister.runs.catalogue import stored
    from cloister.runs.choices import PARTS
    from cloister.runs.keys import in_groups

    width, known = page_width(), stored()
    names = {name: [part.default, *part.common, *known.choices[name]] for name, part in PARTS.items()}
    rows = [(name, _first(options, width - 28)) for name, options in names.items()]
    common = [(group, ", ".join(key.name for key in keys)) for group, keys in in_groups(known.run).items() if keys]
    return [
        "Choices (the first is the default):",
        *columns(rows, [11], width),
        "",
        "Keys of every run:",
        *columns(common, [11], width),
        "",
        "More:",
        *columns(_MORE, [24], width),
    ]


_MORE = [
    ("cloister keys METHOD", "every key of a method, with defaults and meanings"),
    ("cloister keys data=mnist", "every key of other choices: data, partition, model, cohort, server"),
    ("data=PATH", "your own tables or images; model=package.module:function is your own model"),
    ("cloister methods", "all methods: whom they protect, who must be trusted, what is proven"),
    ("cloister data list", "all data sets: what is here, how large, under which license"),
    ("cloister plan ...", "what the same keys would cost, before anything is trained"),
]


def _first(names: Iterable[str], width: int) -> str:
    """As many names as fit into a line, and how many more there are."""
    ordered = list(dict.fromkeys(names))
    shown: list[str] = []
    for name in ordered:
        if len(", ".join([*shown, name])) > width:
            break
        shown.append(name)
    left = len(ordered) - len(shown)
    return ", ".join(shown) + (f", and {left} more" if left else "")
