"""The lowest versions that pyproject.toml admits, in the environment that runs this."""

from __future__ import annotations

import platform
import sys

from versions.record import dependencies, run_tests, versions, write

TESTS = (
    *("tests/privacy", "tests/random", "tests/transforms", "tests/mechanisms", "tests/server", "tests/models"),
    *("tests/data", "tests/publication", "tests/deploy/transport/test_https.py", "tests/deploy/wire"),
    *("tests/runs/test_run.py", "tests/runs/test_config.py", "tests/runs/test_plan.py", "tests/runs/test_load.py"),
    *("tests/runs/test_export.py", "tests/runs/test_predict.py", "tests/runs/test_metrics_by_name.py"),
    *("tests/runs/test_trackers.py", "tests/runs/test_progress.py", "tests/runs/test_summary.py"),
    *("tests/studies/test_seed_statistics.py", "tests/studies/test_html_report.py", "tests/studies/test_tuning.py"),
    *("tests/test_cli.py", "tests/test_cli_help.py", "tests/test_cli_startup.py", "tests/test_completion.py"),
)
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
