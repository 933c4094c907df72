# `make` lists the targets. Everything is built by cargo; this file only names what people do.
SHELL := /bin/bash
CARGO ?= $(shell command -v cargo || echo "$${CARGO_HOME:-$$HOME/.cargo}/bin/cargo")
PREFIX ?= /usr/local
LIBDIR = $(PREFIX)/lib
# Where man pages and shell completions go.
MAN = $(PREFIX)/share/man
BASH = $(PREFIX)/share/bash-completion/completions
ZSH = $(PREFIX)/share/zsh/site-functions
FISH = $(PREFIX)/share/fish/vendor_completions.d
# The sample that `make test` draws: the same for the same commit, `make test SEED=7` for another.
SEED ?= $(shell printf '%d' 0x$$(git rev-parse --short=7 HEAD 2>/dev/null || echo 1))
export CARGO

help:
	@echo 'make build      the library target/release/libsluice.so and the command target/release/sluice'
	@echo 'make quick      formatting, clippy, unit tests: a minute after a change'
	@echo 'make check      formatting, clippy, quick tests, the compatibility table, instructions of calls, bad input'
	@echo 'make test       a seeded sample of all tests, 40 minutes at most (SEED=N picks another)'
	@echo 'make test-full  all of them'
	@echo 'make test-rdma  what needs RDMA, in two hosts made of namespaces: in a guest kernel where there is none here'
	@echo 'make evidence   all that is promised between hosts, tests and figures, on one page: two hours'
	@echo 'make bench      benchmarks of C programs and real ones, judged by the promised floors'
	@echo 'make compare    real programs on TCP and on Sluice, a table'
	@echo 'make stress     random demotions from both ends over gigabytes, checksummed'
	@echo 'make fuzz       random programs of sockets calls, plain and preloaded, compared (TIME=300 seconds, SEED=N)'
	@echo 'make fuzz-coverage  what peers, files and other processes say, drawn by libFuzzer (TIME=600 seconds a target, needs cargo-fuzz)'
	@echo 'make sanitize   tests under ThreadSanitizer, AddressSanitizer and Miri, as far as these are there'
	@echo 'make suites     other people'"'"'s test suites, plain and preloaded'
	@echo 'make users      programs as people run them, plain and preloaded, five times: a table in docs/programs.md'
	@echo 'make demo       installs what is missing, builds, serves files by nginx to curl, compares'
	@echo 'make install    library, command, man pages and completions into PREFIX (/usr/local); make uninstall takes them out'
	@echo 'make tarball    the same as an archive that can be unpacked anywhere, in target'
	@echo 'make deb        a Debian package of it, in target'
	@echo 'make clean      removes what was built'

build: needs
	$(CARGO) build --release --workspace

# What is missing to build, in one line, before cargo starts.
needs:
	@scripts/needs.sh

# The library with SLUICE_FAULT: tests only, never installed. Arithmetic is checked, though not that
# of hooks and what they inline: a cancelled thread is unwound there, past no landing pad.
build-fault:
	$(CARGO) build --release --features fault -p sluice-preload --target-dir target/fault \
		$(foreach package,engine readiness rendezvous sockets transport runtime stream,\
			--config profile.release.package.sluice-$(package).overflow-checks=true)

benches:
	@$(MAKE) --no-print-directory -s -C benches

# Unit tests alone: programs of tests that need another build are `make check`'s.
quick:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --lib --bins --tests -- -D warnings
	$(CARGO) test --workspace --lib --bins

check:
	$(CARGO) fmt --all --check
	$(CARGO) fmt --all --check --manifest-path fuzz/coverage/Cargo.toml
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	$(CARGO) check -p sluice-preload --features probe
	$(CARGO) test --workspace
	$(CARGO) test --manifest-path fuzz/coverage/Cargo.toml --target-dir target/replay
	scripts/compat.py --self-test
	scripts/compat.py --check
	scripts/shape.py --check
	@$(MAKE) --no-print-directory build
	@if command -v valgrind >/dev/null; then scripts/instructions.py --check; \
	else echo 'valgrind is not installed: the instructions of calls are not counted'; fi
	scripts/badinput.sh

deps:
	@scripts/install-deps.sh
	@scripts/install-deps.sh --rdma

test: deps
	@python3 scripts/lib/suite.py --sample $(SEED)

test-full: deps
	@scripts/install-deps.sh --rdma-qemu || true
	@python3 scripts/lib/suite.py --full $(SEED)

test-rdma:
	@scripts/install-deps.sh --rdma
	@python3 scripts/lib/suite.py --rdma $(SEED)

# Two hours of a machine that has nothing else to do.
evidence: build build-fault benches
	@scripts/install-deps.sh --rdma
	@scripts/install-deps.sh --rdma-qemu
	@$(MAKE) --no-print-directory -s -C c-tests
	$(CARGO) test --no-run -p sluice-fabric --test verbs
	$(CARGO) test --no-run -p sluice-transport --test remote
	@scripts/guest/run --prepare
	@scripts/guest/evidence --seed $(SEED)

bench: deps build benches
	scripts/bench.py --check

compare: deps build benches
	scripts/compare.sh

# What `make test` runs for two minutes, here with a seed of its own each time.
TIME ?= 300
fuzz: build build-fault
	scripts/fuzz.py --seconds $(TIME) $(if $(filter file,$(origin SEED)),,--seed $(SEED)) \
		--fault-lib target/fault/release/libsluice.so

# Which target, if not all: `make fuzz-coverage TARGETS=arena`. See docs/fuzzing.md.
fuzz-coverage: TIME = 600
fuzz-coverage:
	scripts/coverage.sh --seconds $(TIME) $(TARGETS)

sanitize:
	scripts/sanitize.sh

stress: deps build-fault benches
	scripts/soak.py stress

suites: build
	@scripts/install-deps.sh --suites
	@scripts/suites/run

users: build
	@scripts/install-deps.sh --users
	scripts/users.py --table

demo:
	@scripts/demo.sh

install: build
	@$(MAKE) --no-print-directory install-files

# What is installed, and packed, of what was built before.
BUILT = target/release
install-files:
	install -d $(DESTDIR)$(LIBDIR) $(DESTDIR)$(PREFIX)/bin
	install -m 755 $(BUILT)/libsluice.so $(DESTDIR)$(LIBDIR)/libsluice.so
	install -m 755 $(BUILT)/sluice $(DESTDIR)$(PREFIX)/bin/sluice
	install -d $(DESTDIR)$(MAN)/man1 $(DESTDIR)$(MAN)/man5 $(DESTDIR)$(MAN)/man7 $(DESTDIR)$(BASH) $(DESTDIR)$(ZSH) $(DESTDIR)$(FISH)
	rm -rf target/man
	install -d target/man
	$(BUILT)/sluice manual target/man
	install -m 644 target/man/*.1 $(DESTDIR)$(MAN)/man1
	install -m 644 target/man/*.7 $(DESTDIR)$(MAN)/man7
	install -m 644 docs/libsluice.7 $(DESTDIR)$(MAN)/man7/libsluice.7
	install -m 644 docs/sluice.conf.5 $(DESTDIR)$(MAN)/man5/sluice.conf.5
	$(BUILT)/sluice completions bash > $(DESTDIR)$(BASH)/sluice
	$(BUILT)/sluice completions zsh > $(DESTDIR)$(ZSH)/_sluice
	$(BUILT)/sluice completions fish > $(DESTDIR)$(FISH)/sluice.fish

# What runs with glibc 2.28 and later, wherever it was built.
portable:
	scripts/portable.sh

# One archive that can be unpacked anywhere: the command finds the library beside itself.
VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
TARBALL = sluice-$(VERSION)-$(shell uname -m)
tarball:
	@scripts/needs.sh --archive
	@$(MAKE) --no-print-directory portable
	rm -rf target/tarball
	@$(MAKE) --no-print-directory install-files BUILT=target/portable/release PREFIX= DESTDIR=$(CURDIR)/target/tarball/$(TARBALL)
	scripts/docs-tree.sh target/tarball/$(TARBALL)
	tar -C target/tarball -czf target/$(TARBALL).tar.gz $(TARBALL)
	@echo target/$(TARBALL).tar.gz

# What apt-get installs.
deb:
	@scripts/needs.sh --package
	@$(MAKE) --no-print-directory portable
	@scripts/package.sh $(VERSION)

uninstall:
	rm -f $(DESTDIR)$(LIBDIR)/libsluice.so $(DESTDIR)$(PREFIX)/bin/sluice
	rm -f $(DESTDIR)$(MAN)/man1/sluice.1 $(DESTDIR)$(MAN)/man1/sluice-*.1 $(DESTDIR)$(MAN)/man7/libsluice.7 $(DESTDIR)$(MAN)/man7/sluice-reasons.7 $(DESTDIR)$(MAN)/man5/sluice.conf.5
	rm -f $(DESTDIR)$(BASH)/sluice $(DESTDIR)$(ZSH)/_sluice $(DESTDIR)$(FISH)/sluice.fish

clean:
	$(CARGO) clean
	$(MAKE) -C benches clean
	$(MAKE) -C fuzz clean

.PHONY: help build build-fault benches quick check deps test test-full test-rdma evidence bench compare fuzz fuzz-coverage sanitize suites users stress demo install install-files needs portable tarball deb uninstall clean
