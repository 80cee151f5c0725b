# Environments: .venv (the package, its tests and tools) and .venv-trl (a real trainer). Both follow constraints.txt.
PYTHON ?= python3
VENV := .venv
TRAINER := .venv-trl
PIP := -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: help demo fmt lint type layers test test-unit test-trainers docs docs-check check clean

help:  ## what can be made
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

$(VENV)/core: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	$(VENV)/bin/python $(PIP) --editable .
	@touch $@

$(VENV)/dev: $(VENV)/core
	$(VENV)/bin/python $(PIP) --group dev
	@touch $@

$(TRAINER)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(TRAINER)
	$(TRAINER)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	@# torch first and by itself: a range would take a build with several gigabytes of GPU libraries
	$(TRAINER)/bin/python $(PIP) torch==2.13.0
	$(TRAINER)/bin/python $(PIP) torch==2.13.0 --group trainer --editable .
	@touch $@

demo: $(VENV)/core  ## check the recorded runs that ship with the package
	@$(VENV)/bin/rl-doctor demo

fmt: $(VENV)/dev  ## format
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix-only --quiet .

lint: $(VENV)/dev  ## formatting, lint, layers
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/python tools/check_layers.py

type: $(VENV)/dev  ## mypy --strict
	$(VENV)/bin/mypy

test-unit: $(VENV)/dev
	$(VENV)/bin/pytest -m "not trainer" --numprocesses auto --dist worksteal

test-trainers: $(TRAINER)/ready  ## tests against real trainers, in their own environment
	$(TRAINER)/bin/pytest tests/trainers -m trainer

test: test-unit test-trainers  ## set up what the tests need and run them all

docs: $(VENV)/dev  ## generate docs/ from the code
	$(VENV)/bin/python tools/gen_docs.py

docs-check: $(VENV)/dev
	$(VENV)/bin/python tools/gen_docs.py --check

check: lint type docs-check test  ## everything that CI runs

clean:  ## remove environments and caches
	rm -rf $(VENV) $(TRAINER) .mypy_cache .ruff_cache .pytest_cache .hypothesis dist
