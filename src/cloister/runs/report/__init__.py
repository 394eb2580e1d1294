"""What people read: tables on the terminal and pictures in files, a file for each subject.

Names are imported when they are first used: a list of methods needs nothing of what a comparison does.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cloister.runs.report.catalogue import keys_table, methods_table
    from cloister.runs.report.clients import client_scores_table, client_scores_text, clients_table
    from cloister.runs.report.comparison import (
        Compared,
        compared,
        comparison_scores_table,
        in_words,
        settings_text,
    )
    from cloister.runs.report.measurement_plots import measurements_plot
    from cloister.runs.report.measurements import measurements_tables, measurements_text
    from cloister.runs.report.plot_parts import Curves
    from cloister.runs.report.runs import (
        communication_text,
        epsilons_table,
        figures_table,
        run_figures,
        runs_plot,
        runs_table,
        scores_text,
    )
    from cloister.runs.report.style import expect_plot
    from cloister.runs.report.summary import next_commands, print_summary, summary_rows

# Which names each module defines.
_DEFINES = {
    "catalogue": ("keys_table", "methods_table"),
    "clients": ("client_scores_table", "client_scores_text", "clients_table"),
    "comparison": (*("Compared", "compared", "comparison_scores_table", "in_words", "settings_text"),),
    "measurement_plots": ("measurements_plot",),
    "plot_parts": ("Curves",),
    "measurements": ("measurements_tables", "measurements_text"),
    "runs": (
        *("communication_text", "epsilons_table", "figures_table", "run_figures", "runs_plot", "runs_table"),
        "scores_text",
    ),
    "style": ("expect_plot",),
    "summary": ("next_commands", "print_summary", "summary_rows"),
}

__all__ = [
    "Compared",
    "Curves",
    "client_scores_table",
    "client_scores_text",
    "clients_table",
    "communication_text",
    "compared",
    "comparison_scores_table",
    "epsilons_table",
    "expect_plot",
    "figures_table",
    "in_words",
    "keys_table",
    "measurements_plot",
    "measurements_tables",
    "measurements_text",
    "methods_table",
    "next_commands",
    "print_summary",
    "run_figures",
    "runs_plot",
    "runs_table",
    "scores_text",
    "settings_text",
    "summary_rows",
]

if not TYPE_CHECKING:  # type checkers know every name, and that there are no others

    def __getattr__(name: str) -> Any:
        module = next((module for module, names in _DEFINES.items() if name in names), None)
        if module is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{__name__}.{module}"), name)


def __dir__() -> list[str]:
    return __all__
