# Two commands on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
BENCH ?= .venv-bench
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
# Tests take seconds or nothing: a worker that is done takes over half of what another has left.
PYTEST := $(BIN)/python -m pytest -n auto --dist worksteal
export OMP_NUM_THREADS ?= 1
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c

.PHONY: help demo test check lint types layers format test-full test-faults docs wheel bench bench-env clean

help:  ## Show what there is
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) --editable .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) --editable ".[dev]"
	@touch $@ $(VENV)/.installed

demo: $(VENV)/.installed  ## Train PPO on CartPole from the preset, evaluate the best checkpoint, write a report
	@run=$$($(BIN)/axiomrl train --preset ppo/cartpole --output-dir runs/demo --json \
		| $(BIN)/python -c "import json, sys; print(json.load(sys.stdin)['run_dir'])") && \
	$(BIN)/axiomrl eval --checkpoint "$$run" --num-episodes 20 && \
	$(BIN)/axiomrl report "$$run"

test: check  ## Lint, types, layers and the test suite
	$(PYTEST)

check: lint types layers  ## The static part alone

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed-dev
	$(BIN)/mypy

layers: $(VENV)/.installed-dev
	$(BIN)/lint-imports

format: $(VENV)/.installed-dev  ## Format and fix what can be fixed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

test-full: $(VENV)/.installed-dev  ## The test suite with the long learning runs
	$(PYTEST) --full

test-faults: $(VENV)/.installed-dev  ## The fault tests in full numbers, with their figures written to docs/reliability.md
	report=$$(mktemp) && AXIOMRL_FAULT_REPORT=$$report $(PYTEST) tests/faults --full && \
	$(BIN)/python docs/generate_reliability.py $$report && rm $$report

docs: $(VENV)/.installed-dev  ## Build the documentation into docs/_build
	$(BIN)/python -m sphinx -W --keep-going -b html docs docs/_build/html

wheel: $(VENV)/.installed-dev  ## Build the wheel into dist/
	$(BIN)/python -m build --wheel

$(BENCH)/.installed: pyproject.toml constraints.txt
	test -x $(BENCH)/bin/python || $(PYTHON) -m venv $(BENCH)
	$(BENCH)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
		--editable ".[atari,bench]"
	@touch $@

bench-env: $(BENCH)/.installed  ## A virtual env of its own with the libraries that speed is compared with

bench: $(BENCH)/.installed  ## Speed beside other libraries, 35 minutes on a quiet machine; PARTS="ppo-envs replay" picks
	$(BENCH)/bin/python benchmarks/suite.py $(PARTS)
	$(BENCH)/bin/python docs/generate_performance.py
	$(BENCH)/bin/python docs/generate_benchmarks.py

clean:  ## Remove what building and testing leave behind
	rm -rf build dist docs/_build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
