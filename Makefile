# make bench      environment, build, install; then the benchmark against jnp.dot
# make test       environment, build, install; then the tests that need no GPU
# make dev        for daily work: one architecture, kept objects, Python sources used in place
# make gpu-check  the tests that need a GPU, under the sanitizers too
# make lint, make format, make wheel, make clean

PYTHON ?= python3
VENV ?= .venv
ARCH ?= 90
PYTEST_ARGS ?=
BENCH_ARGS ?=

PIP := $(VENV)/bin/python -m pip --disable-pip-version-check
SOURCES := pyproject.toml CMakeLists.txt $(wildcard cmake/*) \
           $(shell find cuda jax_gemm -type f -not -name '*.pyc')

# The flavour of JAX that this machine's driver can run. Without a driver, tests get JAX's CUDA plugin alone, which
# compiles for GPUs that are not there and is to be silent about it.
DRIVER := $(shell nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null \
            | sed -n '1s/^\([0-9][0-9]*\)\..*/\1/p')
ifeq ($(DRIVER),)
CUDA ?=
DEVICELESS := $(VENV)/.deviceless
export JAX_SKIP_CUDA_CONSTRAINTS_CHECK := 1
else
CUDA ?= $(shell test $(DRIVER) -ge 580 && echo cuda13 || echo cuda12)
endif

# The installed package is what runs, never the folder of the same name in this directory.
export PYTHONSAFEPATH := 1

# Installs the lists of requirements that pyproject.toml holds at the given places.
requirements = $(VENV)/bin/python -c 'import functools, sys, tomllib; \
	project = tomllib.load(open("pyproject.toml", "rb")); \
	[print(r) for path in sys.argv[1:] for r in functools.reduce(dict.get, path.split("/"), project)]' $(1) \
	| xargs -d '\n' $(PIP) install --quiet

.PHONY: bench test dev gpu-check lint format wheel clean

bench: $(VENV)/.installed
	$(VENV)/bin/python -m jax_gemm bench $(BENCH_ARGS)

test: $(VENV)/.installed $(DEVICELESS)
	$(VENV)/bin/python -m pytest -m "not gpu" -n auto --maxprocesses 8 $(PYTEST_ARGS)

gpu-check:
	VENV=$(VENV) benchmarks/gpu_check.sh

wheel: $(VENV)/bin/python
	$(PIP) wheel --no-deps --wheel-dir dist .

lint: $(VENV)/.lint
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check
	find cuda -name '*.cc' -o -name '*.cu' -o -name '*.h' -o -name '*.cuh' \
	  | xargs $(VENV)/bin/clang-format --dry-run --Werror
	$(VENV)/bin/mypy

format: $(VENV)/.lint
	$(VENV)/bin/ruff check --fix
	$(VENV)/bin/ruff format
	find cuda -name '*.cc' -o -name '*.cu' -o -name '*.h' -o -name '*.cuh' | xargs $(VENV)/bin/clang-format -i

# build/tools is the environment that pip makes for a build, kept.
dev: $(VENV)/.dependencies build/tools/.installed
	PYTHONPATH=$(CURDIR)/build/tools $(PIP) install --no-build-isolation --no-deps --editable . \
	  -Cbuild-dir=build/dev/{wheel_tag} -Ccmake.define.JAX_GEMM_ARCHITECTURES="$(ARCH)" \
	  -Ccmake.define.CMAKE_COMPILE_WARNING_AS_ERROR=ON
	rm -f $(VENV)/.installed

clean:
	rm -rf build dist $(VENV)

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "jax_gemm needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(SOURCES) | $(VENV)/bin/python
	$(PIP) install -Ccmake.define.CMAKE_COMPILE_WARNING_AS_ERROR=ON ".[test,bench$(CUDA:%=,%)]"
	touch $@

$(VENV)/.deviceless: $(VENV)/.installed
	$(call requirements,project/optional-dependencies/deviceless)
	touch $@

$(VENV)/.dependencies: pyproject.toml | $(VENV)/bin/python
	$(call requirements,project/dependencies \
	  $(addprefix project/optional-dependencies/,test bench $(or $(CUDA),deviceless)))
	touch $@

$(VENV)/.lint: pyproject.toml | $(VENV)/bin/python
	$(call requirements,project/dependencies project/optional-dependencies/lint)
	touch $@

build/tools/.installed: pyproject.toml | $(VENV)/bin/python
	rm -rf build/tools
	$(call requirements,build-system/requires) --target build/tools
	touch $@
