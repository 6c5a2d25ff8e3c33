# These commands do all the set-up, each from a fresh clone: `make demo`, `make test`, `make test-all` and `make docs`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
WORKERS := $(shell echo $$(( $$(getconf _NPROCESSORS_ONLN) + 1 )))  # one more than cores, for tests of real federations mostly wait

.PHONY: demo test test-all docs packages lint clean

demo: $(VENV)/installed
	$(BIN)/fedgen run --out runs/demo-$$(date +%Y%m%d-%H%M%S)

# Minutes, and something of every part.
test: lint
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --durations 10 -m "not slow"

# The rest: every algorithm in every place, real federations that fail, programs compiled as users' are.
test-all: $(VENV)/installed-dev
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --durations 10 -m slow

# The documentation as a site that needs no network: site/index.html. Runs the tutorials; a warning is an error.
docs: $(VENV)/installed-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# The wheel and the source distribution, in dist/.
packages: $(VENV)/installed-dev
	$(BIN)/python -m build

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
	rm -rf $(VENV) build dist site src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
