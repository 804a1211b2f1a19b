# Two commands are all a newcomer needs: `make run` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export FLWR_TELEMETRY_ENABLED := 0
export FLWR_DISABLE_UPDATE_CHECK := 1

.PHONY: install run lint test test-compose test-hosts bench clean

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

run: install
	$(BIN)/coinflower run

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	$(BIN)/pytest

# The cluster of docker-compose.yml on a container engine that is installed if missing; needs root.
test-compose: install
	$(BIN)/pytest -rs -x --timeout=900 tests/compose

# Four hosts in network namespaces, set up by the commands of deploy/README.md; needs root.
test-hosts: install
	$(BIN)/pytest -rs -x tests/hosts

bench: install
	$(BIN)/python -m experiments.bench

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache *.egg-info
