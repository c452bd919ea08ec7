# make run            set up .venv, then measure what this machine's cards deliver together
# make run ARGS="gpus=2 model=mlp"    the same with overrides
# make test           set up .venv, then ruff, mypy, import contracts and pytest
# make nodes          the long tests over network namespaces (needs root, ip and tc); make nodes-table writes docs/nodes.md's table
VENV := .venv
PYTHON := $(VENV)/bin/python

.PHONY: help setup run test check format benchmark nodes nodes-table

help:
	@sed -n 's/^# //p' Makefile

setup: $(VENV)/.ready

$(VENV)/.ready: requirements.lock pyproject.toml
	python3 -m venv $(VENV)
	$(PYTHON) -m pip install --quiet --disable-pip-version-check --requirement requirements.lock
	$(PYTHON) -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $@

run: setup
	$(PYTHON) -m scaling.run $(ARGS)

check: setup
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m codespell_lib README.md CHANGELOG.md CONTRIBUTING.md docs conf scaling launch tests benchmarks
	$(PYTHON) -m mypy
	$(VENV)/bin/lint-imports

test: check
	$(PYTHON) -m pytest $(PYTEST_ARGS)

format: setup
	$(PYTHON) -m ruff check --fix .
	$(PYTHON) -m ruff format .

benchmark: setup
	$(PYTHON) benchmarks/overhead.py

nodes: setup
	$(PYTHON) -m pytest -m nodes tests/nodes $(PYTEST_ARGS)

nodes-table: setup
	$(PYTHON) benchmarks/nodes_table.py
