# Two commands do everything, installation included:
#   make demo    train on real digits: no privacy, epsilon 8, epsilon 2
#   make test    lint, types, doctests, tests
# and one more takes longer:
#   make test-all  the same, and tests that take minutes or need real data (CLOISTER_DATA)
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
TESTS = not slow
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.PHONY: demo test test-all install benchmark figures clean

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Expected Python 3.11 or newer: set PYTHON=...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: install
	$(BIN)/cloister demo

test: install
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/pytest --numprocesses 2 --dist worksteal -m "$(TESTS)"

test-all: TESTS = slow or not slow
test-all: test

benchmark: install
	$(BIN)/python benchmarks/cpu.py --json docs/speed-cpu.json
	$(BIN)/python benchmarks/documents.py

figures: install
	$(BIN)/python benchmarks/documents.py --measure

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
