# make run     a gateway, a stand-in region and simulated sensors in one process
# make test    all tests; what needs mosquitto, kcat or Kafka is skipped where they are missing (.ci/run brings them)
# make build   bin/sluice: static, stripped; GOOS, GOARCH and GOARM as usual
# make bench   the table of figures against mosquitto
# make lint    formatting, vet on 64 and 32 bits, staticcheck

GO          ?= go
VERSION     ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
STATICCHECK ?= honnef.co/go/tools/cmd/staticcheck@v0.8.2
TIMEOUT     ?= 20m
PACKAGES    ?= ./...

# The race detector needs a C compiler. Without one the tests run all the same, just not under it.
CC_FOUND := $(shell command -v $$($(GO) env CC) 2>/dev/null)
RACE     ?= $(if $(and $(filter 1,$(shell $(GO) env CGO_ENABLED)),$(CC_FOUND)),-race)

.PHONY: run test build bench lint clean

run:
	$(GO) run ./cmd/sluice-demo

test:
	@$(if $(RACE),,echo "no C compiler for cgo: testing without the race detector")
	$(GO) test $(RACE) $(TESTFLAGS) -timeout $(TIMEOUT) $(PACKAGES)
	cd scripts/mqttload && $(GO) test ./...
	cd scripts/pahogo && $(GO) vet ./...

build:
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags "-s -w -X main.version=$(VERSION)" -o bin/sluice ./cmd/sluice

bench:
	scripts/bench

lint:
	@unformatted=$$(gofmt -l $$(git ls-files '*.go')); test -z "$$unformatted" || { echo "gofmt would change:"; echo "$$unformatted"; exit 1; }
	$(GO) vet ./...
	GOARCH=386 CGO_ENABLED=0 $(GO) vet ./...
	GOARCH=arm CGO_ENABLED=0 $(GO) vet ./...
	$(GO) run $(STATICCHECK) ./...

clean:
	rm -rf bin
