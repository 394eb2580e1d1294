# Three commands do everything, installation included:
#   make demo    train on real digits: no privacy, epsilon 8, epsilon 2
#   make test    lint, types, doctests, tests
#   make docs    the documentation site, in build/site/index.html; built and read without a network
# and others take longer:
#   make test-all  the same, and tests that take minutes or need real data (CLOISTER_DATA)
#   make test-flower  the tests over Flower, in an environment of their own (Flower pins what it needs); part of test-all
#   make mutants  plant privacy bugs in a copy of the source, and show which test notices (an hour on two cores)
#   make torture  crash and fuzz campaigns: disks, processes, files, configs, messages (an hour; SCALE=0.01 for a minute)
#   make test-minimal  a part of the tests with the lowest versions that pyproject.toml admits; writes docs/tested-versions.json
#   make test-pythons  what needs no torch, with other Pythons that are here; writes docs/tested-versions.json
#   make release  build wheel and sdist, check them, install the wheel afresh and try it
#   make notebooks  execute the notebooks and write their outputs anew (some minutes)
#   make test-gpu  the tests that need a GPU, side by side on one (8 minutes on an H200); without one they are skipped
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
FLOWER ?= .venv-flower
MINIMAL ?= .venv-minimal
RELEASE ?= .venv-release
TESTS = not slow and not cuda
# A process of the GPU's tests waits for its own core most of the time (tracing, compiling, launching small kernels), so
# there is one for each; but each also has a CUDA context, of half a gigabyte, and the device takes turns among them:
# beyond a dozen nothing is gained.
CORES = $(shell nproc 2>/dev/null || sysctl -n hw.ncpu)
GPU_PROCESSES ?= $(shell test $(CORES) -lt 12 && echo $(CORES) || echo 12)
JOBS ?= $(CORES)
SCALE ?= 1
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.PHONY: demo docs test test-all test-flower test-minimal test-pythons release test-gpu mutants torture install benchmark benchmark-federation figures notebooks clean

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Expected Python 3.11 or newer: set PYTHON=...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: install
	$(BIN)/cloister demo

docs: install
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

test: install
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/pytest --numprocesses 2 --dist worksteal -m "$(TESTS)"

test-all: TESTS = not cuda
test-all: test test-flower

# pyproject.toml lets Cloister run beside Flower; the versions that are pinned here and there differ.
$(FLOWER)/.installed: pyproject.toml constraints.txt constraints-flower.txt
	test -x $(FLOWER)/bin/python || $(PYTHON) -m venv $(FLOWER)
	grep -vE '^(fastapi|starlette|uvicorn)==' constraints.txt | cat - constraints-flower.txt > $(FLOWER)/constraints.txt
	$(FLOWER)/bin/pip install --quiet --constraint $(FLOWER)/constraints.txt torch
	$(FLOWER)/bin/pip install --quiet --constraint $(FLOWER)/constraints.txt --editable '.[dev,flower]'
	touch $@

test-flower: $(FLOWER)/.installed
	$(FLOWER)/bin/pytest -m "not cuda" tests/deploy/transport/test_flower*.py

$(MINIMAL)/.installed: pyproject.toml constraints-minimal.txt
	test -x $(MINIMAL)/bin/python || $(PYTHON) -m venv $(MINIMAL)
	$(MINIMAL)/bin/pip install --quiet --constraint constraints-minimal.txt torch
	$(MINIMAL)/bin/pip install --quiet --constraint constraints-minimal.txt --editable '.[scattering,hdf5,parquet,report,tune,onnx,tensorboard]' polars pytest hypothesis
	touch $@

test-minimal: $(MINIMAL)/.installed
	PYTHONPATH=tests OMP_NUM_THREADS=1 $(MINIMAL)/bin/python -P -m versions minimal

test-pythons:
	PYTHONPATH=tests $(PYTHON) -P -m versions pythons

# The tools of a release have an environment of their own: they want other versions than Cloister and Flower.
$(RELEASE)/.installed: constraints-release.txt
	test -x $(RELEASE)/bin/python || $(PYTHON) -m venv $(RELEASE)
	$(RELEASE)/bin/pip install --quiet --upgrade --constraint constraints-release.txt build setuptools twine
	touch $@

release: $(RELEASE)/.installed
	PYTHONPATH=tests $(RELEASE)/bin/python -P -m release

# Where torch is installed already, and nothing else can be:
#   PYTHONPATH=src python -m pytest -m cuda -n 12 --dist worksteal -rs tests/gpu
test-gpu: install
	$(BIN)/pytest --numprocesses $(GPU_PROCESSES) --dist worksteal -m cuda -rs tests/gpu

# make mutants ONLY="noise clip-ignored" plants those of a subject, or single ones, and merges what is found.
mutants: install
	PYTHONPATH=src:tests $(BIN)/python -P -m mutants --jobs $(JOBS) $(ONLY)

# make torture ONLY="kills folders"; what was interrupted goes on.
torture: install
	PYTHONPATH=src:tests OMP_NUM_THREADS=1 $(BIN)/python -P -m torture --scale $(SCALE) $(ONLY)

benchmark: install
	$(BIN)/python benchmarks/cpu.py --json docs/speed-cpu.json
	$(BIN)/python benchmarks/documents.py

# What a federation costs, over https and over Flower: some ten minutes of a machine that does nothing else.
benchmark-federation: install $(FLOWER)/.installed
	$(BIN)/python benchmarks/federation.py
	$(FLOWER)/bin/python benchmarks/flower_federation.py --rounds 10 --json docs/federation-flower.json
	$(BIN)/python benchmarks/documents.py

figures: install
	$(BIN)/python benchmarks/documents.py --measure

# make notebooks ONLY="hospitals"
notebooks: install
	$(BIN)/python benchmarks/notebooks.py $(ONLY)
	$(BIN)/python benchmarks/documents.py

clean:
	rm -rf $(VENV) $(FLOWER) $(MINIMAL) $(RELEASE) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
