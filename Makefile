# `make demo` and `make test` set themselves up in .venv; the rest needs one of them first.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
NATIVE := $(shell find native io solar -name '*.cpp' -o -name '*.hpp' -o -name CMakeLists.txt 2>/dev/null)

.PHONY: demo test integrations kernels hosts lint types docs report core asan tsan aarch64 asan-python bench bench-full clean

demo: $(VENV)/.installed
	$(BIN)/python -m bench.demo

test: $(VENV)/.dev
	$(BIN)/pytest

# Jobs on hosts that are network namespaces of this machine, and a real Slurm (root; iproute2, slurmctld, slurmd, munge).
hosts: $(VENV)/.dev
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[mpi]'
	$(BIN)/pytest --hosts tests/test_jobs.py

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

# The package, editable, with the versions of constraints.txt; rebuilt when native code changes.
$(VENV)/.installed: pyproject.toml constraints.txt $(NATIVE)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable .
	touch $@

$(VENV)/.dev: $(VENV)/.installed
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

# The frameworks' own loops over our loader. Their packages are large, so `make test` skips these by name.
integrations: $(VENV)/.dev
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[integrations]'
	$(BIN)/pytest tests/integrations

# The kernels for devices, in Triton's interpreter and compiled. Triton is large, so `make test` skips these by name.
kernels: $(VENV)/.dev
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[gpu]'
	$(BIN)/pytest tests/test_device_decode.py

# The pages as a site in build/site; a link that leads nowhere fails it. And the records as one page, build/report.
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

report: $(VENV)/.bench
	$(BIN)/python -m bench.timeline
	$(BIN)/python -m bench.page

$(VENV)/.docs: $(VENV)/.installed
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[docs]'
	touch $@

# C++ tests: plain, under Address+UndefinedBehaviorSanitizer, under ThreadSanitizer. They need doctest's header.
core asan tsan aarch64:
	cd native && cmake --preset $@ -Wno-dev >/dev/null && cmake --build --preset $@ --parallel && ctest --preset $@

# The Python tests of native code with the extension under ASan+UBSan (CONTRIBUTING.md says why each flag is there).
asan-python: $(VENV)/.dev
	tools/asan-python $(PYTHON)

bench: $(VENV)/.bench
	$(BIN)/python -m bench.matrix

bench-full: $(VENV)/.bench
	$(BIN)/python -m bench.matrix --full

$(VENV)/.bench: $(VENV)/.installed
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[bench]'
	touch $@

clean:
	rm -rf build $(VENV) .pytest_cache .ruff_cache .mypy_cache
