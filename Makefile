# Needs git, make and Python 3.11 or newer. Everything else goes into .venv, pinned by hash in requirements/.
# PYTHON chooses the interpreter for a new .venv: make PYTHON=python3.12 demo

VENV := .venv
BIN := $(VENV)/bin
RELEASE := $(VENV)/release
PIP := $(BIN)/python tests/controlplane/progress.py "installing" -- \
	$(BIN)/python -m pip --disable-pip-version-check install --progress-bar off
PYTHON = $(shell for candidate in python3 python3.13 python3.12 python3.11; do \
	$$candidate -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$candidate && break; done)
#: Number of tests that run in parallel: one more than cores, as a test on an API server waits for half of its time.
JOBS ?= 3
#: The oldest supported release of Kubernetes, for `make compat`; CAPCARD_KUBERNETES selects that of the other targets.
OLDEST := 1.34.4
#: Duration of `make soak` in minutes; SEED selects its fault schedule (default: random).
MINUTES ?= 30
#: Number of mutants of `make mutation`; SEED selects them (default: 1).
SAMPLE ?= 400
#: Tests start programs by the hundred, and benchmarks measure starts: each would compile its modules anew.
unexport PYTHONDONTWRITEBYTECODE
PYTEST = $(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal

.DEFAULT_GOAL := help
.PHONY: help demo controlplane quick near test campaign soak lint format check bench bench-e2e bench-peers bench-controllers docs manifests pictures release audit lock clean

help: ## List all targets
	@sed -n 's/^\([a-z0-9-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 20

demo: $(VENV)/run.stamp ## Run a small cluster in the simulator and show jobs, queues and cards
	@$(BIN)/capcard-sched simulate -f config/examples/demo --until 10m -o table

# Required in CI (CI or CAPCARD_REQUIRE_CONTROLPLANE is set); elsewhere tests that need it are skipped without it.
controlplane: $(VENV)/dev.stamp ## Build etcd and kube-apiserver for the tests, once, with Go; part of `make test`
	@$(BIN)/python -m tests.controlplane.build
	@$(BIN)/python -m tests.manifests.helm.build
	@$(BIN)/python -m tests.daemon.usage.build
	@$(BIN)/python -m tests.oracles.pod_requests
	@$(BIN)/python -m tests.oracles.device_allocator

quick: $(VENV)/dev.stamp ## Run the tests that need no API server: about 90 s
	$(PYTEST) -m "not campaign" \
		tests/unit tests/vectors tests/scenarios tests/properties tests/malformed tests/architecture

near: $(VENV)/dev.stamp ## Run the tests near the changed files (BASE=main: changed since that commit)
	@near=$$($(BIN)/python -m tests.near $(or $(BASE),HEAD)) || exit 1; \
	if [ -n "$$near" ]; then $(PYTEST) -m "not campaign" $$near; else echo "no tests near the changed files"; fi

.PHONY: packages
packages: ## Install the Debian packages of the tests, as root: PostgreSQL and Chromium
	@tests/debian_packages.sh

# Every test is in one of the next two (tests/architecture/test_lanes.py).
test: controlplane ## Run the tests but the campaign: about twelve minutes, 20 to 40 when it builds the control plane
	$(PYTEST) -m "not campaign"

campaign: controlplane compared ## Run faults, failovers, restarts and variants, and the properties at length: about eighteen minutes
	HYPOTHESIS_PROFILE=campaign $(PYTEST) --timeout=600 -m "campaign or hypothesis"

# kube-scheduler, which the campaign compares with; it is of the same Go module as the control plane.
.PHONY: compared
compared: controlplane
	@$(BIN)/python -m tests.controlplane.build --compared

.PHONY: compat compat-built
compat: export CAPCARD_KUBERNETES = $(OLDEST)
compat: $(VENV)/dev.stamp ## Run a part of the tests on the oldest supported release of Kubernetes: three minutes
	@$(BIN)/python -m tests.controlplane.build
	$(PYTEST) -m compat

# Fails if the programs of that release are not built.
compat-built: export CAPCARD_KUBERNETES = $(OLDEST)
compat-built: $(VENV)/dev.stamp
	@$(BIN)/python -m tests.controlplane.build --check

.PHONY: mutants mutation
mutation: $(VENV)/mutation.stamp ## Run random mutants of the core (docs/mutation.md): SAMPLE=400 SEED=1
	HYPOTHESIS_PROFILE=mutation $(BIN)/python -m tests.mutants.sample --sample $(SAMPLE) --seed $(or $(SEED),1) --jobs $(JOBS)

mutants: controlplane ## Apply each mutant of docs/mutants.md to a copy and expect its test to fail
	$(BIN)/python -m tests.mutants $(IDS)

soak: controlplane ## Run two replicas under churn and random faults and check every revision: MINUTES=30 SEED=7
	$(BIN)/python -m tests.soak --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

lint: $(VENV)/dev.stamp ## Check style, types and import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy docs/generate.py
	$(BIN)/mypy manifests/render.py manifests/lost_fields.py
	$(BIN)/mypy manifests/field_names.py
	$(BIN)/lint-imports

format: $(VENV)/dev.stamp ## Format the code and apply automatic fixes
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

check: lint test campaign ## Run lint and all tests

bench: $(VENV)/dev.stamp ## Measure the scheduler; prints figures (BENCH="--openb FOLDER" adds F1 to F4)
	$(BIN)/python -m benchmarks.bench $(BENCH)

bench-e2e: controlplane ## Measure the daemon on a real API server: ten minutes on an idle machine
	$(BIN)/python -m benchmarks.e2e

bench-peers: controlplane ## Measure the scenes of other schedulers on a real API server: 40 minutes on an idle machine
	$(BIN)/python -m benchmarks.e2e.peers $(BENCH)

bench-controllers: controlplane ## Measure the controllers on a real API server: ten minutes on an idle machine
	$(BIN)/python -m benchmarks.e2e --parts jobs,resync

docs: $(VENV)/run.stamp ## Generate the docs pages that are derived from tables
	$(BIN)/python docs/generate.py

pictures: $(VENV)/dev.stamp ## Make the pictures of docs/web with Debian's chromium
	@$(BIN)/python -m tests.web.pictures

manifests: $(VENV)/run.stamp ## Generate manifests and dashboards
	$(BIN)/python manifests/render.py
	$(BIN)/python manifests/field_names.py
	$(BIN)/python manifests/grafana/dashboards.py

KREW_URL ?= https://releases.example.com/capcard-sched
release: $(RELEASE)/made.stamp ## Build sdist, wheels, SBOMs (CycloneDX), a plugin of krew and checksums into dist/
	@rm -rf dist
	@$(RELEASE)/bin/python -m build --outdir dist
	@for folder in distributions/*; do $(RELEASE)/bin/python -m build --wheel --outdir dist $$folder || exit 1; done
	@$(RELEASE)/bin/python requirements/sbom.py dist
	@$(RELEASE)/bin/python requirements/krew.py dist $(KREW_URL)
	@cd dist && sha256sum * > SHA256SUMS && cat SHA256SUMS

audit: $(RELEASE)/made.stamp ## Look up known vulnerabilities of the pinned packages (needs the database of PyPI)
	@$(RELEASE)/bin/python requirements/audit.py

lock: $(VENV)/dev.stamp ## Update requirements/*.lock from pyproject.toml
	@for pair in run:build dev:dev mutation:mutation; do \
		$(BIN)/uv pip compile pyproject.toml --quiet --upgrade --universal --python-version 3.11 --group $${pair#*:} \
			--generate-hashes --no-emit-index-url --no-emit-find-links --no-header \
			-o requirements/$${pair%:*}.lock || exit 1; \
	done
	@$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --group release \
		--generate-hashes --no-emit-index-url --no-emit-find-links --no-header -o requirements/release.lock

clean: ## Remove .venv and caches
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis build dist

$(VENV)/made.stamp:
	@test -n "$(PYTHON)" || { echo "capcard-sched needs Python 3.11 or newer and found none." \
		"Name one: make PYTHON=/path/to/python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "$(PYTHON) is older than Python 3.11, which capcard-sched needs." >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { echo "$(PYTHON) cannot make virtual environments." \
		"Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@touch $@

# The package and the optional distributions are installed in place; versions and entry points are in their pyproject.toml.
$(VENV)/run.stamp: $(VENV)/made.stamp requirements/run.lock pyproject.toml $(wildcard distributions/*/pyproject.toml)
	@echo "installing what capcard-sched needs into $(VENV) (once)" >&2
	@$(PIP) --require-hashes -r requirements/run.lock
	@$(PIP) --no-deps --no-build-isolation -e . $(patsubst %,-e %,$(wildcard distributions/*))
	@touch $@

$(VENV)/dev.stamp: $(VENV)/run.stamp requirements/dev.lock
	@echo "installing what tests and checks need into $(VENV) (once)" >&2
	@$(PIP) --require-hashes -r requirements/dev.lock
	@touch $@

$(VENV)/mutation.stamp: $(VENV)/dev.stamp requirements/mutation.lock
	@echo "installing what mutation testing needs into $(VENV) (once)" >&2
	@$(PIP) --require-hashes -r requirements/mutation.lock
	@touch $@

# Apart: these packages may need other versions than the product.
$(RELEASE)/made.stamp: $(VENV)/made.stamp requirements/release.lock
	@echo "installing what releases need into $(RELEASE) (once)" >&2
	@test -x $(RELEASE)/bin/python || $(BIN)/python -m venv $(RELEASE)
	@$(RELEASE)/bin/python -m pip --disable-pip-version-check install --quiet --require-hashes -r requirements/release.lock
	@touch $@
