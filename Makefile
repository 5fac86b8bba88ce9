PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: help demo test test-network fuzz lint types unit setup docs picture clean
.DEFAULT_GOAL := help

help: ## List the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-13s %s\n", $$1, $$2}'

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("purifl needs Python 3.11 or newer, $(PYTHON) is " + sys.version.split()[0]) if sys.version_info < (3, 11) else 0'
	@echo "Setting up .venv (once, about a minute) ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $(STAMP)

setup: $(STAMP) ## Set up .venv from pinned versions

demo: $(STAMP) ## Run the defence against a backdoor on embedded data, and write demo/ (about a minute)
	@$(BIN)/purifl compare --attack backdoor-9 --defenses lower,upper,gpd-paper,gpd --out demo --force

test: lint types unit ## Lint, check types and run the tests

lint: $(STAMP) ## Ruff and codespell
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/codespell src tests docs examples README.md CONTRIBUTING.md CHANGELOG.md Makefile

types: $(STAMP) ## Strict mypy
	@$(BIN)/mypy

unit: $(STAMP) ## The tests alone
	@OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist worksteal -q

test-network: $(STAMP) ## Federations of real processes, killed and disturbed (some minutes)
	@OMP_NUM_THREADS=1 $(BIN)/pytest -q -m network --timeout 600

fuzz: $(STAMP) ## Throw a minute of mutated bytes at the parser of messages
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[fuzz]'
	@$(BIN)/python tests/peer/fuzz_parsing.py -max_total_time=60

docs: $(STAMP) ## Write docs/catalogue.md, and what purifl list shows, from the code
	@$(BIN)/python -m purifl.catalogue markdown > docs/catalogue.md
	@$(BIN)/python -m purifl.catalogue json > src/purifl/catalogue.json

picture: demo ## Draw the README's picture from what the demo gave
	@$(BIN)/purifl report demo/lower demo/upper demo/gpd-paper demo/gpd --out demo/report
	@cp demo/report/figures/trust.svg docs/images/trust.svg

clean: ## Remove .venv and what the demo wrote
	rm -rf .venv demo
