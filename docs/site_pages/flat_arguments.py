"""For mkdocstrings: functions are shown with the arguments that they take, and with what each of them means.

Many functions have arguments in common, written once as a dataclass (`cloister.core.arguments`). Who reads their source
sees `training: LocalSGD`, who calls them gives `lr`, `batch_size` and so on: what is shown is what is called.
"""

from __future__ import annotations

import importlib
import inspect
import re
import textwrap
import typing
from typing import Any

import griffe

_KINDS = {
    inspect.Parameter.POSITIONAL_ONLY: griffe.ParameterKind.positional_only,
    inspect.Parameter.POSITIONAL_OR_KEYWORD: griffe.ParameterKind.positional_or_keyword,
    inspect.Parameter.KEYWORD_ONLY: griffe.ParameterKind.keyword_only,
    inspect.Parameter.VAR_POSITIONAL: griffe.ParameterKind.var_positional,
    inspect.Parameter.VAR_KEYWORD: griffe.ParameterKind.var_keyword,
}


_DOCTEST = re.compile(r"(?:^ *>>> .*\n?)(?:^ *\S.*\n?)*", re.MULTILINE)


class FlatArguments(griffe.Extension):
    """Replace the parameters of decorated functions, say what every annotated one means, and show doctests as code."""

    def on_object(self, *, obj: griffe.Object, loader: griffe.GriffeLoader, **_: Any) -> None:
        """Doctests lie in the text of docstrings, which is Markdown for mkdocstrings."""
        if obj.docstring and ">>> " in obj.docstring.value:
            obj.docstring.value = _DOCTEST.sub(_fenced, obj.docstring.value)

    def on_function(self, *, func: griffe.Function, loader: griffe.GriffeLoader, **_: Any) -> None:
        """Of functions of modules; methods of classes stay as they are."""
        if func.parent is None or not func.parent.is_module or not func.docstring or ".cli." in func.path:
            return
        flat = any("flat_arguments" in str(one.value) for one in func.decorators)
        annotated = any("Annotated" in str(one.annotation) for one in func.parameters)
        if not flat and not annotated:
            return
        found = inspect.unwrap(getattr(importlib.import_module(func.parent.path), func.name), stop=_has_signature)
        signature = inspect.signature(found)
        hints = {} if flat else _hints(found)
        helps = {name: _help(hints.get(name, parameter.annotation)) for name, parameter in signature.parameters.items()}
        if flat or hints:
            whole = [
                one.replace(annotation=hints.get(name, one.annotation)) for name, one in signature.parameters.items()
            ]
            func.parameters = griffe.Parameters(*map(_parameter, whole))
        if any(helps.values()) and "Args:" not in func.docstring.value:
            lines = [f"    {name}: {text or 'see above'}." for name, text in helps.items() if text]
            func.docstring.value = "\n".join([func.docstring.value.rstrip(), "", "Args:", *lines])


def _fenced(doctest: re.Match[str]) -> str:
    return f"```pycon\n{textwrap.dedent(doctest[0]).rstrip()}\n```\n"


def _hints(function: Any) -> dict[str, Any]:
    """Types with what stands beside them; none where a type is imported for type checkers alone."""
    try:
        return typing.get_type_hints(function, include_extras=True)
    except NameError:
        return {}


def _has_signature(function: Any) -> bool:
    return hasattr(function, "__signature__")


def _help(annotation: Any) -> str:
    """What stands beside the type."""
    words = [one for one in getattr(annotation, "__metadata__", ()) if isinstance(one, str)]
    return words[0].rstrip(".") if words else ""


def _parameter(parameter: inspect.Parameter) -> griffe.Parameter:
    return griffe.Parameter(
        parameter.name,
        annotation=_type(parameter.annotation),
        kind=_KINDS[parameter.kind],
        default=None if parameter.default is inspect.Parameter.empty else _value(parameter.default),
    )


def _value(default: Any) -> str:
    """As one would write it; functions and other objects by their names."""
    text = repr(default)
    return text if not text.startswith("<") else getattr(default, "__name__", type(default).__name__)


def _type(annotation: Any) -> str | None:
    """Without what stands beside it, and without the modules of classes."""
    if annotation is inspect.Parameter.empty:
        return None
    plain = typing.get_args(annotation)[0] if hasattr(annotation, "__metadata__") else annotation
    text = plain.__name__ if inspect.isclass(plain) and not typing.get_args(plain) else str(plain)
    return re.sub(r"\b(?:[a-z_]\w*\.)+(?=[A-Za-z_]\w*)", "", text)
