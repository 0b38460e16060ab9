# Everything happens in virtual environments inside this directory; `make clean` removes them.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
PYTEST_ARGS ?=

VENV := .venv
WHEEL_VENV := .venv-wheel
# The tests run here, beside no source tree, so that only the built wheel can be imported.
TREE := build/tree

# With an NVIDIA driver TensorFlow brings its CUDA libraries; elsewhere the small build does.
TENSORFLOW := $(if $(wildcard /proc/driver/nvidia/version),tensorflow,tensorflow-cpu)

export DO_NOT_TRACK := 1
export PREFECT_SERVER_ANALYTICS_ENABLED := false
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help
help: ## Show what can be made
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 18
	@echo "  PYTHON=python3.12 make ... uses another interpreter (3.10 to 3.13)."

.PHONY: demo
demo: $(VENV)/.installed ## Run a queue of real trainings on this machine and show how they shared it
	$(VENV)/bin/xonar demo

.PHONY: test
test: lint wheel ## Run every check, and every test against the built wheel
	rm -rf $(TREE) && mkdir -p $(TREE)
	tar -c --exclude=./xonar_prefect --exclude='./.venv*' --exclude=./.git --exclude=./build \
	  --exclude=./dist --exclude=./shared --exclude='./.*_cache' --exclude=__pycache__ . | tar -x -C $(TREE)
	export XONAR_TEST_WHEEL="$$(realpath dist/*.whl)"; \
	  run() { "$(abspath $(WHEEL_VENV))/bin/python" -m pytest "$$@"; }; cd $(TREE); \
	  run --doctest-modules --quiet --pyargs xonar_prefect.core xonar_prefect.cli.output \
	    xonar_prefect.profiling.contention; \
	  run -m "not slow" $(PYTEST_ARGS)

.PHONY: lint
lint: $(VENV)/.installed-dev ## Run the checks that need no test: style, types, layers
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	for directory in flows examples blocks; do \
	  if compgen -G "$$directory/*.py" >/dev/null; then $(VENV)/bin/mypy "$$directory"; fi; \
	done
	$(VENV)/bin/lint-imports

.PHONY: bench
bench: $(VENV)/.installed-dev ## Measure decisions, store and launches; prints figures, judges nothing
	$(VENV)/bin/python -m tests.benchmarks
	$(VENV)/bin/python -m tests.benchmarks.exit_to_start --pending 1000 --exits 20

.PHONY: soak
soak: $(VENV)/.installed-dev ## Run the long tests too
	$(VENV)/bin/python -m pytest -m slow $(PYTEST_ARGS)

.PHONY: clean
clean: ## Remove everything that was made here
	rm -rf $(VENV) $(WHEEL_VENV) build dist .mypy_cache .pytest_cache .ruff_cache \
	  .import_linter_cache .hypothesis

.PHONY: wheel
wheel: $(VENV)/.installed-dev
	rm -rf dist
	$(VENV)/bin/python -m build --wheel --no-isolation >/dev/null
	rm -rf $(WHEEL_VENV)
	$(VENV)/bin/python -m venv --without-pip $(WHEEL_VENV)
# A path in a .pth file brings the installed dependencies, but not the editable install among them.
	$(VENV)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
	  >"$$($(WHEEL_VENV)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/dependencies.pth"
	$(VENV)/bin/python -m pip --python $(WHEEL_VENV)/bin/python install --quiet --no-deps dist/*.whl

$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 14))' 2>/dev/null || { \
	  echo "xonar_prefect needs Python 3.10 to 3.13, but '$(PYTHON)' is $$($(PYTHON) --version 2>/dev/null || echo missing);" \
	    "choose another one with: make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { \
	  echo "'$(PYTHON)' cannot make virtual environments; install them first" \
	    "(Debian, Ubuntu: apt-get install python3-venv)." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/.installed: $(VENV)/.created pyproject.toml constraints.txt
	@echo "Installing xonar_prefect and what the demonstration needs into $(VENV) ..."
	$(VENV)/bin/pip install --quiet --constraint constraints.txt --editable ".[$(TENSORFLOW),flows]" \
	  $(if $(filter tensorflow,$(TENSORFLOW)),"tensorflow[and-cuda]")
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	@echo "Installing what the checks need ..."
	$(VENV)/bin/pip install --quiet --constraint constraints.txt --editable ".[postgresql,dev]"
# From afar PyTorch comes with gigabytes of CUDA. So it is only taken from a directory that pip was told
# to look in; without one, what is tested with it is skipped.
	@if $(VENV)/bin/pip install --quiet --no-index --no-deps --constraint constraints.txt torch 2>/dev/null; \
	  then $(VENV)/bin/pip install --quiet --constraint constraints.txt torch transformers accelerate; \
	  else echo "No PyTorch lies on this machine: the tests that need it will be skipped."; fi
	touch $@
