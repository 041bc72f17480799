# One virtual environment, .venv, serves every goal. It is made on first use and reused while current.
PYTHON ?= python3
# Passed on: make lab ARGS="--suite smoke", make test ARGS="-k sparse_conv"
ARGS ?=

.PHONY: help lab nightly test chaos lint wheel docs setup clean

help:
	@echo "make lab    run the matrix of cases on two local ranks and write a report"
	@echo "make nightly  run the nightly suite and compare it with the night before"
	@echo "make test   run the tests"
	@echo "make chaos  let ranks hang and die in 200 cases, kill the lab, and check what is left"
	@echo "make lint   check style, format and types"
	@echo "make wheel  build the wheel and try it outside the checkout"
	@echo "make docs   build the documentation site in docs/_build"
	@echo "make clean  remove .venv, caches and builds"

lab: setup
	@.venv/bin/ckpt-lab run --suite card $(ARGS)

nightly: setup
	ci/nightly.sh $(ARGS)

# Each worker has its own torch: one thread each keeps -n auto from crowding the machine.
test: export OMP_NUM_THREADS ?= 1
test: setup
	.venv/bin/python -m pytest -n auto $(ARGS)

chaos: setup
	.venv/bin/python -m ci.chaos $(ARGS)

lint: setup
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/shellcheck ci/*.sh .ci/run
	.venv/bin/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml

wheel: setup
	.venv/bin/python ci/check_wheel.py

docs: setup
	.venv/bin/sphinx-build -E -W --keep-going -q docs docs/_build

setup:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	  echo "'$(PYTHON)' is not a Python of at least 3.10; try: make PYTHON=/path/to/python3" >&2; \
	  exit 2; }
	@$(PYTHON) ci/setup_env.py

clean:
	rm -rf .venv .venv.lock build dist docs/_build .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
