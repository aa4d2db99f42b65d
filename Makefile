# The front door. Every target sets up what it needs: python3 (3.11 or newer, with venv), make and a package index.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := -m pip install --disable-pip-version-check
READY := $(VENV)/.ready
PEERS := .cache/peers/0.1.2/.ready .cache/peers/0.4.2/.ready
BENCH_PEERS := .cache/peers/bench/.ready
NODE_CLIENT := .cache/javascript/.ready
NODE_SERVER := .cache/bench-javascript/.ready
CONFORMANCE := .cache/conformance/.ready
NODE := $(shell command -v node >/dev/null && command -v npm)
EXAMPLES := .cache/examples/.ready
CLIENTS := .cache/clients/.ready
FRAMEWORKS := .cache/frameworks/.ready
MCP_CLIENTS := .cache/mcp-clients/.ready
DOCS := .cache/docs/.ready
BROWSER := .cache/browser/.ready
WINDOWS := .cache/windows/.ready
LOWEST := .cache/lowest/.ready
# Every Python that we promise and this machine has, also those that pyenv keeps.
VERSIONS ?= 3.11 3.12 3.13
PYTHONS := $(strip $(foreach version,$(VERSIONS),$(firstword $(wildcard $(HOME)/.pyenv/versions/$(version).*/bin/python) \
	$(shell command -v python$(version)))))

# Tests of our programs as people run them: at a terminal, as the guides show, killed, flooded, on several nodes, beside
# published peers.
PROGRAM_TESTS := tests/cli tests/interop tests/nodes $(filter-out tests/windows/%,$(wildcard tests/*/test_*program*.py)) $(wildcard tests/test_*guide*.py) \
	$(patsubst %,tests/test_%.py,client_pages quick_start set_up) \
	$(patsubst %,tests/bridge/test_%.py,apart http killed questions through trouble) \
	$(patsubst %,tests/server/test_%.py,crowd isolation mcp_clients unauthenticated) \
	tests/mcp_host/test_hostile_servers.py
PROCESS_TESTS := $(patsubst %,tests/mcp_host/test_%.py,stdio manager session sandbox transports) \
	$(patsubst %,tests/computer/test_%.py,killed scanners starting program) tests/cli/test_demo.py tests/cli/test_up.py
OTHER_TESTS := tests/clients tests/browser tests/monitoring tests/servers tests/windows tests/booted

# A run that keeps no bytecode compiles everything again in each of its processes.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/pytest --workers auto

# $(call install,ENVIRONMENT,LOCK): makes a virtual environment of a lock with hashes. pip says too much or nothing for half a
# minute, so every tenth package is named. A pipe has the status of its end: a file tells that pip has failed.
define install
@$(PYTHON) -m venv --clear $(1)
@total=$$(grep -c '^[a-zA-Z].*==' $(2)); n=0; echo "  fetching $$total packages of $(2)" >&2; \
	{ $(1)/bin/python -u $(PIP) --require-hashes -r $(2) || touch $(1)/.failed; } | while read -r word package _; do \
		case $$word in \
			Collecting | Processing) n=$$((n + 1)); [ $$((n % 10)) != 0 ] || echo "  $$n of $$total: $${package##*/}" >&2 ;; \
			Installing) echo "  all are fetched, and being installed" >&2 ;; \
		esac; \
	done; \
	[ ! -e $(1)/.failed ]
endef

.DEFAULT_GOAL := help
.PHONY: help setup demo demo-cluster test test-fast test-pythons test-python test-lowest test-programs test-clients test-monitoring test-browser test-servers test-posix test-windows test-service screenshots conformance test-faults test-deep lint types peers examples clients node-client docs reference lock clean
.PHONY: bench bench-quick bench-relay bench-end-to-end bench-progress bench-against bench-crowds bench-growth bench-pressure
.PHONY: bench-computer bench-agent bench-registry bench-nodes bench-bridge bench-sealed bench-monitored bench-console bench-catalog bench-directory bench-peers

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(READY): requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "a2c-smcp needs Python 3.11 or newer: make PYTHON=python3.12 ...")'
	@echo "setting up $(VENV) (once, until requirements.lock changes)" >&2
	$(call install,$(VENV),requirements.lock)
	@echo "  installing a2c-smcp itself" >&2
	@$(BIN)/python $(PIP) --quiet --no-deps --no-build-isolation -e .
	@touch $@

setup: $(READY) ## Make the virtual environment in .venv

demo: $(READY) ## Run the main job: a Server, a computer and an agent, printing each step
	@$(BIN)/a2c-smcp demo

demo-cluster: $(READY) ## Three nodes on one Valkey, one of which is killed under load
	@$(BIN)/python examples/cluster.py

lint: $(READY) ## Style, import contracts and the limits of the layout
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/lint-imports
	@$(BIN)/python -m tools.layout

types: $(READY) ## Strict type check of the package
	@$(BIN)/mypy

peers: $(PEERS) ## Install the published package, to be tested against, in .cache/peers

.cache/peers/%/.ready: tests/interop/peers-%.txt
	@echo "installing the published a2c-smcp $* (once, until its lock changes)" >&2
	$(call install,$(@D),$<)
	@touch $@

examples: $(EXAMPLES) ## Install what the examples stand on in .cache/examples

$(EXAMPLES): examples/requirements.txt
	@echo "installing what the examples stand on (once, until its lock changes)" >&2
	$(call install,$(@D),$<)
	@$(@D)/bin/python $(PIP) --quiet --no-deps --no-build-isolation -e .
	@touch $@

clients: $(CLIENTS) $(FRAMEWORKS) $(MCP_CLIENTS) ## Install MCP clients and frameworks of others, each group in .cache

$(CLIENTS): tests/clients/requirements.txt
	@echo "installing the Agent beside LangChain's MCP adapter (once, until its lock changes)" >&2
	$(call install,$(@D),$<)
	@$(@D)/bin/python $(PIP) --quiet --no-deps --no-build-isolation -e .
	@touch $@

$(FRAMEWORKS): examples/frameworks.txt
	@echo "installing frameworks that have an MCP client (once, until their lock changes)" >&2
	$(call install,$(@D),$<)
	@touch $@

$(MCP_CLIENTS): tests/clients/typescript/package.json tests/clients/typescript/package-lock.json
	@command -v npm >/dev/null || { echo "these tests need npm, which is not on the PATH" >&2; exit 1; }
	@echo "installing the MCP Inspector, Claude Code, Codex, Gemini CLI, opencode, the TypeScript SDKs and Node.js (once, until their lock changes; half a gigabyte)" >&2
	@mkdir -p $(@D)
	@cp $^ $(@D)
	@npm ci --prefix $(@D) --loglevel error --ignore-scripts --no-audit --no-fund >/dev/null
	@touch $@

node-client: $(NODE_CLIENT) ## Install the JavaScript client and MCP servers in .cache/javascript

$(NODE_CLIENT): tests/clients/javascript/package.json tests/clients/javascript/package-lock.json
	@command -v node npm >/dev/null || { echo "these tests need Node.js with npm, which is not on the PATH" >&2; exit 1; }
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
	$(call install,$(@D),$<)
	@touch $@

reference: $(READY) ## Print the reference pages of the documentation anew from the code
	@$(BIN)/python -m reference

# The types are checked while the tests are collected, which keeps one core busy. What that found is shown at the end.
test: lint $(DOCS) ## All checks, and the tests of the package: about five minutes
	@$(BIN)/mypy >.cache/types.txt 2>&1 & types=$$!; \
	$(PYTEST) $(addprefix --ignore ,$(PROGRAM_TESTS) $(OTHER_TESTS)); result=$$?; \
	wait $$types || result=1; cat .cache/types.txt; exit $$result

test-fast: $(READY) ## The tests that start no process, in half a minute
	@$(PYTEST) --fast

test-pythons: ## The tests that start no process, and the demo, on each Python from 3.11 to 3.13 of this machine: four minutes
	@[ -n "$(PYTHONS)" ] || echo "no Python of $(VERSIONS) is on the PATH, nor kept by pyenv" >&2
	@for python in $(PYTHONS); do \
		version=$$($$python -c 'import sys; print("%d.%d" % sys.version_info[:2])') && echo "Python $$version: $$python" >&2 && \
		$(MAKE) --no-print-directory test-python PYTHON=$$python VENV=.cache/python-$$version || exit 1; \
	done

test-python: $(READY)
	@$(PYTEST) --fast
	@$(BIN)/a2c-smcp demo

test-lowest: $(LOWEST) ## The same with the lowest versions of dependencies that pyproject.toml allows
	@PYTHONDONTWRITEBYTECODE= $(<D)/bin/pytest --workers auto --fast
	@$(<D)/bin/a2c-smcp demo

$(LOWEST): tests/lowest.txt
	@echo "installing the lowest versions that are allowed (once, until their lock changes)" >&2
	$(call install,$(@D),$<)
	@$(@D)/bin/python $(PIP) --quiet --no-deps --no-build-isolation -e .
	@touch $@

test-programs: $(READY) $(PEERS) ## Our programs at a terminal, in the guides, killed, flooded, on several nodes: four minutes
	@$(PYTEST) $(PROGRAM_TESTS)

test-clients: $(READY) $(DOCS) $(EXAMPLES) $(CLIENTS) $(FRAMEWORKS) $(MCP_CLIENTS) $(NODE_CLIENT) ## What needs Node.js or a framework: MCP clients of others, examples, JavaScript
	@$(PYTEST) tests/clients

test-servers: $(READY) ## Twelve MCP servers of npm and PyPI, added and called in their sandboxes: needs npm, git and both registries
	@command -v node npm git >/dev/null || { echo "these tests need Node.js with npm, and git, which are not on the PATH" >&2; exit 1; }
	@$(BIN)/pytest tests/servers --workers 2

test-monitoring: $(READY) ## The dashboard and the alerts, with Debian's Prometheus: half a minute
	@command -v prometheus promtool >/dev/null || { echo "these tests need prometheus and promtool: install Debian's package prometheus" >&2; exit 1; }
	@$(PYTEST) tests/monitoring

# What drives the browser is no part of .venv: it is large, and nothing else needs it.
test-browser: $(READY) $(BROWSER) ## The consoles in a real Chromium: needs chromium and npm, four minutes
	@PYTHONPATH="$$(.cache/browser/python/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" PYTHONDONTWRITEBYTECODE= $(BIN)/pytest tests/browser

screenshots: $(READY) $(BROWSER) ## Renew the pictures of the consoles in docs/images: as test-browser, and a Chinese font
	@PYTHONPATH="$$(.cache/browser/python/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" $(BIN)/pytest tests/browser/test_screenshots.py tests/browser/test_apps.py --screenshots

$(BROWSER): tests/browser/requirements.txt tests/browser/package.json tests/browser/package-lock.json
	@command -v npm >/dev/null || { echo "these tests need npm, which is not on the PATH" >&2; exit 1; }
	@echo "installing what drives the browser (once, until its lock changes)" >&2
	@mkdir -p $(@D)
	$(call install,$(@D)/python,$<)
	@cp tests/browser/package.json tests/browser/package-lock.json $(@D)
	@npm ci --prefix $(@D) --loglevel error --ignore-scripts --no-audit --no-fund >/dev/null
	@touch $@

# What a Mac has: no subreaper, no pidfd, no Landlock, no filter of system calls, no /proc for guards.
test-posix: $(READY) ## The tests of processes without what only Linux has: a minute
	@_A2C_WITHOUT_LINUX=1 $(PYTEST) $(PROCESS_TESTS)

test-windows: $(READY) $(WINDOWS) ## Server and Computer in Windows' own Python: needs Wine, a compiler and npm, three minutes
	@PYTHONDONTWRITEBYTECODE= $(BIN)/pytest tests/windows

$(WINDOWS): tests/windows/set_up.py tests/windows/requirements.txt tests/windows/python.txt tests/windows/bcryptprimitives.c tests/windows/node/package.json tests/windows/node/package-lock.json
	@command -v wine x86_64-w64-mingw32-gcc >/dev/null || { echo "these tests need Wine and a compiler for Windows: install Debian's packages wine, wine64 and gcc-mingw-w64-x86-64-posix" >&2; exit 1; }
	@command -v npm >/dev/null || { echo "these tests need npm, which is not on the PATH" >&2; exit 1; }
	@echo "installing Windows' Python, Node.js and what a2c-smcp needs there (once, until their locks change)" >&2
	@$(BIN)/python -m tests.windows.set_up $(@D)
	@touch $@

# Not in CI: it wants root and namespaces, which few containers have.
test-service: $(READY) ## Services under systemd, which boots in namespaces of its own: needs root, two minutes
	@[ "$$(id -u)" = 0 ] && command -v unshare nsenter systemctl dbus-daemon >/dev/null || { echo "these tests need root, and Debian's packages systemd, libpam-systemd, dbus-user-session and util-linux" >&2; exit 1; }
	@PYTHONDONTWRITEBYTECODE= $(BIN)/pytest tests/booted

conformance: $(READY) $(CONFORMANCE) ## MCP's conformance suite against a computer and a served registry, for each revision of MCP
	@$(BIN)/python -m tests.conformance

$(CONFORMANCE): tests/conformance/package.json tests/conformance/package-lock.json
	@command -v npm >/dev/null || { echo "the conformance suite needs npm, which is not on the PATH" >&2; exit 1; }
	@echo "installing MCP's conformance suite and the Node.js that it needs (once, until its lock changes)" >&2
	@mkdir -p $(@D)
	@cp $^ $(@D)
	@npm ci --prefix $(@D) --loglevel error --ignore-scripts --no-audit --no-fund >/dev/null
	@touch $@

test-faults: $(READY) ## Calls under kills, pauses and cuts, with one node and with three: seven minutes
	@$(BIN)/python -m tests.faults --nodes 1
	@$(BIN)/python -m tests.faults --nodes 3

test-deep: $(READY) ## Socket.IO without sockets and the rules of offices, thirty times as many examples: five minutes
	@$(PYTEST) tests/engine tests/core/test_offices_machine.py tests/core/test_codec.py tests/computer/test_organize.py tests/directory/test_machine.py --hypothesis-profile=deep

bench: bench-peers ## All benchmarks, in twenty minutes; goals and ratios beside others are printed
	@$(BIN)/python -m benchmarks

bench-quick: bench-peers ## The same as a first impression, in a minute and a half
	@$(BIN)/python -m benchmarks --quick

bench-relay: bench-peers ## What relaying a call costs, beside python-socketio, the published package and Node
	@$(BIN)/python -m benchmarks relay

bench-end-to-end: bench-peers ## A call from agent to MCP server and back, beside the direct MCP call and the published package
	@$(BIN)/python -m benchmarks end_to_end

bench-progress: $(READY) ## How soon an agent hears how far a tool has got
	@$(BIN)/python -m benchmarks progress

bench-against: $(READY) ## What a plain call costs beside an older commit: make bench-against COMMIT=...
	@$(BIN)/python -m benchmarks.against $(COMMIT)

bench-crowds: bench-peers ## Many computers joining, and what connections cost, beside the published package and Node
	@$(BIN)/python -m benchmarks crowds

bench-growth: bench-peers ## How the cost of a call grows with offices, tools, windows and payload
	@$(BIN)/python -m benchmarks growth

bench-pressure: bench-peers ## Small calls while large results flow, and readers that do not read
	@$(BIN)/python -m benchmarks pressure

bench-computer: bench-peers ## Tools and desktop of a computer, beside the published package's
	@$(BIN)/python -m benchmarks computer

bench-agent: bench-peers ## A call through our agent, beside a bare python-socketio client
	@$(BIN)/python -m benchmarks agent

bench-registry: bench-peers ## A tool call in the process, beside pydantic-ai, LangChain and FastMCP
	@$(BIN)/python -m benchmarks registry

bench-nodes: bench-peers ## A call from node to node, beside python-socketio with its Redis manager
	@$(BIN)/python -m benchmarks nodes

bench-bridge: $(READY) ## A call of an MCP client through bridge, Server and computer, beside the direct call over HTTP
	@$(BIN)/python -m benchmarks bridge

bench-sealed: $(READY) ## What signing and sealing add to a call
	@$(BIN)/python -m benchmarks sealed

bench-monitored: $(READY) ## What metrics, the audit trail and traces add to a call
	@$(BIN)/python -m benchmarks monitored

bench-console: $(READY) $(BROWSER) ## The operator's console with 1,000 computers: pages, first paint, updates, CPU of the Server
	@$(BIN)/python -m benchmarks operator_console

bench-catalog: $(READY) ## What an MCP client is offered of many computers, and how well tools are found by words
	@$(BIN)/python -m benchmarks bridge_catalog tool_search

bench-directory: bench-peers ## The directory of many nodes under a crowd, and a million computers on paper
	@.cache/peers/bench/bin/python -m benchmarks.directory_simulation

bench-peers: $(READY) $(PEERS) $(BENCH_PEERS) $(if $(NODE),$(NODE_SERVER)) ## Install what the benchmarks compare with in .cache

$(BENCH_PEERS): benchmarks/peers.txt
	@echo "installing what the benchmarks stand on and compare with (once, until its lock changes)" >&2
	$(call install,$(@D),$<)
	@touch $@

$(NODE_SERVER): benchmarks/javascript/package.json benchmarks/javascript/package-lock.json
	@echo "installing Node's socket.io (once, until its lock changes)" >&2
	@mkdir -p $(@D)
	@cp $^ $(@D)
	@npm ci --prefix $(@D) --loglevel error --ignore-scripts --no-audit --no-fund >/dev/null
	@touch $@

# pip takes the newest release of a package that another one wants with an extra, unless the lock names the extra as well:
# then it refuses that release for want of a hash. So a release of somebody else's would break every fresh clone.
COMPILE = $(BIN)/uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-strip-extras --upgrade --quiet

lock: $(READY) ## Renew requirements.lock from pyproject.toml, and those of the documentation's tools, the clients and the examples
	@$(COMPILE) pyproject.toml --all-extras --group dev --output-file requirements.lock
	@$(COMPILE) pyproject.toml --all-extras --group dev --resolution lowest-direct --output-file tests/lowest.txt
	@$(COMPILE) docs/requirements.in --output-file docs/requirements.txt
	@$(COMPILE) pyproject.toml tests/clients/requirements.in --output-file tests/clients/requirements.txt
	@$(COMPILE) pyproject.toml examples/requirements.in --extra computer --extra server --output-file examples/requirements.txt
	@$(COMPILE) examples/frameworks.in --output-file examples/frameworks.txt
	@$(COMPILE) tests/browser/requirements.in --output-file tests/browser/requirements.txt
	@$(BIN)/uv pip compile --python-platform x86_64-pc-windows-msvc --python-version 3.11 --generate-hashes --no-emit-index-url --no-strip-extras --upgrade --quiet pyproject.toml --extra computer --extra server --extra cli --extra keyring --extra devices -c requirements.lock --output-file tests/windows/requirements.txt

clean: ## Remove what set-up and tests made
	@rm -rf $(VENV) .cache site .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
