# Every target builds .venv first, so each works as the first command on a fresh clone.
PYTHON ?= python3
SEEDS ?= 1000
KILLS ?= 200
SECONDS ?= 600
BIN := .venv/bin

.PHONY: run test check bench simulate torture fuzz clean

run: .venv/ready
	$(BIN)/posthouse serve --dev --auto-create

test: .venv/ready
	$(BIN)/coverage run -m pytest tests/core tests/store
	$(BIN)/coverage report
	$(BIN)/pytest --ignore tests/core --ignore tests/store

check: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: .venv/ready
	$(BIN)/python -m bench.core
	$(BIN)/python -m bench.engine
	$(BIN)/python -m bench.recovery
	$(BIN)/python -m bench.backlog
	$(BIN)/python -m bench.start
	$(BIN)/python -m bench.http
	$(BIN)/python -m bench.feed
	$(BIN)/python -m bench.servicebus

simulate: .venv/ready
	$(BIN)/python -m tests.simulate --seeds $(SEEDS)

torture: .venv/ready
	TORTURE=1 KILLS=$(KILLS) $(BIN)/pytest tests/crash

fuzz: .venv/ready
	$(BIN)/python -m tests.fuzz --seconds $(SECONDS)

clean:
	rm -rf .venv .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Posthouse needs Python 3.11 or newer; name one: make PYTHON=python3.11")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip -c constraints.txt
	$(BIN)/python -m pip install --quiet -c constraints.txt --editable . --group dev
	touch $@
