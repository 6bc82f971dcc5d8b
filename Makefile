# The commands of this project; CMake does the building.
PRESET ?= release
BUILD := build/$(PRESET)

.PHONY: deps build test demo bench gpu-bundle mutants soak fuzz sanitize dist format lint

deps:
	@./cmake/deps.sh

build: deps
	@cmake --preset $(PRESET)
	@cmake --build --preset $(PRESET)

test: build
	@ctest --preset $(PRESET) || { third_party/venv/bin/python tests/last_failures.py $(BUILD); exit 1; }

demo: build
	@third_party/venv/bin/python examples/demo.py --build $(BUILD)

# All parts take over an hour of a quiet machine; make bench ARGS="--parts storage" measures one (ARGS="--help").
bench: build
	@third_party/venv/bin/python tests/bench/bench.py --build $(BUILD) $(ARGS)

# What checks and measures Stemma on a GPU machine, packed: build/gpu_bundle.tar.gz (docs/gpu.md).
gpu-bundle: deps
	@cmake --preset $(PRESET)
	@third_party/venv/bin/python tests/gpu/bundle.py --build $(BUILD) $(ARGS)

# Wrong changes that the tests must notice; make mutants ARGS="--help" says how to choose some.
mutants: deps
	@third_party/venv/bin/python tests/mutation/run.py --preset $(PRESET) $(ARGS)

# Tests that draw their cases, with fresh seeds; make soak ARGS="--help" says what can be chosen.
soak: build
	@third_party/venv/bin/python tests/soak/soak.py --build $(BUILD) $(if $(FAULTS),--faults $(FAULTS)) $(if $(SEED),--seed $(SEED)) $(ARGS)

# Hostile inputs against their readers, by libFuzzer; make fuzz ARGS="--help" says what can be chosen.
fuzz:
	@./cmake/deps.sh fuzz
	@cmake --preset fuzz
	@cmake --build --preset fuzz
	@third_party/venv/bin/python tests/fuzz/fuzz.py $(ARGS)

# Tests under ASan and UBSan, and tests and real processes under TSan; make sanitize ARGS="--help" says what can be chosen.
sanitize: deps
	@third_party/venv/bin/python tests/sanitize/sanitize.py $(ARGS)

# The Python client's sdist and wheel, in build/dist.
dist: deps
	@third_party/venv/bin/python client/python/dist.py build/dist

# Debian 12's clang-format 14, by which make lint checks.
format:
	@git ls-files '*.h' '*.cc' | xargs clang-format -i

# make lint ARGS=--each is slower, and sees an include that is missing.
lint: build
	@./cmake/lint.sh $(BUILD) $(ARGS)
