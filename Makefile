# Two commands: `make run` sets up and runs FedRFQ on the embedded data; `make test` sets up and
# passes the tests. `make docs` builds the site, `make test-wheel` tries the wheel on every Python.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Not compiled at once: of the thousands of modules of PyTorch and Ray only some are ever imported.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt
# What is imported is compiled then, once, and kept, whatever the environment says.
unexport PYTHONDONTWRITEBYTECODE
# One more than two cores have: many tests wait for processes, sockets and timers.
WORKERS ?= 3

.PHONY: run test test-extras docs test-wheel test-images bench setup clean
run: $(VENV)/.installed
	$(BIN)/fedrfq run examples/quickstart.toml
	@command -v fedrfq > /dev/null || echo 'To have `fedrfq` on the path: source $(BIN)/activate'

test: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest -n $(WORKERS) --dist worksteal

# What needs large packages that no other test does; Jupyter, too, to run a notebook as users do.
test-extras: $(VENV)/.installed-dev
	$(PIP) -e '.[huggingface,track,cuda]' nvidia-cuda-nvrtc nbclient ipykernel
	$(BIN)/pytest tests/data/test_huggingface.py tests/runs/test_trackers.py \
		tests/models/test_fused_on_cuda.py tests/project/test_notebooks.py

docs: $(VENV)/.installed-dev
	$(BIN)/python docs/generate.py
	$(BIN)/zensical build --strict --clean
	@echo "the site is in site/: open site/index.html, or run $(BIN)/zensical serve"

test-wheel: $(VENV)/.installed-dev
	$(BIN)/python tests/project/wheel.py

# Builds the images of deploy/ and runs a trial consortium in them; needs buildah and mmdebstrap.
test-images: $(VENV)/.installed-dev
	$(BIN)/python tests/project/images.py

bench: $(VENV)/.installed
	$(BIN)/python bench/engine.py

setup: $(VENV)/.installed-dev

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit("fedrfq needs Python 3.11 or newer" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e '.[train,report]'
	touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e '.[dev]'
	touch $(VENV)/.installed $@

clean:
	rm -rf $(VENV) site dist
