# `make` alone lists the targets.
.DEFAULT_GOAL := help
SHELL := /bin/bash

# What the build, and most tests, take from the host. The versions do not matter:
# what shapes an image comes from the pinned tools tree in hullmark.lock.
HOST_PACKAGES := bubblewrap uidmap python3 ca-certificates debian-archive-keyring dpkg gpgv xz-utils zstd tar \
	gcc libc6-dev pkg-config libcryptsetup-dev \
	swtpm swtpm-tools tpm2-tools qemu-system-x86 ovmf \
	binutils cpio cryptsetup-bin dosfstools erofs-utils gdisk ipxe-qemu iproute2 jq locales mtools openssl qemu-utils sbsigntool systemd systemd-boot-efi user-mode-linux

# What only tests need.
TEST_PACKAGES := bash-completion chromium fonts-liberation efitools fish groff-base opensc prometheus ruby-tpm-key-attestation softhsm2 zsh

# The module beside this one, whose requirements nothing else is to have.
CAPI := tools/capi

FUZZTIME ?= 10s
FUZZQUIET ?= 0
OUT ?= out

.PHONY: help
help: ## List the targets.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo
demo: setup bin/hullmark bin/demo ## Build everything, boot a VM, release its key, end with a Ready node.
	bin/demo --out $(OUT)

.PHONY: demo-cluster
demo-cluster: setup bin/hullmark bin/demo ## The same, then a worker joins, reboots, all power is cut, and a disk is replaced.
	bin/demo --out $(OUT) --workers 1

.PHONY: demo-confidential
demo-confidential: setup bin/hullmark bin/demo bin/secureprocessor ## The same on machines that play confidential ones of Azure, and what their host tries.
	bin/demo --out $(OUT) --confidential

.PHONY: demo-upgrade
demo-upgrade: setup bin/hullmark bin/demo ## Releases over a control plane and a worker: some that fail and fall back, other packages, another Kubernetes (PARTS="hang packages": these alone, on what the last run left).
	bin/demo --out $(OUT) --upgrade --parts "$(PARTS)"

.PHONY: demo-capi
demo-capi: setup bin/hullmark bin/capi-demo bin/capi-manager bin/capi-qemu bin/capi-core ## Declare a cluster of one control plane and one worker by Cluster API, replace the worker, look for keys everywhere, delete it.
	bin/capi-demo --out $(OUT)

.PHONY: image
image: setup bin/hullmark ## Build and measure the image into out/.
	bin/hullmark build --out $(OUT)

.PHONY: test
test: setup-test lint test-long test-browser test-vm ## Run every test that CI runs; a VM boots to Ready.

.PHONY: test-fast
test-fast: ## Run the tests that need no build tag, in minutes.
	go test ./...
	cd $(CAPI) && go test ./...

# tagged lists the packages whose tests carry a build tag, in this folder's module.
tagged = $$(git grep -l '^//go:build $(1)$$' -- '*_test.go' ':!$(CAPI)' | xargs -n1 dirname | sort -u | sed 's|^|./|')

.PHONY: test-long
test-long: bin/hullmark ## Run the tests of test-fast, and those that build root trees, compile Kubernetes and ask real API servers.
	go test -vet off -tags long -timeout 75m -p 4 ./image/build ./tools/joinservice ./tools/hullmark ./joinservice/registry ./cluster/addons ./... # what takes longest begins first; make lint vets
	cd tools/kubernetes/flannel && go test ./... # a module of its own
	cd $(CAPI) && go test -vet off ./...

.PHONY: test-builds
test-builds: ## Build images from nothing, on a full disk, with a kernel module of one's own, for each platform, and as docs/ci.md says.
	go test -tags builds -count 1 -timeout 2h -v -run 'FullDisk|UserDefinitions|FailingScript|KernelModuleExample|PathsMakeOneImage|TestPlatforms$$|CIRecipe' $(call tagged,builds)

.PHONY: test-ci
test-ci: ## Run the steps of the Action for GitHub and of the template for GitLab: a release, and another builder who builds it again and signs it, too (as root, who makes the containers).
	go test -tags builds -count 1 -timeout 3h -v -run '^Test(Action|Template)Steps$$' ./internal/e2e

.PHONY: test-changes
test-changes: ## Change CHANGES packages (30), one after another, and hold each root tree against one that is made from nothing; SEED chooses.
	go test -tags builds -count 1 -timeout 3h -v -run '^TestTree' ./image/build -args -changes $(or $(CHANGES),30) -seed $(or $(SEED),1)

.PHONY: test-capi
test-capi: image ## Test the providers for Cluster API with a real API server, etcd and clusterctl, and with a real machine.
	cd $(CAPI) && go test -tags long -count 1 -timeout 1h -p 4 ./...
	cd $(CAPI) && go test -tags vm -count 1 -timeout 1h -v -run '^TestRealMachine$$' ./infrastructure -args -out $(abspath $(OUT)) -hullmark $(CURDIR)/bin/hullmark

.PHONY: test-quorum
test-quorum: ## Let two and three control planes, with real members of etcd and API servers, lose their quorum, forget, come back, go to another release, and exchange CAs.
	go test -tags long,quorum -count 1 -timeout 60m -v -run 'OfThree|OneOfTwo|Forgetful' ./tools/joinservice ./internal/rolling

# What test-machines boots, and test-vm does not.
MACHINES := TestVMStub|TestVMImportsNoCredential|TestVMRefusesAnotherReleasesRoot|TestVMKeptVariables|TestVMEnrolsKeys|TestVMPowerCutsOfSlots

.PHONY: test-vm
test-vm: bin/hullmark bin/demo ## Run the tests that boot virtual machines.
	go test -tags vm -timeout 80m -p 1 -v -skip '^($(MACHINES))$$' $(call tagged,vm)

.PHONY: test-machines
test-machines: bin/hullmark ## Boot every machine, firmware and stub whose registers are predicted, and run what else test-vm leaves out.
	go test -tags vm -count 1 -timeout 2h -v -run '^(TestVMRegisters|$(MACHINES))$$' ./internal/e2e -args -every

.PHONY: test-splices
test-splices: ## Let a guest put blocks of an older copy of its state disk into the newest one.
	go test -tags vm,splices -count 1 -timeout 1h -v -run '^TestSplicesInAGuest$$' ./firstboot/statedisk/volume

.PHONY: test-restore
test-restore: bin/hullmark bin/demo ## Let a node get Ready and be recovered as test-vm does; then the only control plane loses its disk, and the cluster begins anew with a backup of etcd.
	go test -tags vm -count 1 -timeout 80m -v -run '^TestVMDemo$$' ./internal/e2e -args -restore

.PHONY: test-cluster
test-cluster: bin/hullmark bin/demo ## Let a worker join, reboot and come back after a power cut, in virtual machines.
	go test -tags cluster -timeout 80m -v $(call tagged,cluster)

.PHONY: test-planes
test-planes: setup bin/hullmark ## Let a cluster document's cluster grow to three control planes, of an image signed for Secure Boot, in a network that leads nowhere (PARTS="second third": these alone, on what the last run left).
	bin/hullmark build --relock --config internal/e2e/testdata/planes/image --out $(OUT)/planes-image
	go test -tags powercut -count 1 -timeout 8h -v -run '^TestPlanes$$' ./internal/e2e -args -parts "$(PARTS)" -seed $(or $(SEED),1) -out $(abspath $(OUT))

.PHONY: test-network
test-network: bin/hullmark ## Boot a machine with a bond, a VLAN on it and DHCP beside, and pull its cables; then a cluster of both families, hold a NetworkPolicy to its word, exchange the pod network for one's own.
	go test -tags network -timeout 80m -v -run '^TestNetwork' $(call tagged,network)

.PHONY: test-install
test-install: bin/hullmark ## Install bare machines by USB and by HTTP, up to a Ready node; pictures of their screens stay in out/install.
	@mkdir -p $(OUT)/install
	go test -tags install -count 1 -timeout 2h -v -run '^TestBareMetal$$' -artifacts -outputdir $(OUT)/install ./internal/e2e

.PHONY: test-operations
test-operations: bin/hullmark ## Boot a machine whose policy, signed by a token, names a mirror, a collector of its journal, time servers and two operators; scrape it, and boot it once more, by the operator who may.
	go test -tags operations -count 1 -timeout 2h -v -run '^TestOperations$$' ./internal/e2e

.PHONY: test-firmware
test-firmware: bin/hullmark bin/demo ## Boot a second image on machines whose firmware is known by the log of a first boot alone.
	go test -tags vm,firmware -count 1 -timeout 60m -v -run '^TestFirmwareByLog$$' ./internal/e2e

.PHONY: test-skew
test-skew: ## Go from the minor release of Kubernetes before to this one, and back, with real API servers of both (compiles the earlier one).
	go test -tags skew -count 1 -timeout 3h -v $(call tagged,skew)

.PHONY: test-keeper
test-keeper: bin/hullmark ## Let a real Vault keep a keyset, rotate, refuse, be sealed and be away, and hold a cluster's root (compiles it: 4 CPU minutes the first time).
	cd internal/vaulttest/server && CGO_ENABLED=0 go build -trimpath -o $(CURDIR)/bin/vault .
	go test -tags keeper -count 1 -timeout 20m -v -run '^TestRealVault' ./joinservice/keys/keeper -args -vault $(CURDIR)/bin/vault -hullmark $(CURDIR)/bin/hullmark

.PHONY: powercut
powercut: image ## Cut the power of disks CUTS times (130) in a guest, and of machines until they came to Ready N times (15); SEED chooses when.
	@mkdir -p $(OUT)/powercut-disks
	go test -tags vm -count 1 -timeout 3h -v -run '^TestPowerCuts$$' -artifacts -outputdir $(OUT)/powercut-disks ./firstboot/statedisk/volume -args -cuts $(or $(CUTS),130) -seed $(or $(SEED),1)
	go test -tags powercut -count 1 -timeout 8h -v -run '^TestPowerCuts$$' ./internal/e2e -args -n $(or $(N),15) -seed $(or $(SEED),1) -out $(abspath $(OUT))

.PHONY: powercut-update
powercut-update: image ## Cut the power of a machine that takes other releases, at each kind of write to its disk and variables and at CUTS random ones (200); SEED chooses.
	@mkdir -p $(OUT)/powercut-update
	go test -count 1 -timeout 1h -v -run '^TestPowerCuts' ./firstboot/update -args -cuts 1000000
	go test -tags vm,powercut -count 1 -timeout 8h -v -run '^TestPowerCutsOfSlots$$' -artifacts -outputdir $(OUT)/powercut-update ./internal/e2e \
		-args -cuts $(or $(CUTS),200) -seed $(or $(SEED),1) -out $(abspath $(OUT))

.PHONY: powercut-verbs
powercut-verbs: image ## Cut the power while keys are exchanged, disks and machines replaced and etcd restored, CUTS times (1) for each command and each boot that follows; PARTS="rotate reset rebind restore" chooses.
	go test -tags powercut -count 1 -timeout 12h -v -run '^TestPowerCutsOfVerbs$$' ./internal/e2e \
		-args -each $(or $(CUTS),1) -parts "$(PARTS)" -seed $(or $(SEED),1) -out $(abspath $(OUT))

.PHONY: powercut-addons
powercut-addons: ## Break off an add-on's upgrade, and its way back, before each of their writes.
	go test -tags long -count 1 -timeout 2h -v -run '^TestCuts' ./cluster/addons -args -every 1

.PHONY: test-vectors
test-vectors: ## Judge the recorded evidence of real machines that is in the folder VECTORS.
	@test -d "$(VECTORS)" || { echo "name the folder with recorded evidence: make test-vectors VECTORS=FOLDER" >&2; exit 2; }
	go test -tags vectors -count 1 -timeout 20m -run Recorded $(call tagged,vectors) -args -vectors "$(abspath $(VECTORS))"

.PHONY: test-browser
test-browser: ## Look at the pages in a real browser; pictures of them stay in out/browser.
	@mkdir -p $(OUT)/browser
	go test -tags browser -run Browser -artifacts -outputdir $(OUT)/browser $(call tagged,browser)

.PHONY: test-docs
test-docs: ## Run every command of the docs' journeys in a clone (five builds, most from nothing, and a boot).
	go test -tags docs -timeout 3h -v -run TestDocsCommands ./internal/e2e

.PHONY: load
load: ## Let N machines (200), each with a TPM emulator, join at once, while policy, API and a replica change or fail.
	go test -tags long -count 1 -timeout 90m -v ./internal/load -args -n $(or $(N),200)

.PHONY: flood
flood: ## Let unauthenticated peers flood a join service and a node's port, each kind for FOR (15s), while machines and operators go on; needs two processors to itself.
	go test -tags long -count 1 -p 1 -timeout 60m -v -run 'TestFlood' ./tools/joinservice ./firstboot -args -figures $(or $(FOR),15s)

.PHONY: bench
bench: ## Compare speed with peers, side by side, on the image in out/ (run make image before).
	go test -run '^$$' -bench . -benchtime 1x ./internal/bench -args -out $(abspath $(OUT))

.PHONY: bench-growth
bench-growth: ## Let a cluster grow to N played machines (3500), each with a rule of its own or all by one group (GROUP=1), behind two API servers: tickets, calls, memory and records, at rest and when all come back at once; wants a quiet machine.
	mkdir -p $(OUT)
	go test -vet off -tags long,bench -run '^$$' -bench '^BenchmarkGrowth$$' -benchtime 1x -timeout 4h ./internal/load -args -grow $(or $(N),3500) $(if $(GROUP),-group) -out $(abspath $(OUT))

.PHONY: bench-build
bench-build: setup ## Compare the time of builds, and the size, with mkosi's own of the same packages; wants a quiet machine.
	go test -tags bench -run '^$$' -bench BenchmarkBuild -benchtime 1x -timeout 2h ./image/build -args -rounds $(or $(ROUNDS),3)

.PHONY: bench-boot
bench-boot: setup ## Compare a control plane's first boot and reboot, and a worker's join, up to Ready, and what an idle node takes, with a stock Debian's, ROUNDS times (3; all but first boots in the last AGAIN of them, idle in the last IDLE); wants an idle machine (compiles Kubernetes' own programs the first time).
	@mkdir -p $(OUT)/bench-boot
	go test -tags bench -run '^$$' -bench 'BenchmarkBoot$$' -benchtime 1x -timeout 12h ./image/build -args -journals $(abspath $(OUT))/bench-boot -rounds $(or $(ROUNDS),3) -again $(or $(AGAIN),$(ROUNDS),3) -idle $(or $(IDLE),$(AGAIN),$(ROUNDS),3)

.PHONY: bench-update
bench-update: setup ## Compare what a machine fetches of its next release, and how long it takes, with whole downloads and casync (needs casync).
	go test -tags bench -run '^$$' -bench BenchmarkUpdate -benchtime 1x -timeout 3h ./image/build

.PHONY: bench-upgrade
bench-upgrade: ## Compare what clients see of the API while an upgrade restarts three control planes with a plain restart of one after another.
	go test -tags bench -run '^$$' -bench BenchmarkUpgrade -benchtime 1x -timeout 2h ./internal/rolling

.PHONY: bench-capi
bench-capi: ## Compare the bootstrap provider of Cluster API with kubeadm's on N Machines (500), ROUNDS times (3): times, calls of the API, memory; wants a quiet machine.
	cd $(CAPI) && go test -tags bench -run '^$$' -bench BenchmarkBootstrap -benchtime 1x -timeout 2h ./bench -args -machines $(or $(N),500) -rounds $(or $(ROUNDS),3)

.PHONY: bench-disk
bench-disk: ## Compare ways to keep files on a disk that the host can write, in a guest (needs btrfs-progs).
	go test -tags vm -count 1 -run '^$$' -bench BenchmarkFreshness -benchtime 1x -timeout 30m ./firstboot/statedisk/volume

.PHONY: site
site: ## Make a site of README and docs in out/site, which is searched and read without a server.
	go run ./tools/site -out $(OUT)/site

.PHONY: tour
tour: ## Run the commands of docs/tour.md, and write what they print into the page.
	go test -count 1 -v -run '^TestTour$$' ./tools/hullmark -args -update

.PHONY: amdsev
amdsev: ## Build OVMF for SEV-SNP guests with kernel hashes from Debian's locked sources of edk2 into out/OVMF.amdsev.fd.
	tools/amdsev/build.sh $(OUT)/OVMF.amdsev.fd

.PHONY: reproduce
reproduce: setup bin/hullmark ## Build the image three times under other circumstances, and compare.
	bin/hullmark reproduce --out $(OUT)

.PHONY: release
release: ## Make a release of bin/hullmark in out/release: VERSION (v1.2.3) for amd64 and arm64, Debian packages, man pages, the site, checksums, SBOMs, signed with KEY.
	@: $(or $(VERSION),$(error name a version: make release VERSION=v1.2.3 KEY=release.key)) $(or $(KEY),$(error name the key that signs, PKCS #8: make release VERSION=v1.2.3 KEY=release.key))
	@test -r "$(KEY)" || { echo "no key can be read from $(KEY)" >&2; exit 1; }
	@openssl pkey -in "$(KEY)" -noout 2>/dev/null || { echo "$(KEY) is no private key that openssl reads: openssl genpkey -algorithm ed25519 -out release.key makes one" >&2; exit 1; }
	go run ./tools/release -version $(VERSION) -out $(OUT)/release
	openssl pkeyutl -sign -rawin -inkey $(KEY) -in $(OUT)/release/SHA256SUMS -out $(OUT)/release/SHA256SUMS.sig

.PHONY: capi-image
capi-image: ## Build the container image of the manager for Cluster API into out/capi (NAME, REGISTRY/REPOSITORY:TAG, stands in the layout), and print its digest.
	cd $(CAPI) && go run ./image --out $(abspath $(OUT))/capi $(if $(NAME),--name $(NAME))

.PHONY: capi-release
capi-release: ## Make a clusterctl repository in out/capi/repository: VERSION (v0.1.0) of the providers, with their image by NAME and digest.
	@: $(or $(VERSION),$(error name a version: make capi-release VERSION=v0.1.0 NAME=REGISTRY/REPOSITORY:TAG)) $(or $(NAME),$(error name where the image will be: make capi-release VERSION=v0.1.0 NAME=REGISTRY/REPOSITORY:TAG))
	$(MAKE) capi-image
	cd $(CAPI) && go run ./components --image "$(NAME)@$$(cat $(abspath $(OUT))/capi/digest)" --version $(VERSION) --out $(abspath $(OUT))/capi/repository

# All build tags of this folder's module.
TAGS := long,vm,cluster,install,docs,browser,explore,operations,powercut,bench,vectors,skew,network,firmware,keeper,quorum,builds,splices

.PHONY: lint
lint: ## Run go vet, staticcheck and gofumpt.
	go vet -tags $(TAGS) ./...
	go tool staticcheck -tags $(TAGS) ./...
	staticcheck=$$(go tool -n staticcheck) && cd $(CAPI) && go vet -tags long,vm,bench ./... && "$$staticcheck" -tags long,vm,bench ./...
	@unformatted=$$(go tool gofumpt -l $$(git ls-files '*.go' | grep -v '\.pb\.go$$')); \
		if [ -n "$$unformatted" ]; then echo "not gofumpt-ed: $$unformatted" >&2; exit 1; fi

.PHONY: fuzz
fuzz: ## Fuzz decoders (FUZZ, a pattern; default all, and a million changed headers of disks) for FUZZTIME each (10s), or until one found nothing new for FUZZQUIET, and tell executions and coverage.
	$(if $(FUZZ),,go test -count 1 -timeout 2h -v -run '^TestRandomMutants$$' ./firstboot/luks2 -args -mutants 1000000)
	go run ./tools/fuzz -time $(FUZZTIME) -quiet $(FUZZQUIET) -only "$(FUZZ)"

.PHONY: threats
threats: bin/hullmark bin/demo ## Run the tests that docs/threats.md names, and tell of each attack whether it was refused (VM=1: in virtual machines, too).
	go run ./tools/threats -tags "long builds quorum long,quorum $(if $(VM),vm)"

.PHONY: explore
explore: ## Go through the states of a node, its disk, the records and its release, with power cuts, lost messages and hosts; then without each check (FULL=1: with more faults, in hours).
	go test -tags long -count 1 -timeout 24h -v ./internal/explore -args -all $(if $(FULL),-full)

.PHONY: generate
generate: ## Regenerate the exchange's Go code from wire.proto.
	cd attest/wire && PATH="$$(go env GOPATH)/bin:$$PATH" go generate ./...

.PHONY: setup
setup: ## Install the Debian packages that building needs.
	$(call install,$(HOST_PACKAGES))

.PHONY: setup-test
setup-test: ## Install the Debian packages that building and testing need.
	$(call install,$(HOST_PACKAGES) $(TEST_PACKAGES))

# install installs those of some packages that are missing.
define install
@missing=$$(dpkg-query -W -f '$${db:Status-Status} $${Package}\n' $(1) 2>/dev/null | awk '$$1 == "installed" { print $$2 }' \
	| sort | comm -13 - <(printf '%s\n' $(1) | sort)); \
if [ -z "$$missing" ]; then exit 0; fi; \
echo "installing:" $$missing; \
if [ "$$(id -u)" != 0 ]; then echo "as root: apt-get install" $$missing >&2; exit 1; fi; \
apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $$missing
endef

.PHONY: clean-cache
clean-cache: bin/hullmark ## Remove every cache outside the checkout.
	bin/hullmark cache clean

bin/secureprocessor: FORCE
	@mkdir -p bin
	CGO_ENABLED=0 go build -trimpath -o $@ ./internal/test/secureprocessor

bin/capi-manager: FORCE
	@mkdir -p bin
	cd $(CAPI) && CGO_ENABLED=0 go build -trimpath -o $(CURDIR)/$@ .

bin/capi-core: FORCE
	@mkdir -p bin
	cd $(CAPI) && CGO_ENABLED=0 go build -trimpath -o $(CURDIR)/$@ sigs.k8s.io/cluster-api/core

bin/capi-%: FORCE
	@mkdir -p bin
	cd $(CAPI) && CGO_ENABLED=0 go build -trimpath -o $(CURDIR)/$@ ./$*

bin/%: FORCE
	@mkdir -p bin
	CGO_ENABLED=0 go build -trimpath -o $@ ./tools/$*

.PHONY: FORCE
FORCE:
