# The front door. CMake does the work (presets in CMakePresets.json); every target sets up what it needs.
.PHONY: all help run run-says test build asan tsan fuzz soak bench check format install portable test-models test-clients clean cuda-all package wheel release test-arm64 test-release

MODEL ?= smollm2
PROMPT ?= Why is the sky blue? Answer in two sentences.
SECONDS_EACH ?= 600

all: build

help:
	@echo "make build        the program, build/quern       make run       build it and ask the default model"
	@echo "make test         everything                     make check     house rules only"
	@echo "make install      to /usr/local or DESTDIR       make portable  one file, libraries inside"
	@echo "make bench        measure                        make fuzz      SECONDS_EACH=600 a target"
	@echo "make asan, tsan   checked builds                 make soak      long tests"
	@echo "make package      .deb, tarball, container image   make test-clients, test-models: more tests"
	@echo "make wheel        the Python wheel, in dist/"
	@echo "make release      all of it for x86-64 and ARM64   make test-arm64  kernels and program under qemu"
	@echo "make test-release makes it twice and compares"

run-says:
	@echo "quern: builds the program (minutes the first time), fetches the model smollm2 (98 MB, once), and asks it a question" >&2

build:
	@scripts/setup build
	@scripts/build release

run: run-says build
	@scripts/fetch-model smollm2
	build/quern run $(MODEL) -p "$(PROMPT)"

test:
	@scripts/setup test
	@scripts/test

# The larger models and the slow tests: an hour, not for CI.
test-models:
	@scripts/setup test
	@scripts/build release
	@scripts/fetch-model smollm2 gemma3 qwen05 qwen15 minilm-st nomic
	.venv/bin/python -m pytest -q -m "models or slow" test/e2e

# The client libraries and programs that people use, some twenty of them, against a real server: minutes, not for CI.
test-clients:
	@scripts/setup clients
	@scripts/build release
	@scripts/fetch-model qwen05
	.venv-clients/bin/python -m pytest -q -p no:cacheprovider test/clients

soak:
	@scripts/setup test
	@scripts/build release
	.venv/bin/python -m pytest -q -m "slow" test/e2e

fuzz:
	@scripts/setup fuzz
	@scripts/build fuzz
	@scripts/fuzz $(SECONDS_EACH)

bench: build
	@scripts/setup test
	@scripts/bench

check:
	@scripts/setup test
	@scripts/check

format:
	@scripts/check --format

asan tsan portable:
	@scripts/setup build
	@scripts/build $@

# Kernels for every card that is supported, not only for the one at hand.
CARDS = 80;86;87;89;90a;100;110;120;121;ptx90

# Kernels for every card that is supported: for release, not for every day.
cuda-all:
	@scripts/setup build
	cmake --preset release -DQUERN_CUDA_ARCHS="$(CARDS)"
	cmake --build build

# A tarball, a Debian package and a container image, from the program that runs anywhere: build-portable/package
package:
	@scripts/setup package
	cmake --preset portable -DQUERN_CUDA_ARCHS="$(CARDS)"
	cmake --build build-portable
	@scripts/package build-portable

# The Python wheel of this architecture: dist/*.whl. Kernels are those of `make build`, or WHEEL_CARDS="80;90a"; those of a release
# have all cards.
WHEEL_CARDS =
wheel:
	@scripts/setup build
	cmake --preset portable -DQUERN_CUDA_ARCHS="$(WHEEL_CARDS)"
	cmake --build build-portable
	@scripts/wheel build-portable dist

# Everything for both architectures, in dist, with SHA256SUMS.
release:
	@scripts/setup package
	@scripts/setup arm64
	@CARDS="$(CARDS)" scripts/release

# The release twice, and whether both have the same bytes: half an hour, not for CI.
test-release:
	@scripts/test-release

# The kernels of ARM64, tier by tier, and the main verbs, under qemu: minutes, not for CI.
test-arm64:
	@scripts/setup test
	@scripts/setup arm64
	@scripts/build arm64
	@scripts/test-arm64

install: build
	cmake --install build

clean:
	rm -rf build build-*
