# Two commands: `make demo` sets up everything and shows Tonnage at work, `make test` runs all tests.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: help demo test lint unit crds clean

help:  ## Show this help
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

demo: $(VENV)/.lab  ## Build what is missing, run the demo, write demo.png, leave nothing running
	$(BIN)/tonnage lab demo --picture demo.png

test: lint  ## Everything: style, layers, types, then all tests
	$(BIN)/pytest -q

lint: $(VENV)/.dev  ## Format, rules, layers, types
	$(BIN)/ruff format --check operator tests
	$(BIN)/ruff check operator tests
	$(BIN)/lint-imports
	$(BIN)/mypy

unit: $(VENV)/.dev  ## The tests that need no cluster
	$(BIN)/pytest -q tests/unit tests/golden operator

crds: $(VENV)/.dev  ## Write the CRD anew from the types
	$(BIN)/tonnage crd > crds/modeldeployments.tonnage.dev.yaml
	cp crds/modeldeployments.tonnage.dev.yaml charts/tonnage/files/

clean:  ## Remove the virtual environment
	rm -rf $(VENV)

$(VENV)/.pip:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade 'pip>=25.1'
	touch $@

$(VENV)/.lab: $(VENV)/.pip pyproject.toml constraints.txt
	@echo 'installing Tonnage into $(VENV) ...'
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[lab]'
	touch $@

$(VENV)/.dev: $(VENV)/.lab
	@echo 'installing the tools for tests ...'
	$(BIN)/pip install --quiet --constraint constraints.txt --group dev
	touch $@
