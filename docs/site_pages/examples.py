"""The smallest program and the smallest command that run a method, from the settings of its curve."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cloister.runs import catalogue
from site_pages import curves
from site_pages.markdown import fenced

_NEED_PUBLIC = ("ae_dpfl", "fed_smp_top_k", "adap_dp_fl")
"""Methods that learn something from public samples."""
_COHORTS = {"poisson": "sampling_rate", "fixed_size": "clients_per_round", "cyclic": "clients_per_round"}


def python(root: Path, method: str) -> str:
    """A program."""
    own, values = _values(root, method)
    task = [f"clients={values['clients']}"]
    if method in _NEED_PUBLIC:
        task.append(f"public_samples={values['public_samples']}")
    made = [f"{key}={value!r}" for key, value in own.items()]
    if "server_lr" in values:
        server = _facts(method).defaults.get("server", "sgd")
        made.append(f"server=cl.server.{server}(lr={values['server_lr']!r})")
    cohort = values.get("cohort", "full")
    given = values.get(_COHORTS.get(cohort, ""), "")
    run = [f"rounds={values['rounds']}", f"cohort=cl.{cohort}({given})", *_budget(method, values)]
    lines = [
        "import cloister as cl\n",
        f"task = cl.data.digits({', '.join(task)})",
        _call(f"method = cl.methods.{method}", made),
        _call("run = cl.run", ["method", "task", *run]),
        "print(run.accuracy, run.epsilon)",
        "print(run.certificate)\n",
    ]
    text = "\n".join(lines)
    return _marker(values, "with") + fenced(text, "python")


def _call(function: str, arguments: list[str]) -> str:
    """On one line, or with each argument on a line of its own."""
    line = f"{function}({', '.join(arguments)})"
    if len(line) <= 88:
        return line
    return f"{function}(\n" + "".join(f"    {one},\n" for one in arguments) + ")"


def command(root: Path, method: str) -> str:
    """The same on the command line."""
    own, values = _values(root, method)
    cohort = values.get("cohort", "full")
    words = [f"method={method}", "data=digits", f"clients={values['clients']}"]
    if method in _NEED_PUBLIC:
        words.append(f"public_samples={values['public_samples']}")
    words += [f"{key}={_word(value)}" for key, value in own.items()]
    words += [f"{key}={values[key]}" for key in ("server_lr",) if key in values]
    words += [f"cohort={cohort}"]
    if cohort in _COHORTS:
        words.append(f"{_COHORTS[cohort]}={values[_COHORTS[cohort]]}")
    words += [f"rounds={values['rounds']}", *_budget(method, values)]
    lines, line = [], "cloister run"
    for word in [*words, f"--folder runs/{method}"]:
        if len(line) + len(word) > 88:
            lines.append(line)
            line = "   "
        line += f" {word}"
    text = " \\\n".join([*lines, line]) + f"\ncloister show runs/{method}\n"
    return _marker(values, "slow, with") + fenced(text, "console")


def _marker(values: dict[str, Any], how: str) -> str:
    few = "" if values["rounds"] == 1 else " rounds=2"
    few += " local_steps=10" if values.get("local_steps", 0) > 50 else ""
    words = f"{how}{few}" if few else how.removesuffix("with").rstrip(", ")
    return f"<!-- test: {words} -->\n" if words else ""


def _facts(method: str) -> Any:
    return catalogue.stored().choices["method"][method].facts


def _values(root: Path, method: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The method's own settings where they are not its defaults, and all settings."""
    row = curves.rows_of(root, method)[0]
    values: dict[str, Any] = {"epsilon": row["target"], **row["settings"]}
    keys = {key.name: key for key in catalogue.stored().choices["method"][method].keys}
    own = {name: values[name] for name in keys if name in values and values[name] != keys[name].default}
    return own, values


def _budget(method: str, values: dict[str, Any]) -> list[str]:
    if _facts(method).unit == "nobody":
        return []
    return [f"epsilon={values['epsilon']}", f"delta={values['delta']}"]


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
