"""What people read: tables on the terminal and pictures in files, a file for each subject."""

from cloister.runs.report.catalogue import keys_table, methods_table
from cloister.runs.report.clients import client_scores_table, client_scores_text, clients_table
from cloister.runs.report.comparison import (
    Compared,
    compared,
    comparison_plot,
    comparison_table,
    in_words,
    settings_text,
)
from cloister.runs.report.runs import figures_table, run_figures, runs_plot, runs_table, scores_text
from cloister.runs.report.style import expect_plot

__all__ = [
    "Compared",
    "client_scores_table",
    "client_scores_text",
    "clients_table",
    "compared",
    "comparison_plot",
    "comparison_table",
    "expect_plot",
    "figures_table",
    "in_words",
    "keys_table",
    "methods_table",
    "run_figures",
    "runs_plot",
    "runs_table",
    "scores_text",
    "settings_text",
]
