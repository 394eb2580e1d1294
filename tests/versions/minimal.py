"""The lowest versions that pyproject.toml admits, in the environment that runs this."""

from __future__ import annotations

import platform
import sys

from versions.record import dependencies, run_tests, versions, write

TESTS = (
    *("tests/privacy/test_accountant.py", "tests/privacy/test_certificate.py", "tests/privacy/test_pricing.py"),
    *("tests/auditing/test_lower_bounds.py", "tests/mechanisms/test_mechanisms.py", "tests/models"),
    *("tests/data/test_formats.py", "tests/data/test_tables.py", "tests/data/test_user_data.py"),
    *("tests/data/test_image_folder.py", "tests/publication/test_certificate_pages.py"),
    *("tests/publication/test_verify_published.py", "tests/deploy/transport/test_https.py"),
    *("tests/runs/test_run.py", "tests/runs/test_export.py", "tests/runs/test_load.py", "tests/runs/test_predict.py"),
    *("tests/runs/test_metrics_by_name.py", "tests/runs/test_trackers.py", "tests/runs/test_progress.py"),
    *("tests/runs/test_summary.py", "tests/studies/test_seed_statistics.py", "tests/studies/test_html_report.py"),
    *("tests/studies/test_tuning.py", "tests/test_cli_help.py", "tests/test_cli_startup.py"),
    "tests/test_completion.py",
)
"""Of every dependency some use: numbers, tables, images, pages, models in files, the network, the terminal."""
EXTRAS = ("h5py", "kymatio", "onnx", "onnxscript", "optuna", "plotly", "polars", "pyarrow", "tensorboard")


def main() -> int:
    """Run them and write down with what."""
    found = run_tests(sys.executable, ["-q", "-m", "not slow and not cuda", *TESTS])
    about = {
        "command": "make test-minimal",
        "python": platform.python_version(),
        "versions": versions([*dependencies(), *EXTRAS]),
        "tests": list(TESTS),
        "found": found,
    }
    write("minimal", about)
    return int(found["status"])
