# Every target that stands here works on a bare clone; `make` alone lists them.

SHELL       := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
COMMIT  := $(shell git rev-parse HEAD 2>/dev/null)
LDFLAGS := -X main.version=$(VERSION) -X main.commit=$(COMMIT)

# Tests run with the checks of internal/invariant compiled in.
GOTEST := go test -tags invariants

# A package needs a database when it or its tests import internal/cluster or
# internal/pgtest. Nothing has to be declared anywhere else. The decoder is one of
# those that do not: it starts servers only to capture its golden files anew.
NEEDS_CLUSTER := {{$$found := eq .ImportPath "pgapply/internal/cluster"}}\
{{range .Imports}}{{if eq . "pgapply/internal/cluster"}}{{$$found = true}}{{end}}{{end}}\
{{range .TestImports}}{{if eq . "pgapply/internal/cluster" "pgapply/internal/pgtest"}}{{$$found = true}}{{end}}{{end}}\
{{range .XTestImports}}{{if eq . "pgapply/internal/cluster" "pgapply/internal/pgtest"}}{{$$found = true}}{{end}}{{end}}
UNIT_PACKAGES = $(shell go list -f '$(NEEDS_CLUSTER){{if or (not $$found) (eq .ImportPath "pgapply/decoder")}}{{.ImportPath}}{{end}}' ./...)
RACE_PACKAGES = $(shell go list ./... | grep -v '^pgapply/integration')

# Tools are pinned, and live in a directory that names their version.
GOFUMPT_VERSION      := v0.12.0
GOLANGCILINT_VERSION := v2.15.0
GOVULNCHECK_VERSION  := v1.9.0
GOFUMPT      := bin/tools/gofumpt-$(GOFUMPT_VERSION)/gofumpt
GOLANGCILINT := bin/tools/golangci-lint-$(GOLANGCILINT_VERSION)/golangci-lint
GOVULNCHECK  := bin/tools/govulncheck-$(GOVULNCHECK_VERSION)/govulncheck

# What the targets below can be asked for: make integration PG=16
PG       ?= 18
CRASHES  ?= 100
ROUNDS   ?= 10
SOAK     ?= 100
SEEDS    ?= 5
COPIES   ?= 3
FIRST    ?= 1
FUZZTIME ?= 30s
VANDALS  ?= 2000
NAMES    ?= 100

##@ Everyday

help: ## List the targets
	@awk 'BEGIN {FS = ":.*## "} \
	  /^##@ / {printf "\n%s\n", substr($$0, 5)} \
	  /^[a-z-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## Build bin/pgapply
	CGO_ENABLED=0 go build -trimpath -ldflags '$(LDFLAGS)' -o bin/pgapply ./cmd/pgapply

PLATFORMS := linux-amd64 linux-arm64 darwin-amd64 darwin-arm64

release: ## Static binaries for Linux and macOS with their checksums, in dist/
	rm -rf dist
	@for platform in $(PLATFORMS); do \
	  file=dist/pgapply-$(VERSION)-$$platform; echo "$$file"; \
	  CGO_ENABLED=0 GOOS=$${platform%-*} GOARCH=$${platform#*-} go build -trimpath -ldflags '-s -w $(LDFLAGS)' -o "$$file" ./cmd/pgapply; \
	done
	cd dist && sha256sum pgapply-* > SHA256SUMS

demo: build ## Replicate between two throw-away servers, and compare every row
	bin/pgapply demo

test: unit race page integration oracle ## Everything a change must pass: what CI runs
	@echo "make test: passed"

fmt: $(GOFUMPT) ## Format all Go files
	$(GOFUMPT) -w .

lint: $(GOLANGCILINT) ## Formatting, vet and linters (the first run builds the linter: minutes)
	$(GOLANGCILINT) run ./...

##@ Tests, one kind at a time

unit: ## Packages that need no database: seconds
	$(GOTEST) $(UNIT_PACKAGES)

race: ## Every package but integration under the race detector, with servers where it needs them
	$(GOTEST) -race -timeout 30m $(RACE_PACKAGES)

page: internal/httpd/pagetest/node_modules ## The page of --http in headless Chromium (Debian's chromium); screenshots in internal/httpd/pagetest/shots
	$(GOTEST),page -v -run '^TestPage$$' ./internal/httpd

# Two halves at a time, each with servers of its own: most of these tests wait for servers,
# one after the other. What went wrong is said once more at the end.
integration: ## The whole engine against real servers of major PG (18)
	@mkdir -p bin
	$(GOTEST) -c -o bin/integration.test ./integration
	@cd integration; \
	  list=$$(../bin/integration.test -test.list '^Test'); \
	  half() { \
	    PGAPPLY_TEST_MAJOR=$(PG) ../bin/integration.test -test.timeout 25m \
	      -test.run "^($$(awk "/^Test/ && NR % 2 == $$1" <<< "$$list" | paste -sd '|'))\$$" 2>&1 | tee ../bin/integration-$$1.log; \
	  }; \
	  half 0 & one=$$!; half 1 & other=$$!; \
	  failed=0; wait $$one || failed=1; wait $$other || failed=1; \
	  ((failed)) && grep -hE -A5 '^panic: |^ *--- FAIL|^running tests' ../bin/integration-[01].log; exit $$failed

matrix: ## Every publisher from 10 on into target 18, publisher 18 into every target from 14 on, and the grants that each major needs
	PGAPPLY_MATRIX=all $(GOTEST) -timeout 60m -run '^Test(Majors|EveryWayGivesTheSameTables|Grants.*)$$' -v ./integration

oracle: ## Random scripts into a native subscription and into pgapply in every mode: SEEDS (5) of them from FIRST (1) on, COPIES (3) with copies of the tables
	PGAPPLY_TEST_MAJOR=$(PG) PGAPPLY_TEST_SEED=$(FIRST) PGAPPLY_TEST_SEEDS=$(SEEDS) PGAPPLY_TEST_COPIES=$(COPIES) $(GOTEST) -timeout 120m ./integration/oracle

crash: ## Kill pgapply and both servers, CRASHES (100) times each under load, ROUNDS (10) at each moment of a prepared transaction; CRASHES rounds of everything at random, from seed FIRST (1) on; a million rows in one transaction
	PGAPPLY_TEST_CRASHES=$(CRASHES) PGAPPLY_TEST_ROUNDS=$(ROUNDS) PGAPPLY_TEST_SEED=$(FIRST) $(GOTEST) -timeout 120m -run '^Test(Kill|Chaos|MillionRows)' -v ./integration

soak: ## SOAK (100) rounds of streams, prepared transactions, conflicts, tables that come and go, and cut links: descriptors, goroutines and memory
	PGAPPLY_TEST_SOAK=$(SOAK) $(GOTEST) -timeout 60m -run '^TestSoak$$' -v ./integration

memory: ## Ten streamed transactions of 3 GB in all, open at a time, and rows of half a GB, with a memory limit of 16 MiB
	PGAPPLY_TEST_STREAMED=3072 PGAPPLY_TEST_FIELD=520 $(GOTEST) -timeout 60m -run '^Test(StreamsBeyondMemory|RowsBeyondMemory)$$' -v ./integration

hostile: ## Damage a publisher's stream VANDALS (2000) times, and replicate NAMES (100) sets of hostile names
	PGAPPLY_TEST_VANDALS=$(VANDALS) PGAPPLY_TEST_NAMES=$(NAMES) $(GOTEST) -timeout 240m -run '^Test(BadPublisher|HostileNames)$$' -v ./integration

verify-million: ## One changed, one missing and one extra row among a million, from 14 to 18 and back; how long that takes beside COPY TO
	PGAPPLY_TEST_ROWS=1000000 $(GOTEST) -timeout 30m -run '^TestVerifyAcrossMajors$$' -v ./integration

vuln: $(GOVULNCHECK) ## Known vulnerabilities in what is called; needs vuln.go.dev, and is no part of make test
	@$(GOVULNCHECK) ./... || { code=$$?; \
	  if ((code != 3)); then echo "make vuln: nothing is known: the data could not be had, or govulncheck has failed"; fi; exit $$code; }

fuzz: ## Each fuzz target for FUZZTIME (30s)
	@grep -rHoE --include='*_test.go' '^func Fuzz[A-Za-z0-9_]*' . \
	  | sed -E 's#^(.*)/[^/]+:func #\1 #' | sort -u \
	  | while read -r package target; do \
	      echo "$$package $$target"; \
	      $(GOTEST) -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) "$$package"; \
	    done

bench: ## Decode-only, native and pgapply side by side: a quarter of an hour on a machine that does nothing else (bench/README.md)
	go run ./bench -save bench/results -workloads W1,W2,W3,W4,W5,W6,W7,W8,W9,L3,L4

bench-copy: ## The initial copy beside native's and bare pipes: ten minutes
	go run ./bench -save bench/results -copy

# Tools

# playwright-core drives the machine's own Chromium, and brings none.
internal/httpd/pagetest/node_modules: internal/httpd/pagetest/package-lock.json
	cd $(@D) && npm ci --no-audit --no-fund --ignore-scripts
	touch $@

$(GOFUMPT):
	GOBIN=$(abspath $(@D)) go install mvdan.cc/gofumpt@$(GOFUMPT_VERSION)

$(GOLANGCILINT):
	GOBIN=$(abspath $(@D)) go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCILINT_VERSION)

$(GOVULNCHECK):
	GOBIN=$(abspath $(@D)) go install golang.org/x/vuln/cmd/govulncheck@$(GOVULNCHECK_VERSION)

.PHONY: help build release demo test fmt lint unit race page integration matrix oracle crash soak memory hostile verify-million vuln fuzz bench bench-copy
