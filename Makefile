# A thin front for CMake's presets; `make help` lists the targets. JOBS=n sets how many compilers run at once.
JOBS ?= $(shell nproc)
PRESET ?= release
BIN := build/$(PRESET)/bin
CXX_FILES := $(shell git ls-files '*.h' '*.cpp')

.PHONY: help setup setup-test demo demo-targets build test test-cluster ecosystem mutants bench bench-faults soak deb wheel sdist format format-check lint one-by-one sanitize fuzz clean

help:
	@echo "make demo      install what is missing, build, train Fashion-MNIST on 2 ranks"
	@echo "make test      the same set-up with the Python peers; build everything, run all tests"
	@echo "make test-cluster  launching over two hosts (namespaces) and by Slurm, as root"
	@echo "make ecosystem  libraries of others over dtrain's backend of torch.distributed (WHAT=accelerate|trainer|lightning|"
	@echo "               checkpoint|deepspeed|pytorch); 'dtrain follow' with MLflow, trackio and W&B (WHAT=trackers)"
	@echo "make mutants   plant mistakes into a copy of the code: which test finds each? (MUTANTS=layers|torch_distributed|gpu|virtual_ranks|queue)"
	@echo "make bench     run the benchmarks and print their JSON"
	@echo "make bench-faults  plant faults into real runs: does 'dtrain analyze' name cause, rank and cost?"
	@echo "make soak      random cases: faults while checkpoints are written, power cuts (SOAK_CASES=1000 SOAK_SEED=1);"
	@echo "               processes of runs that are killed (SOAK_SECONDS=600 SOAK_EVERY=\"3 10 1\" SOAK_STOP_EVERY=60)"
	@echo "make build     build everything but the benchmarks (PRESET=release|debug|asan|tsan; BENCH=1: these, too)"
	@echo "make deb       the Debian package, in build/release"
	@echo "make wheel     the wheel for Python, in build/wheel: for each of 3.10 to 3.14 that is in PATH with its headers"
	@echo "               (PYTHONS=\"3.10 /opt/python3.12/bin/python3\": for these; TORCHES=\"2.11 2.13\": for these torches, too)"
	@echo "make sdist     the source distribution, in build/sdist: pip compiles it against the torch that is installed"
	@echo "make format    lay out the sources;  make lint: clang-tidy on the torch-free layers"
	@echo "make one-by-one  compile each source by itself: does it include what it names?"
	@echo "make sanitize  the torch-free tests under ASan+UBSan and under TSan"
	@echo "make fuzz      every fuzz target for FUZZ_SECONDS=600, two at a time (docs/fuzzing.md)"

setup:
	@scripts/setup.sh build
setup-test:
	@scripts/setup.sh test

# $(call configure,PRESET[,OPTIONS]): says nothing unless it fails.
configure = cmake --preset $(1) $(2) > build/$(1).configure.log 2>&1 || { cat build/$(1).configure.log; exit 1; }

DEMO_TARGETS := dtrain dtrain-agent dtrain-saver dtrain-calibrate dtrain-worker fashion_mnist
demo-targets:
	@echo $(DEMO_TARGETS)
demo: setup
	@mkdir -p build
	@$(call configure,release,-DDTRAIN_TESTS=OFF -DDTRAIN_BENCH=OFF)
	@scripts/quiet_build.sh --no-warnings release $(JOBS) $(DEMO_TARGETS)
	@$(BIN)/dtrain launch configs/fashion_mnist.yaml

# The Pythons for which the package is compiled: /usr/bin/python3, for a wheel each that is in PATH with headers.
PYTHONS ?=
find_pythons = pythons=$$(/usr/bin/python3 -B python/interpreters.py $(PYTHONS)) || exit 1

# The benchmarks take minutes to compile, and no test needs them: BENCH=1 builds them, too.
BENCH ?=
build:
	@scripts/setup.sh test-build
	@mkdir -p build
	@$(if $(PYTHONS),$(find_pythons),pythons=); $(call configure,$(PRESET),-DDTRAIN_TESTS=ON -DDTRAIN_BENCH=$(if $(BENCH),ON,OFF) "-DDTRAIN_PYTHONS=$$pythons")
	@scripts/beside.sh "the wheels that tests need" build/wheels.log scripts/setup.sh test-wheels -- scripts/quiet_build.sh $(PRESET) $(JOBS)

test: build
	@scripts/run_tests.sh build/$(PRESET) $(JOBS)

test-cluster: build
	@scripts/test_cluster.sh $(BIN)

WHAT ?=
ecosystem: build
	@scripts/ecosystem.sh $(BIN) $(WHAT)

mutants: setup-test
	@JOBS=$(JOBS) scripts/mutants.sh

bench: BENCH := 1
bench: build
	@scripts/bench.sh $(BIN)

# A run of some twenty seconds for each kind of fault; builds no more than they need.
bench-faults: setup-test
	@mkdir -p build
	@$(call configure,release,-DDTRAIN_TESTS=ON -DDTRAIN_BENCH=ON)
	@scripts/quiet_build.sh release $(JOBS) planted_fault_trial
	@python3 -B tests/bench/planted_faults.py build/release/bin

SOAK_CASES ?= 1000
SOAK_SEED ?= 1
soak: build
	@SOAK_CASES=$(SOAK_CASES) SOAK_SEED=$(SOAK_SEED) scripts/soak.sh build/$(PRESET)

deb:
	@scripts/setup.sh deb
	@mkdir -p build
	@$(call configure,release)
	@scripts/deb.sh $(JOBS)

# For each further minor of torch a build of what links libtorch, whose other libraries are those of build/release.
TORCHES ?=
wheel:
	@scripts/setup.sh wheel
	@mkdir -p build
	@$(find_pythons); $(call configure,release,"-DDTRAIN_PYTHONS=$$pythons")
	@scripts/quiet_build.sh release $(JOBS) installed python_native
	@pythons=$$(sed -n 's/^DTRAIN_PYTHONS:STRING=//p' build/release/CMakeCache.txt); for minor in $(TORCHES); do \
	   export DTRAIN_TORCH=$$minor && scripts/setup.sh build && \
	   cmake --preset release -B build/torch-$$minor -DDTRAIN_LIBTORCH_DIR=$$PWD/.deps/torch-$$minor/libtorch/torch \
	     -DDTRAIN_TORCH_FREE_FROM=$$PWD/build/release -DDTRAIN_TESTS=OFF -DDTRAIN_BENCH=OFF "-DDTRAIN_PYTHONS=$$pythons" \
	     >build/torch-$$minor.configure.log && \
	   scripts/quiet_build.sh torch-$$minor $(JOBS) dtrain-worker dtrain-calibrate cuda_graph python_native || exit 1; done
	@/usr/bin/python3 -B python/build_wheel.py build/release $(TORCHES:%=build/torch-%)

sdist:
	@scripts/setup.sh sdist
	@mkdir -p build/sdist
	@PYTHONPATH=.deps/scikit-build:packaging /usr/bin/python3 -B -c \
	  "import source_build as source; print('build/sdist/' + source.build_sdist('build/sdist'))"

format:
	@clang-format-14 -i $(CXX_FILES)
format-check:
	@clang-format-14 --dry-run --Werror $(CXX_FILES)

# Its own folder: clang cannot read the precompiled headers that GCC leaves in the others.
lint: setup-test
	@scripts/setup.sh lint
	@mkdir -p build
	@$(call configure,asan,-B build/lint -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON -DDTRAIN_TESTS=OFF -DDTRAIN_BENCH=OFF)
	@scripts/lint.sh build/lint

# Every source by itself: whether it includes what it names. Without optimisation, as nothing of it is run. TARGETS: of these alone.
TARGETS ?=
one-by-one: setup-test
	@mkdir -p build
	@$(call configure,release,-B build/one-by-one -DDTRAIN_UNITY=0 -DDTRAIN_TORCH_UNITY=0 -DCMAKE_CXX_FLAGS_RELEASE=-O0 -DDTRAIN_TESTS=OFF -DDTRAIN_BENCH=OFF)
	@scripts/quiet_build.sh one-by-one $(JOBS) $(TARGETS)

sanitize: setup-test
	@scripts/sanitize.sh asan $(JOBS)
	@scripts/sanitize.sh tsan $(JOBS)

FUZZ_SECONDS ?= 600
fuzz:
	@scripts/setup.sh lint
	@mkdir -p build
	@$(call configure,fuzz)
	@scripts/quiet_build.sh fuzz $(JOBS) fuzz
	@scripts/fuzz.sh $(FUZZ_SECONDS)

clean:
	rm -rf build
