"""A page for each data set, from the registry, and one that lists them."""

from __future__ import annotations

import inspect
from pathlib import Path

from cloister.data import CATALOGUE, partitioners
from cloister.data.defaults import DEFAULTS
from cloister.data.registry import Entry, entry
from cloister.data.storage import readable
from cloister.runs import catalogue
from site_pages.markdown import docstring, fenced, table, tabs

_BY_LABEL = ("iid", "dirichlet", "dirichlet_by_class", "shards", "overlapping")


def pages(root: Path) -> dict[str, str]:
    """All of them."""
    found = {f"data/{name}.md": _page(name) for name in CATALOGUE}
    return {"data/index.md": _index(), **found}


def _page(name: str) -> str:
    one = entry(name)
    text = inspect.getdoc(CATALOGUE[name]) or ""
    rows = [
        ("what", one.what),
        ("samples", one.samples),
        ("clients", _clients(name)),
        ("license", one.license),
        ("cite", one.citation),
        ("model by default", f"[`{_model(name)}`](../models/{_model(name)}.md)"),
    ]
    parts = [
        f"---\ntitle: {name}\n---\n",
        f"# {one.title}\n",
        f"**`{name}`** · {docstring(_without_examples(text))}\n",
        table(("", ""), [(f"**{key}**", value) for key, value in rows]),
        f"{one.note}\n" if one.note else "",
        "## Getting it\n",
        _getting(one),
        "## An example\n",
        tabs(Python=_python(name, one), Command_line=_command(name, one)),
        "## Keys\n",
        _keys(name),
    ]
    return "\n".join(part for part in parts if part)


def _without_examples(text: str) -> str:
    return text.partition(">>>")[0].rstrip()


def _is_natural(name: str) -> bool:
    return DEFAULTS.get(name, {}).get("partition") == "natural"


def _model(name: str) -> str:
    return str(DEFAULTS.get(name, {}).get("model", "logistic"))


def _clients(name: str) -> str:
    dealt = ", ".join(f"`{one}`" for one in _BY_LABEL)
    return (
        f"`natural`: samples stay with their owners (the default); or dealt anew: {dealt}"
        if _is_natural(name)
        else f"dealt by a partition: {dealt}"
    )


def _getting(one: Entry) -> str:
    if not one.files and not one.by_hand:
        return "It is installed with scikit-learn: there is nothing to download.\n"
    if not one.files:
        return "There is no download; put the files into the data folder (`CLOISTER_DATA`) by hand, as said above.\n"
    size = sum(file.bytes or 0 for file in one.files)
    about = f", {readable(size)} in all" if size else ""
    command = fenced(f"cloister data get {one.name}", "console")
    rows = [(f"<{file.url}>", "" if file.bytes is None else readable(file.bytes)) for file in one.files]
    return (
        f"From its official place, with checksums{about}. An interrupted download is resumed; files lie under "
        "`CLOISTER_DATA`.\n\n"
        f"<!-- test: skip because it downloads -->\n{command}\n{table(('file', 'size'), rows)}"
    )


def _python(name: str, one: Entry) -> str:
    dealt = "" if _is_natural(name) else "cl.data.dirichlet(clients=100, alpha=0.5)"
    call = f"cl.data.{name}({f'partition={dealt}' if dealt else ''})"
    text = f"import cloister as cl\n\ntask = {call}\nprint(task)  # clients, samples, shape, classes\n"
    return _marker(one) + fenced(text, "python")


def _command(name: str, one: Entry) -> str:
    dealt = "" if _is_natural(name) else " partition=dirichlet alpha=0.5 clients=100"
    text = f"cloister data show {name}{dealt}     # labels per client, as a table and as a picture\n"
    return _marker(one) + fenced(text, "console")


def _marker(one: Entry) -> str:
    return f"<!-- test: needs={one.name} -->\n" if one.files or one.by_hand else ""


def _keys(name: str) -> str:
    choices = catalogue.stored().choices
    rows = [
        (f"`{key.name}`", f"`{key.shown_default}`" if key.shown_default else "none", key.help)
        for key in choices["data"][name].keys
    ]
    own = table(("key", "default", "meaning"), rows)
    return f"{own}\nKeys of partitions are on the [overview](index.md#who-holds-what).\n"


def _index() -> str:
    rows = []
    for name in CATALOGUE:
        one = entry(name)
        rows.append(
            (f"[`{name}`]({name}.md)", one.what, one.samples, "natural" if _is_natural(name) else "dealt", one.license)
        )
    parts = [
        "---\ntitle: Data sets\n---\n",
        "# Data sets\n",
        "Tasks by name. Your own data take a line as well: see [`cl.data`](../reference/api/data.md) for folders of "
        "files, tables, arrays and images.\n",
        table(("name", "what", "samples", "clients", "license"), rows),
        "`cloister data list` says which of them are on this machine.\n",
        "## Who holds what\n",
        "A partition deals samples to clients. Data whose samples have owners (writers, people, hospitals, roles) "
        "leave them there, unless another partition is named.\n",
        _partitions(),
        fenced("cloister data show digits partition=dirichlet alpha=0.3 clients=20", "console"),
    ]
    return "\n".join(parts)


def _partitions() -> str:
    rows = []
    for name, choice in catalogue.stored().choices["partition"].items():
        keys = ", ".join(f"`{key.name}` ({key.shown_default or 'none'})" for key in choice.keys)
        text = inspect.getdoc(getattr(partitioners, name)) or ""
        rows.append((f"`{name}`", " ".join(text.partition("\n\n")[0].split()), keys))
    return table(("partition", "what it does", "keys and defaults"), rows)
