# Environments: .venv (the package, its tests and tools), from constraints.txt, and one per real trainer, outside the checkout
# (tools/trainer_env.py), from tests/trainers/<trainer>/requirements.txt.
PYTHON ?= python3
VENV := .venv
PIP := -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

# Thousands of tests start Python; each would compile the package anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo fmt lint type test test-unit test-trainers scorecard screenshots docs docs-check check clean clean-trainers

help:  ## what can be made
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

$(VENV)/core: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	$(VENV)/bin/python $(PIP) --editable .
	@touch $@

$(VENV)/dev: $(VENV)/core
	$(VENV)/bin/python $(PIP) --group dev --editable '.[app,notify]'
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
	$(VENV)/bin/pytest -m timed tests/integration
	$(VENV)/bin/pytest -m "not trainer and not timed" --numprocesses auto --dist worksteal

test-trainers:  ## tests against real trainers, each in an environment of its own (TRAINERS="trl verl" for some of them)
	$(PYTHON) tools/trainer_env.py test $(TRAINERS)

test: test-unit test-trainers  ## set up what the tests need and run them all

scorecard: $(VENV)/dev  ## measure recall, false alarms, latency and sensitivity, and write docs/scorecard.md (two hours on 2 cores)
	OMP_NUM_THREADS=1 $(VENV)/bin/python -m tests.scorecard --write docs/scorecard.md $(SCORECARD)

screenshots: $(VENV)/dev  ## take pictures of the app's pages for docs/images (needs Chromium)
	$(VENV)/bin/python tools/screenshots.py

docs: $(VENV)/dev  ## generate docs/ from the code
	$(VENV)/bin/python tools/gen_docs.py

docs-check: $(VENV)/dev
	$(VENV)/bin/python tools/gen_docs.py --check

check: lint type docs-check test  ## everything that CI runs

clean:  ## remove .venv and caches (clean-trainers removes the rest)
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis dist

clean-trainers:  ## remove the environments of real trainers, which all checkouts share
	$(PYTHON) tools/trainer_env.py clean
