# The front door. Every target sets up what it needs: python3 (3.11 or newer, with venv), make and a package index.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := -m pip install --quiet --disable-pip-version-check
READY := $(VENV)/.ready
PEERS := .cache/peers/0.1.2/.ready .cache/peers/0.4.2/.ready
BENCH_PEERS := .cache/peers/bench/.ready
NODE_CLIENT := .cache/javascript/.ready
EXAMPLES := .cache/examples/.ready
DOCS := .cache/docs/.ready

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint types peers examples node-client docs reference lock clean
.PHONY: bench bench-connections bench-computer bench-registry bench-agent bench-peers

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(READY): requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "a2c-smcp needs Python 3.11 or newer: make PYTHON=python3.12 ...")'
	@echo "setting up $(VENV) (once, until requirements.lock changes)" >&2
	@$(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/python $(PIP) --require-hashes -r requirements.lock
	@$(BIN)/python $(PIP) --no-deps --no-build-isolation -e .
	@touch $@

setup: $(READY) ## Make the virtual environment in .venv

demo: $(READY) ## Run the main job: a Server, a computer and an agent, told as a story
	@$(BIN)/a2c-smcp demo

lint: $(READY) ## Style and import contracts
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/lint-imports

types: $(READY) ## Strict type check of the package
	@$(BIN)/mypy

peers: $(PEERS) ## Install the published package, to be tested against, in .cache/peers

.cache/peers/%/.ready: tests/interop/peers-%.txt
	@echo "installing the published a2c-smcp $* (once, until its lock changes)" >&2
	@$(PYTHON) -m venv --clear $(@D)
	@$(@D)/bin/python $(PIP) --require-hashes -r $<
	@touch $@

examples: $(EXAMPLES) ## Install what the examples stand on in .cache/examples

$(EXAMPLES): examples/requirements.txt
	@echo "installing what the examples stand on (once, until its lock changes)" >&2
	@$(PYTHON) -m venv --clear $(@D)
	@$(@D)/bin/python $(PIP) --require-hashes -r $<
	@$(@D)/bin/python $(PIP) --no-deps --no-build-isolation -e .
	@touch $@

node-client: $(if $(shell command -v node >/dev/null && command -v npm),$(NODE_CLIENT)) ## Install what is JavaScript among the peers in .cache/javascript

$(NODE_CLIENT): tests/interop/javascript/package.json tests/interop/javascript/package-lock.json
	@echo "installing the JavaScript client and MCP servers (once, until their lock changes)" >&2
	@mkdir -p $(@D)
	@cp $^ $(@D)
	@npm ci --prefix $(@D) --loglevel error --ignore-scripts --no-audit --no-fund >/dev/null
	@touch $@

docs: $(DOCS) ## Build the documentation into site/, strictly
	@NO_MKDOCS_2_WARNING=1 $(<D)/bin/mkdocs build --strict --quiet
	@echo "site/index.html"

$(DOCS): docs/requirements.txt
	@echo "installing what builds the documentation (once, until its lock changes)" >&2
	@$(PYTHON) -m venv --clear $(@D)
	@$(@D)/bin/python $(PIP) --require-hashes -r $<
	@touch $@

reference: $(READY) ## Print the reference pages of the documentation anew from the code
	@$(BIN)/python -m reference

test: lint types peers examples node-client $(DOCS) ## All checks and all tests
	@$(BIN)/pytest --numprocesses logical --dist worksteal

bench: bench-connections bench-computer bench-agent bench-registry ## All benchmarks; ratios beside others are printed

bench-connections: $(READY) ## Joins per second, and memory per connection
	@$(BIN)/python -m benchmarks.connections

bench-computer: $(READY) $(PEERS) ## Tools and desktop of a computer, beside the published package's
	@$(BIN)/python -m benchmarks.computer

bench-agent: $(READY) ## A call through our agent, beside a bare python-socketio client
	@$(BIN)/python -m benchmarks.agent

bench-registry: $(BENCH_PEERS) ## A tool call in the process, beside pydantic-ai, LangChain and FastMCP
	@$(<D)/bin/python -m benchmarks.registry

bench-peers: $(PEERS) $(BENCH_PEERS) ## Install what the benchmarks compare with in .cache/peers

$(BENCH_PEERS): benchmarks/peers.txt
	@echo "installing what the registry is measured beside (once, until its lock changes)" >&2
	@$(PYTHON) -m venv --clear $(@D)
	@$(@D)/bin/python $(PIP) --require-hashes -r $<
	@touch $@

lock: $(READY) ## Renew requirements.lock from pyproject.toml, and those of the documentation's tools and the examples
	@$(BIN)/uv pip compile pyproject.toml --extra server --extra cli --extra vrl --extra keyring --group dev --universal --python-version 3.11 \
		--generate-hashes --no-emit-index-url --upgrade --quiet --output-file requirements.lock
	@$(BIN)/uv pip compile docs/requirements.in --universal --python-version 3.11 \
		--generate-hashes --no-emit-index-url --upgrade --quiet --output-file docs/requirements.txt
	@$(BIN)/uv pip compile pyproject.toml examples/requirements.in --extra server --universal --python-version 3.11 \
		--generate-hashes --no-emit-index-url --upgrade --quiet --output-file examples/requirements.txt

clean: ## Remove what set-up and tests made
	@rm -rf $(VENV) .cache site .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
