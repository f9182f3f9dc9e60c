# `make demo` and `make test` set themselves up in .venv; the rest needs one of them first.

# Tests begin hundreds of programs: compiled modules are kept, also where the environment says otherwise.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Two more than there are processors: many tests wait for processes of their own. Plain `pytest` runs them one by one.
WORKERS ?= $(shell n=$$(nproc); echo $$((n < 7 ? n + 2 : 8)))
PYTEST := $(BIN)/pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder  # tests/conftest.py orders them
SETTING_UP := Setting up $(VENV): fetches PyTorch and compiles solar, which takes some minutes the first time.
BEGIN_VENV = @test -x $(BIN)/python || { echo "$(SETTING_UP)"; $(PYTHON) -m venv $(VENV); }
INSTALL := tools/install $(BIN)/pip --constraint constraints.txt
comma := ,
SKIPS := build/skips
# Seconds of processor time that the tests of `make test` take, as tests/processor_time.py counts: it fails at a tenth more.
BUDGET := 600
EXTRAS := dev,integrations,gpu,docs,bench,examples
EXTRAS_MADE = $(addprefix $(VENV)/., $(subst $(comma), ,$(EXTRAS)))
# DLIO and PhysicsNeMo without what they ask for (TensorFlow, DALI, CUDA, Warp), which the tests do not use; The Well
# without its own version of fsspec; scanpy for a file that it ships; two libraries of robots without their simulators.
ALONE := dlio_benchmark pydftracer nvidia-physicsnemo tensordict the_well scdataset scanpy \
	hydra-core omegaconf antlr4-python3-runtime cloudpickle einops jaxtyping pyvers termcolor stable-worldmodel robomimic
FRAMEWORKS = $(shell grep -lE "importorskip|find_spec" tests/integrations/test_*.py)
KERNELS := tests/test_device_decode.py
NATIVE := $(shell find native io solar -name '*.cpp' -o -name '*.hpp' -o -name CMakeLists.txt 2>/dev/null)

.PHONY: demo test again test-all skipped soak programs calls simulation mutants extras integrations kernels mpio hosts hosts-quick lint types format tidy docs report
.PHONY: core asan tsan odr aarch64 asan-python coverage fuzz compat clean-install bench bench-full gpu wheel clean

demo: $(VENV)/.installed
	$(BIN)/python -m bench.demo

# Some of each kind, in a few minutes: those that are marked slow are left out, and counted in the end.
test: $(VENV)/.dev
	$(PYTEST) -rfE --quick --skips=$(SKIPS) --budget $(BUDGET)

# What has failed, once more and one by one: not more than three, for more are no accident. OPTIONS are pytest's.
again:
	@test -e .pytest_cache/v/cache/lastfailed || { echo "no test has failed: what did is said above"; exit 1; }
	@test "$$(grep -c ': true' .pytest_cache/v/cache/lastfailed)" -le 3
	$(BIN)/pytest $(OPTIONS) --last-failed --last-failed-no-failures none -rAfE --tb short --no-header -q

# All: that, and then what it has left out, with what the extras bring. .ci/run does the same step by step.
test-all:
	$(MAKE) test
	$(MAKE) extras
	$(MAKE) skipped mpio

# Jobs on hosts that are network namespaces of this machine, and a real Slurm (root; iproute2, slurmctld, slurmd, munge).
hosts: $(VENV)/.dev
	$(INSTALL) --editable '.[mpi]'
	$(BIN)/pytest --hosts tests/test_jobs.py tests/test_serve_hosts.py tests/test_rank_deaths.py

# Of these, ranks that are killed: a minute, with what `.ci/run` has installed.
hosts-quick: $(VENV)/.dev
	$(BIN)/pytest --hosts --quick tests/test_rank_deaths.py

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	git ls-files | xargs $(BIN)/codespell

# Lays out Python, and of native code the lines that differ from the last commit.
format: $(VENV)/.dev
	$(BIN)/ruff format .
	PATH="$$PWD/$(BIN):$$PATH" git clang-format --extensions cpp,hpp || true  # 1: it has changed some

# What clang-tidy finds in native code (.clang-tidy says which checks): some minutes.
tidy: $(VENV)/.form
	cd native && cmake --preset core -Wno-dev >/dev/null
	find native/src -name '*.cpp' | xargs -P $(shell nproc) -n 4 $(BIN)/clang-tidy -p build/core --quiet

types: $(VENV)/.dev
	$(BIN)/mypy

# The package, editable, with the versions of constraints.txt; rebuilt when native code changes.
$(VENV)/.installed: pyproject.toml constraints.txt $(NATIVE)
	$(BEGIN_VENV)
	$(INSTALL) --editable .
	touch $@

# The same with what an extra needs: .venv/.dev, .venv/.bench, ...
$(VENV)/.%: pyproject.toml constraints.txt $(NATIVE)
	$(BEGIN_VENV)
	$(INSTALL) --editable '.[$*]'
	touch $(VENV)/.installed $@

$(VENV)/.alone: Makefile constraints.txt | $(VENV)/.installed
	$(INSTALL) --no-deps $(ALONE)
	rm -rf $(VENV)/lib/python3*/site-packages/tests  # DLIO's own, which would hide ours
	touch $@

# All of them in one go, which takes one build, not five; none where the package is there already.
LIST_EXTRAS := import sys, tomllib; all = tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]; \
	print(*(one for extra in sys.argv[1].split(",") for one in all[extra]), sep="\n")
extras: $(VENV)/.installed $(VENV)/.alone
	$(BIN)/python -c '$(LIST_EXTRAS)' $(EXTRAS) > $(VENV)/.extras
	$(INSTALL) --requirement $(VENV)/.extras
	touch $(EXTRAS_MADE)

# The frameworks' own loops over our loader. Their packages are large, so `make test` skips these by name; what needs none
# of them runs there, not here.
integrations: $(VENV)/.dev $(VENV)/.integrations $(VENV)/.alone
	$(PYTEST) $(FRAMEWORKS)

# The kernels for devices, in Triton's interpreter and compiled. Triton is large, so `make test` skips these by name.
kernels: $(VENV)/.dev $(VENV)/.gpu
	$(BIN)/pytest $(KERNELS)

# reader="mpio", where the system has an h5py with MPI (Debian's python3-h5py-mpi and openmpi-bin).
mpio: $(VENV)/.dev
	tools/mpio

# All these but the last, the site and whatever else `make test` has left out, by its list: what ran there need not run again.
# With ONE_IN=6 a sixth of them, which DRAW chooses.
skipped: $(EXTRAS_MADE) $(VENV)/.alone
	@test -s $(SKIPS) || { echo "no list of skipped tests in $(SKIPS): run make test first"; exit 1; }
	$(PYTEST) $(if $(ONE_IN),--one-in $(ONE_IN) --draw "$(DRAW)") @$(SKIPS)

# What programs do to loaders, drawn at random, for ten seconds; for hours with SOLAR_SOAK=HOURS.
soak: $(VENV)/.dev
	$(BIN)/pytest tests/test_soak.py

# Ten thousand programs drawn by their seeds, beside torch's loader and h5py (tests/programs), as each night.
PROGRAMS ?= 10000
FROM ?= 0  # the first seed
programs: $(VENV)/.dev
	$(BIN)/python -m tests.programs --named --count $(PROGRAMS) --from $(FROM)

# Programs of which each call to the system fails, is late or hangs, one after another (tests/every_call), as each night.
CALLS ?= 30  # of each name, evenly taken
calls: $(VENV)/.dev
	$(BIN)/python -m tests.every_call --most $(CALLS)

# A hundred thousand worlds of a service and its trainings in virtual time (tests/simulation), as each night.
WORLDS ?= 100000
simulation: $(VENV)/.dev
	$(BIN)/python -m tests.simulation --count $(WORLDS) --from $(FROM)

# And whether programs find the faults of tests/programs/mutants when these are put back, and worlds those of tests/simulation.
mutants: $(VENV)/.dev
	$(BIN)/python -m tests.programs.mutants
	$(BIN)/python -m tests.simulation --mutants

# The pages as a site in build/site; a link that leads nowhere fails it. And the records: as one page, build/report, and as
# the tables and pictures of README and docs/.
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

report: $(VENV)/.bench
	$(BIN)/python -m bench.timeline
	$(BIN)/python -m bench.report
	$(BIN)/python -m bench.report --docs
	$(BIN)/python -m bench.pictures

# C++ tests: plain, under Address+UndefinedBehaviorSanitizer, under ThreadSanitizer. They need doctest's header.
core asan tsan aarch64:
	cd native && cmake --preset $@ -Wno-dev $(CMAKE_ARGS) >/dev/null && cmake --build --preset $@ --parallel $(shell nproc) && ctest --preset $@

# Names that two files of native code define differently: all of it is linked as one, and nothing is run.
odr:
	cd native && cmake --preset odr -Wno-dev $(CMAKE_ARGS) >/dev/null && cmake --build --preset odr --parallel $(shell nproc)

# The Python tests of native code with the extension under ASan+UBSan (CONTRIBUTING.md says why each flag is there).
asan-python: $(VENV)/.dev
	tools/asan-python $(PYTHON)

# Lines of Python and C++ that the tests run, and why the others are not: build/coverage.md (gcov; doctest's header).
coverage: $(VENV)/.dev
	tools/coverage $(PYTHON)

# Fuzzers of all that reads files, so many seconds each (clang 17 or newer).
FUZZ_SECONDS ?= 60
fuzz:
	tools/fuzz $(FUZZ_SECONDS)

# A wheel with the oldest versions that are stated; tools/compat tries others.
compat: $(VENV)/.dev
	tools/compat --with $(VENV) $(if $(WHEEL),--wheel $(WHEEL)) $(PYTHON) 'numpy==1.26.*' 'h5py==3.10.*' 'zstandard==0.22.*'

# A wheel where nothing can be compiled: demo, compress, verify, and a bare h5py by the plug-in. Needs root or unprivileged `unshare`.
clean-install: $(VENV)/.dev
	tools/clean-install $(if $(WHEEL),--wheel $(WHEEL))

bench: $(VENV)/.bench
	$(BIN)/python -m bench.matrix

bench-full: $(VENV)/.bench
	$(BIN)/python -m bench.matrix --full

# All that is to be shown on a GPU; writes bench/results/gpu.jsonl and the table of docs/measured.md.
gpu: $(VENV)/.dev $(VENV)/.gpu $(VENV)/.bench
	$(BIN)/python -m bench.gpu --record

# A wheel of this source for this machine and this Python, with the glibc that it needs in its name: build/wheels.
wheel: $(VENV)/.installed
	PYTHON=$(BIN)/python tools/wheel

clean:
	rm -rf build $(VENV) .pytest_cache .ruff_cache .mypy_cache
