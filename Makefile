# Two commands are all a newcomer needs: `make run` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export FLWR_TELEMETRY_ENABLED := 0
export FLWR_DISABLE_UPDATE_CHECK := 1

.PHONY: install run lint test test-tools test-compose test-hosts fuzz soak wire lock vulnerabilities docs bench clean

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml
	@echo "Installing what is needed into $(VENV); pip says nothing for a minute or two."
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
	$(BIN)/pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder

# What some tests are skipped without: Chromium, nginx, kubectl, docker compose, from Debian; needs root.
test-tools: install
	$(BIN)/python -m tests.support.tools

# The cluster of docker-compose.yml on a container engine that is installed if missing; needs root.
test-compose: install
	$(BIN)/pytest -x --timeout=1800 -m compose tests/compose

# Hosts in network namespaces, set up by the commands of deploy/README.md; needs root.
test-hosts: install
	$(BIN)/pytest -x -m hosts tests/hosts

# Mutated messages and files against everything that parses them, SECONDS for each kind.
fuzz: SECONDS ?= 60
fuzz: install
	for kind in texts files client server notary; do \
		PYTHONPATH=. $(BIN)/python tests/fuzz/fuzz_run.py $$kind -max_total_time=$(SECONDS) || exit 1; \
	done

# Thirty nodes under random kills, cuts, full disks and clock jumps; fails if a promise was broken.
soak: SECONDS ?= 600
soak: install
	$(BIN)/pytest -m soak tests/soak
	$(BIN)/python -m tests.soak.soak --seconds $(SECONDS)

# What the server and a listener on the network can find out about the coins; takes long.
wire: ROUNDS ?= 400
wire: install
	$(BIN)/python -m tests.wire.report $(ROUNDS)

# What a deployment installs, by hash, and the same versions without hashes. Versions that still fit
# stay. torch's CPU build is not on PyPI: pip's find-links or extra index must offer it here.
lock: install
	CUSTOM_COMPILE_COMMAND="make lock" $(BIN)/pip-compile --quiet --generate-hashes --allow-unsafe --strip-extras \
		--no-annotate --no-emit-index-url --no-emit-find-links --constraint deploy/constraints.txt \
		--output-file deploy/lock.txt pyproject.toml
	(echo "# Made by: make lock"; sed -nE 's/^([a-z][^ ]*==[^ ]*) .*/\1/p' deploy/lock.txt) > $(VENV)/constraints.txt
	mv $(VENV)/constraints.txt deploy/constraints.txt

# Known vulnerabilities of the locked dependencies; says so if the service cannot be reached.
# A service knows a local build, such as torch's, by its public version.
vulnerabilities: SERVICE ?= osv
vulnerabilities: install
	@sed 's/+.*//' deploy/constraints.txt > $(VENV)/audited.txt
	@$(BIN)/pip-audit --no-deps --disable-pip --progress-spinner=off --vulnerability-service $(SERVICE) \
		--requirement $(VENV)/audited.txt 2> $(VENV)/audit.log || \
	if grep -qE 'ConnectionError|ServiceError|Max retries exceeded|Failed to establish' $(VENV)/audit.log; then \
		echo "NOT CHECKED: the service '$(SERVICE)' cannot be reached from here." >&2; \
	else cat $(VENV)/audit.log >&2; exit 1; fi

# The documentation as a site in site/; a warning is an error.
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

$(VENV)/.docs: pyproject.toml $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,docs]'
	touch $@

bench: install
	$(BIN)/python -m tools.bench

clean:
	rm -rf $(VENV) build dist site .mypy_cache .ruff_cache .pytest_cache src/*.egg-info
