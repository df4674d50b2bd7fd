# `make help` lists the targets. Everything runs from .venv, which `make setup` builds from pyproject.toml and
# constraints.txt and rebuilds when one of the two changes.

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.setup-stamp
PIP := $(BIN)/python -m pip --disable-pip-version-check
EXTRAS := dev,ray,mujoco,envpool,torchrl,box2d,atari,pettingzoo,video,onnx,minari

.DEFAULT_GOAL := help
.PHONY: help demo test setup lint bench chaos cluster docs

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-7s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: setup ## Train PPO on CartPole, in seconds
	$(BIN)/raceway train ppo --env cartpole --local --plot

test: setup lint ## Lint, check types, and run every test and doctest
	@scripts/test-tools
	$(BIN)/python -m pytest -n 2 --dist worksteal

setup: $(STAMP) ## Make .venv, or bring it up to date

lint: setup ## Check style, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: setup ## Run every benchmark, one after the other
	@for script in benchmarks/[!_]*.py; do \
		if [ -e "$$script" ]; then \
			echo "== $$script"; \
			$(BIN)/python "$$script" || exit 1; \
		fi; \
	done

chaos: setup ## Train for ten minutes while workers are killed, then try random flows and nested calls
	$(BIN)/python benchmarks/chaos.py
	$(BIN)/python -m tests.flow.fuzz --seconds 300
	$(BIN)/python -m tests.runner.fuzz --seconds 300

cluster: setup ## Follow docs/cluster.md on three hosts of this machine, as root
	$(BIN)/python -m tests.engine.cluster_guide

DOCUMENTS := $(wildcard README.md docs)

# pytest ends with 5 when the documents hold no example yet.
docs: setup ## Update the listings in README.md and docs/, and run the examples
	$(BIN)/python scripts/listings.py
	@$(if $(DOCUMENTS),$(BIN)/python -m pytest --doctest-glob='*.md' $(DOCUMENTS) || [ $$? -eq 5 ],echo "no documents yet")

# torch first, alone: it is the largest download, and later steps then find it satisfied.
$(STAMP): pyproject.toml constraints.txt
	@if ! $(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
		for candidate in python3.11 python3; do \
			if "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
				exec "$$candidate" -m venv --clear $(VENV); \
			fi; \
		done; \
		echo "make setup needs Python 3.11 or later as python3.11 or python3 on the PATH." \
			"Found: $$(python3 --version 2>&1)." >&2; \
		exit 1; \
	fi
	$(PIP) install --quiet -c constraints.txt pip
	$(PIP) install -c constraints.txt torch
	$(PIP) install -c constraints.txt --build-constraint constraints.txt -e '.[$(EXTRAS)]'
	@touch $@
