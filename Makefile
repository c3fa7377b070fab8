# Two commands: `make run` sets up and runs FedRFQ on the embedded data, `make test` sets up and passes the tests.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: run test check bench setup compiled clean
run: $(VENV)/.installed
	$(BIN)/fedrfq run examples/quickstart.toml

test: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest -n 2

bench: $(VENV)/.installed
	$(BIN)/python bench/engine.py

setup: $(VENV)/.installed-dev

# A wheel whose committee is compiled (docs/operating.md), in dist/; needs a C compiler
compiled:
	FEDRFQ_COMPILE=1 $(PYTHON) -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("fedrfq needs Python 3.11 or newer" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV)
