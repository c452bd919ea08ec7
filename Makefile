# make run            set up .venv, then measure what this machine's cards deliver together
# make run ARGS="gpus=2 model=mlp"    the same with overrides
# make test           set up .venv, then ruff, mypy, import contracts and pytest
# make faults         the ways to fail that make test leaves out
# make long           shares of every pipeline schedule and other checks of half a minute and more
# make nodes          the long tests over several nodes and of Ray (root, ip and tc); make nodes-table writes docs/nodes.md's table
# make benchmark      our step time against a hand-written DDP loop
# make accuracy       refit the pricing constants from benchmarks/data and write docs/accuracy.md
VENV := .venv
PYTHON := $(VENV)/bin/python
EVERY_TIME := not faults and not long and not nodes

.PHONY: help setup run test faults long check format benchmark accuracy nodes nodes-table

help:
	@sed -n 's/^# //p' Makefile

setup: $(VENV)/.ready

# Bytecode is made once, on all cores: pip makes it on one, and where the environment forbids Python to keep it every rank would compile torch anew.
$(VENV)/.ready: requirements.lock pyproject.toml
	python3 -m venv $(VENV)
	$(PYTHON) -m pip install --quiet --no-compile --disable-pip-version-check --requirement requirements.lock
	$(PYTHON) -m compileall -qq -j 0 $(VENV)/lib || true # some packages carry files for newer Pythons
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

# Tests that start ranks take turns: they measure, and need the machine for themselves.
test: check
	$(PYTHON) -m pytest -n auto -m "not ranks and $(EVERY_TIME)" $(PYTEST_ARGS)
	$(PYTHON) -m pytest -m "ranks and $(EVERY_TIME)" $(PYTEST_ARGS)

faults: setup
	$(PYTHON) -m pytest -m faults $(PYTEST_ARGS)

long: setup
	$(PYTHON) -m pytest -m long $(PYTEST_ARGS)

format: setup
	$(PYTHON) -m ruff check --fix .
	$(PYTHON) -m ruff format .

benchmark: setup
	$(PYTHON) benchmarks/overhead.py

accuracy: setup
	$(PYTHON) benchmarks/fit.py
	$(PYTHON) benchmarks/accuracy.py
	$(PYTHON) benchmarks/steps.py fit
	$(PYTHON) benchmarks/steps.py
	$(PYTHON) benchmarks/pairs.py fit
	$(PYTHON) benchmarks/pairs.py

nodes: setup
	$(PYTHON) -m pytest -m nodes $(PYTEST_ARGS)

nodes-table: setup
	$(PYTHON) benchmarks/nodes_table.py
