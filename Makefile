# These commands do all the set-up, each from a fresh clone: `make demo`, `make test` and `make test-all`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
WORKERS := $(shell echo $$(( $$(nproc) + 1 )))  # one more than cores, for tests of real federations mostly wait

.PHONY: demo test test-all lint clean

demo: $(VENV)/installed
	$(BIN)/fedgen run --out runs/demo-$$(date +%Y%m%d-%H%M%S)

# Minutes, and something of every part.
test: lint
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --durations 10 -m "not slow"

# The rest: every algorithm in every place, real federations that fail, programs compiled as users' are.
test-all: $(VENV)/installed-dev
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --durations 10 -m slow

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/installed: $(BIN)/python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	touch $@

$(VENV)/installed-dev: $(BIN)/python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@ $(VENV)/installed

clean:
	rm -rf $(VENV) build src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
