# Each goal makes its own virtual environment first and installs nothing outside it.

PYTHON ?= python3
VENV ?= .venv
JOBS ?= 2
ARGS ?=
# grpcio tells on standard error what its connections do, which the cases provoke on purpose.
export GRPC_VERBOSITY ?= ERROR
BENCH ?= $(sort $(wildcard benchmarks/*.py))

python := $(VENV)/bin/python
pip_install := -m pip install -qq --disable-pip-version-check

.PHONY: help conformance test lint bench clean

help:
	@echo 'make conformance   run the conformance cases'
	@echo 'make test          run the tests of the suite itself'
	@echo 'make lint          ruff, and mypy on the package as it is installed'
	@echo 'make bench         run the benchmarks'
	@echo 'make clean         remove what the other goals made'
	@echo ''
	@echo 'PYTHON=python3     the interpreter, 3.10 or newer; use one VENV for each'
	@echo 'VENV=.venv         the virtual environment'
	@echo 'JOBS=2             pytest-xdist workers'
	@echo 'ARGS=              more arguments for the program that the goal runs'
	@echo 'BENCH=benchmarks/* the benchmarks to run'

# By the name of the package and with the packaged ini file, as in any other folder; unshuffled, as two runs are
# compared.
conformance: $(VENV)/.installed
	@$(python) -m pytest -c pytest_grpc_conformance/conformance.ini --rootdir . -p no:cacheprovider -p no:randomly \
	  --pyargs pytest_grpc_conformance.cases -n $(JOBS) -q $(ARGS)

test: $(VENV)/.installed
	@$(python) -m pytest tests -n $(JOBS) -q $(ARGS)

# mypy cannot follow the finder of an editable install, so it reads a wheel, unpacked where no checkout is in its way.
lint: $(VENV)/.installed-lint
	@$(python) -m ruff check -q .
	@$(python) -m ruff format --check -q .
	@rm -rf $(VENV)/lint
	@mkdir $(VENV)/lint
	@$(python) -m build --no-isolation --outdir $(VENV)/lint/dist . > $(VENV)/lint/build.log 2>&1 || \
	  { cat $(VENV)/lint/build.log; exit 1; }
	@$(python) $(pip_install) --no-deps --no-index --target $(VENV)/lint/site $(VENV)/lint/dist/*.whl
	@cd $(VENV)/lint/site && $(abspath $(python)) -m mypy --strict --config-file $(CURDIR)/pyproject.toml \
	  --cache-dir ../mypy_cache --no-error-summary -p pytest_grpc_conformance

bench: $(VENV)/.installed
	@set -e; for script in $(BENCH); do echo "$$script"; $(python) "$$script" $(ARGS); done

clean:
	@if test -f $(VENV)/pyvenv.cfg; then rm -rf $(VENV); fi
	@rm -rf build dist *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
	@find . \( -name .git -o -name '.venv*' \) -prune -o -name __pycache__ -prune -exec rm -rf {} +

$(VENV)/.installed: pyproject.toml
	$(call stop_if,$(problem))
	@$(PYTHON) -m venv $(VENV)
	@$(python) $(pip_install) --editable '.[test]'
	@touch $@

$(VENV)/.installed-lint: $(VENV)/.installed
	@$(python) $(pip_install) --editable '.[test,lint]'
	@touch $@

# As $(error) inside a recipe: one line and nothing else, where a failing command would add make's own.
stop_if = $(if $1,$(error $1))

# What keeps $(PYTHON) from making the virtual environment, with what to install; empty if nothing does.
problem = $(shell \
  version=$$($(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null); \
  case "$$version" in \
    (3.1[0-9]|3.[2-9][0-9]|[4-9].*) \
      $(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
        echo "Python $$version has no venv: install python$$version-venv, or name another with PYTHON=" ;; \
    ([0-9]*) \
      echo "$(PYTHON) is Python $$version: install Python 3.10 or newer (python3, python3-venv), or name one with PYTHON=" ;; \
    (*) \
      echo "$(PYTHON) does not run: install Python 3.10 or newer (python3, python3-venv), or name one with PYTHON=" ;; \
  esac)
