"""How help looks: plain text, brackets as they are, and a word about every argument."""

from __future__ import annotations

import inspect
import typing
from typing import Any

from typer.core import TyperArgument, TyperCommand


class Command(TyperCommand):
    """A command whose help is plain text.

    Typer escapes brackets for a markup that is not in use here, and with some versions of click it loses what is said
    of arguments.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        hints = typing.get_type_hints(inspect.unwrap(options["callback"]), include_extras=True)
        for argument in self.params:
            if isinstance(argument, TyperArgument) and argument.help is None and argument.name in hints:
                argument.help = hints[argument.name].__metadata__[0].help

    def format_arguments(self, ctx: Any, formatter: Any) -> None:
        """Nothing: typer lists them among the options, where newer versions of click would do so as well."""

    def get_help(self, ctx: Any) -> str:
        """The help page."""
        return super().get_help(ctx).replace("\\[", "[")
