# `make help` says what there is. Everything that is installed goes into .venv.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

BIN := .venv/bin

# A .venv whose Python is gone, whose making was broken off, or that was moved here from another
# folder (its commands name the folder that they were made in) is made anew.
WORKS := $(shell $(BIN)/python -c '' 2>/dev/null && \
           grep -qsF "$(CURDIR)/$(BIN)/python" $(BIN)/pip && echo yes)
ifneq ($(WORKS),yes)
.PHONY: $(BIN)/python .venv/installed-demo .venv/installed-dev
endif

.PHONY: help demo demo-clean test test-heavy check format lock clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' Makefile

demo: .venv/installed-demo ## Fine-tune the real Gemma 3 270M for text-to-SQL and show before and after
	@$(BIN)/tunesmith demo

demo-clean: ## Forget the demo's run and data, so that the next `make demo` trains again
	rm -rf runs/demo runs/demo-data

test: .venv/installed-dev ## Run all tests but the heavy ones
	$(BIN)/python -m pytest -m "not heavy" -n auto --maxprocesses 4 --dist worksteal

test-heavy: .venv/installed-dev ## Run the heavy tests: real weights, whole runs
	$(BIN)/python -m pytest -m heavy

check: .venv/installed-dev ## Lint, formatting, types, direction of imports, Dockerfiles
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports
	$(BIN)/hadolint docker/*.Dockerfile

format: .venv/installed-dev ## Format the code and put right what ruff can
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

lock: ## Write constraints.txt anew; needs Python 3.11, 3.12 and 3.13
	@p311=$$(sh scripts/find-python 3.11) && p312=$$(sh scripts/find-python 3.12) && \
	p313=$$(sh scripts/find-python 3.13) && "$$p313" scripts/lock.py "$$p311" "$$p312" "$$p313"

clean: ## Remove .venv and all caches; runs/ stays
	rm -rf .venv .pytest_cache .ruff_cache .import_linter_cache .hypothesis build dist
	find tunesmith tests scripts docker -name __pycache__ -prune -exec rm -rf {} +

# The stamp of an installation is written last, so one that was broken off is done again.
.venv/installed-demo: pyproject.toml constraints.txt scripts/install.py | $(BIN)/python
	@$(BIN)/python scripts/install.py demo
	@touch $@

.venv/installed-dev: pyproject.toml constraints.txt scripts/install.py | $(BIN)/python
	@$(BIN)/python scripts/install.py demo,dev
	@touch .venv/installed-demo $@

$(BIN)/python:
	@python=$$(sh scripts/find-python) && echo "Making .venv with $$python" && \
	rm -rf .venv && "$$python" -m venv .venv
