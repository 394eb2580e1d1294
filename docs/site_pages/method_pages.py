"""A page for each method of the catalogue, and one that compares all of them."""

from __future__ import annotations

import re
from pathlib import Path

from cloister.runs import catalogue
from cloister.runs.choices import Choice, MethodFacts
from cloister.runs.keys import Key
from site_pages import curves, examples, paper_checks
from site_pages.markdown import docstring, table, tabs

TITLES = {
    "fedavg": "FedAvg",
    "cpsgd": "cpSGD",
    "dp_fedavg": "DP-FedAvg",
    "ae_dpfl": "AE-DPFL",
    "dp_fedprox": "DP-FedProx",
    "adaptive_clipping": "Adaptive clipping",
    "ddgauss": "DDGauss",
    "dp_fl": "DP-FL",
    "dp_ftrl": "DP-FTRL",
    "fed_spa": "Fed-SPA",
    "dp_fed": "DP-Fed",
    "adap_dp_fl": "Adap DP-FL",
    "blur": "BLUR",
    "lus": "LUS",
    "blur_lus": "BLUR and LUS",
    "dp_fedsam": "DP-FedSAM",
    "dp_fedsam_top_k": "DP-FedSAM-top_k",
    "fed_smp_rand_k": "Fed-SMP-rand_k",
    "fed_smp_top_k": "Fed-SMP-top_k",
    "pfl": "PFL",
}
"""As the papers write them; a method that is not here has its own name."""
UNITS = {
    "client": "**A client and all its data.** Whoever sees what is released can hardly tell whether any one client "
    "took part at all.",
    "sample": "**Any one sample of a client.** Whoever sees what is released can hardly tell whether that sample was "
    "there. A client with many samples is not hidden as a whole.",
    "nobody": "**Nobody.** No noise is added, and updates can give away the data that they were computed from.",
}
TRUST = {
    "everybody": "Everybody who sees an update.",
    "nobody": "Nobody: every update is private before it leaves its client. The server, the other clients and whoever "
    "listens may see all of them.",
    "server": "The server, which sees every client's update and adds the noise.",
    "server or secure sum": "Either the server, which sees every client's update and adds the noise "
    '(`noise = "central"`, the default); or secure aggregation, in which the clients add shares of the noise and '
    'only their sum is seen (`noise = "distributed"`).',
    "nobody, or secure sum": 'With `trust = "message"` nobody: every update is private before it leaves its client. '
    'With `trust = "sum"` secure aggregation, of which only the sum is seen: far less noise for the same epsilon, '
    "and clients that keep their shares of the noise secret.",
}


def pages(root: Path) -> dict[str, str]:
    """All of them."""
    known = catalogue.stored().choices["method"]
    found = {f"methods/{name}.md": _page(root, name, choice) for name, choice in known.items()}
    return {"methods/index.md": _index(root, known), **found}


HEADINGS = {
    "client": "Whole clients are protected",
    "sample": "Any one sample is protected",
    "nobody": "Without privacy",
}


def grouped() -> dict[str, list[str]]:
    """The methods' pages by whom they protect."""
    known = catalogue.stored().choices["method"]
    return {
        heading: [f"methods/{name}.md" for name, choice in known.items() if _facts(choice).unit == unit]
        for unit, heading in HEADINGS.items()
    }


def title_of(name: str) -> str:
    """As people call it."""
    return TITLES.get(name, name)


def _facts(choice: Choice) -> MethodFacts:
    assert choice.facts is not None
    return choice.facts


def _split(name: str, text: str) -> tuple[str, str, str]:
    """What a method's file says, what its function says, and the guarantee in it."""
    module, _, own = text.partition(f"\n{name}: ")
    own, _, guarantee = own.partition("Guarantee: ")
    return module.strip(), own.strip(), guarantee.strip()


def _page(root: Path, name: str, choice: Choice) -> str:
    facts = _facts(choice)
    module, own, guarantee = _split(name, choice.text)
    first, _, more = module.partition("\n\n")
    parts = [
        f"---\ntitle: {title_of(name)}\n---\n",
        f"# {title_of(name)}\n",
        f"**`{name}`** · {facts.paper}\n",
        f"{own}\n" if own else "",
        "## The idea\n",
        f"{first.partition(': ')[2] or first}\n" if _is_only_one(name) else f"{first}\n",
        docstring(more),
        "## What is protected, and who must be trusted\n",
        _protection(facts),
        f"**Guarantee.** {_sentence(guarantee)}\n" if guarantee else "",
        "## A minimal example\n",
        tabs(Python=examples.python(root, name), Command_line=examples.command(root, name)),
        *_curves(root, name),
        *_published(name, facts),
        "## Settings\n",
        _settings(choice.keys),
        _more_keys(choice),
    ]
    return "\n".join(part for part in parts if part)


def _is_only_one(name: str) -> bool:
    """Whether the file of a method is about it alone, so that its first words are its name."""
    known = catalogue.stored().choices["method"]
    module = _split(name, known[name].text)[0]
    return sum(_split(other, choice.text)[0] == module for other, choice in known.items()) == 1


def _sentence(text: str) -> str:
    text = " ".join(text.split())
    return text[:1].upper() + text[1:]


def _protection(facts: MethodFacts) -> str:
    rows = [
        ("protected", UNITS.get(facts.unit, facts.unit)),
        ("must be trusted", TRUST.get(facts.trust, facts.trust)),
        ("proven to be private", facts.proven),
    ]
    return table(("", ""), [(f"**{name}**", what) for name, what in rows])


def _published(name: str, facts: MethodFacts) -> list[str]:
    parts = []
    if facts.published:
        parts += [
            f'With `mode = "as_published"` it does what the authors ran: {facts.published.rstrip(".")}. Such a run is '
            "priced as executed, and its certificate has the epsilon that the paper would claim beside the true one. "
            'The default, `mode = "sound"`, is what is proven.\n'
        ]
    parts += paper_checks.of_method(name)
    return ["## The paper beside what is proven\n", *parts] if parts else []


def _curves(root: Path, name: str) -> list[str]:
    own = curves.rows_of(root, name)
    if not own:
        return []
    row = own[0]
    whom = "each protected as a whole" if "methods" in row["file"] else "any one sample protected"
    unit = f"{row['settings']['clients']} clients, {whom}"
    seeds = len(row["seeds"])
    delta = f", delta {row['delta']:g}" if row["delta"] is not None else ""
    reach = [(_at(one), f"{one['accuracy']:.3f}", _certified(one), f"{one['curves'][0]['round'][-1]}") for one in own]
    return [
        "## A curve\n",
        f"Accuracy on scikit-learn's digits ({unit}{delta}), the mean of {seeds} seeds; the bands go from the worst to "
        "the best of them.\n",
        curves.charts(root, name),
        table(("budget", "accuracy at the end", "certified epsilon", "rounds"), reach),
        f"Settings are those of [{row['file']}](../reference/experiment-files.md#{Path(row['file']).stem}toml), "
        "set once and not searched for: the curve shows how the method learns and keeps its budget, not which method "
        "is better. Written by `python benchmarks/method_curves.py`.\n",
    ]


def _at(row: curves.Row) -> str:
    return "no privacy" if row["target"] is None else f"epsilon {row['target']:g}"


def _certified(row: curves.Row) -> str:
    return "infinite" if row["certified"] is None else f"{row['certified']:.3f}"


def _settings(keys: tuple[Key, ...]) -> str:
    """Those that must be given first."""
    ordered = sorted(keys, key=lambda key: key.shown_default != "required")
    rows = [(f"`{key.name}`", _default(key), key.help) for key in ordered]
    return table(("key", "default", "meaning"), rows)


def _default(key: Key) -> str:
    shown = key.shown_default
    return "**required**" if shown == "required" else f"`{shown}`" if shown else "none"


def _more_keys(choice: Choice) -> str:
    text = "The keys of every run (rounds, epsilon, delta, ...) are in the [reference](../reference/keys.md)"
    if "server" in choice.takes:
        text += ", as are those of the server, which this method lets you choose"
    defaults = _facts(choice).defaults
    if defaults:
        text += ". Unless others are named it comes with " + " and ".join(
            f'`{part} = "{option}"`' for part, option in defaults.items()
        )
    return f"{text}.\n"


def _index(root: Path, known: dict[str, Choice] | object) -> str:
    assert isinstance(known, dict)
    parts = [
        "---\ntitle: Methods\n---\n",
        "# Methods\n",
        "Every method is charged by the same accountant, so that they compare at equal epsilon. First choose whom to "
        "protect, then whom you can trust.\n",
    ]
    for unit, heading in HEADINGS.items():
        own = {name: choice for name, choice in known.items() if _facts(choice).unit == unit}
        budgets = sorted({row["target"] for name in own for row in curves.rows_of(root, name) if row["target"]})[::-1]
        heads = ("method", "in short", "must be trusted", "paper", *(f"digits, epsilon {one:g}" for one in budgets))
        if unit == "nobody":
            heads = (*heads, "digits")
        rows = []
        for name, choice in own.items():
            targets = budgets if unit != "nobody" else [None]
            reached = [curves.reached(root, name, target) for target in targets]
            facts = _facts(choice)
            rows.append(
                (f"[{title_of(name)}]({name}.md)<br>`{name}`", _short(name, choice), facts.trust, facts.paper, *reached)
            )
        parts += [f"## {heading}\n", table(heads, rows)]
    parts.append(
        "Accuracies are means over the seeds of `docs/method-curves.json` on scikit-learn's digits, with settings that "
        "were set once. They differ by a few hundredths between seeds, and do not rank the methods: for that, "
        "`cloister compare` over many seeds says what can be told apart. [Whole clients, side by side](user-level.md) "
        "and [single samples, side by side](sample-level.md) have more, and "
        "[What holds up](../results/what-holds-up.md) the papers' own claims.\n"
    )
    return "\n".join(parts)


def _short(name: str, choice: Choice) -> str:
    """The first sentence of what its function says."""
    own = " ".join(_split(name, choice.text)[1].split())
    return re.split(r"(?<=\.) ", own)[0]
