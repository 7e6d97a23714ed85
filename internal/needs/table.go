package needs

import (
	"path/filepath"
	"slices"

	"github.com/hullmark/hullmark/image/build"
)

// always are verbs that need something for all that they do.
func always(verbs ...string) []Use { return when("", verbs...) }

// when are verbs that need something for a part of what they do, which part is said in words.
func when(part string, verbs ...string) []Use {
	uses := make([]Use, len(verbs))
	for i, verb := range verbs {
		uses[i] = Use{Verb: verb, When: part}
	}
	return uses
}

// also joins uses.
func also(uses ...[]Use) []Use { return slices.Concat(uses...) }

// The verbs that much is needed for, by their first words.
const (
	lock, construct, reproduce, diff = "lock", "build", "reproduce", "diff"
	boot, learn                      = "vm", "learn"
)

// x86 is the processor that images are for.
const x86 = "x86-64 processor"

// orTools is what else there is to do where a program that boots machines is missing.
const orTools = "or name a tools tree (--tools, or tools in a machine file)"

// hosts are the uses of what boots machines.
func hosts() []Use { return always(boot, learn) }

// signing are the uses of the shell that runs a signer's command: of the verbs that take one (--signer, --root-signer).
func signing() []Use {
	return when("a signer's command", "keys", "cluster", "policy", "operator", "init", "recover", "node", "update", "upgrade", "endpoint", "report")
}

// table is everything that a verb needs of a machine. A verb that is not in it needs nothing.
var table = []Need{
	{
		What: x86, Remedy: "use such a machine: images, and the tools tree, are for these",
		For:  also(always(construct, reproduce, diff), when("it was seen to work on such a machine alone", lock, boot, learn)),
		look: processor,
	},
	{What: "sh", For: also(always(lock, construct, reproduce), signing()), Packages: []string{"dash"}, look: program("sh")},
	{What: "bwrap", For: also(always(lock, construct, reproduce, diff), when("with a tools tree", boot, learn)), Packages: []string{"bubblewrap"}, look: program("bwrap")},
	{
		What: "namespaces of one's own", For: also(always(lock, construct, reproduce, diff), when("with a tools tree", boot, learn)),
		Packages: []string{"bubblewrap"}, Remedy: allow,
		look: unlessRoot(succeeds(build.TryNamespaces)),
	},
	{What: "unshare", For: always(construct, reproduce), Packages: []string{"util-linux"}, look: unlessRoot(program("unshare"))},
	{What: "newuidmap", For: always(construct, reproduce), Packages: []string{"uidmap"}, look: unlessRoot(program("newuidmap"))},
	{
		What: "user IDs for namespaces", For: always(construct, reproduce), Packages: []string{"uidmap"},
		Remedy: "usermod --add-subuids 100000-165535 --add-subgids 100000-165535 USER; " + allow,
		look:   unlessRoot(succeeds(build.TryUserIDs)),
	},
	{What: "/usr/bin/python3", For: always(lock, construct, reproduce), Packages: []string{"python3"}, look: program("/usr/bin/python3")},
	{What: "dpkg-deb", For: always(lock, construct, reproduce), Packages: []string{"dpkg"}, look: program("dpkg-deb")},
	{What: "dpkg", For: always(construct, reproduce), Packages: []string{"dpkg"}, look: program("dpkg")},
	{What: "tar", For: always(lock, construct, reproduce), Packages: []string{"tar"}, look: program("tar")},
	{What: "apt-get", For: also(always(lock), when("--relock", construct)), Packages: []string{"apt"}, look: program("apt-get")},
	{
		What: "keys of Debian's archive", For: also(always(lock), when("--relock", construct)), Packages: []string{"debian-archive-keyring"},
		look: file(build.ArchiveKeyring),
	},
	{
		What: "a mirror in APT's configuration", For: when("without --mirror", lock, construct, reproduce), Remedy: "name a mirror with --mirror",
		look: mirror,
	},
	{What: "go", For: always(lock, construct, reproduce), Packages: []string{"golang-go"}, Remedy: oldestGo + " or newer, where need be from https://go.dev/dl", look: goTool},
	{What: "Go's module proxy", For: when("where modules are not in GOMODCACHE yet", lock, construct, reproduce), Remedy: "go env -u GOPROXY, or name a proxy", look: moduleProxy},
	{What: "git", For: always(construct), Packages: []string{"git"}, look: git},
	{What: "room in the cache", For: always(construct), Remedy: "make room, or name another folder with HULLMARK_CACHE", look: builtBefore},
	{
		What: "room for three builds in out", For: always(reproduce), Remedy: "make room, or have them made elsewhere (--out), which is not looked at here",
		look: room(func(m Machine) string { return filepath.Join(m.Work, "out") }, 3*roomToBuild),
	},
	{
		What: "processes that look at others", For: when("to make less anew after a package changed", construct), Remedy: "sysctl kernel.yama.ptrace_scope is 3 until the next boot",
		look: setting("kernel.yama.ptrace_scope", 0, 2),
	},
	{What: "linux.uml", For: always(reproduce), Packages: []string{"user-mode-linux"}, look: program("linux.uml")},
	{What: "gcc", For: always(reproduce), Packages: []string{"gcc"}, look: program("gcc")},
	{What: "/usr/include/unistd.h", For: always(reproduce), Packages: []string{"libc6-dev"}, look: file("/usr/include/unistd.h")},
	{What: "localedef", For: always(reproduce), Packages: []string{"libc-bin"}, look: program("localedef")},
	{What: "/usr/share/i18n/locales/tr_TR", For: always(reproduce), Packages: []string{"locales"}, look: file("/usr/share/i18n/locales/tr_TR")},
	{What: "mount", For: always(reproduce), Packages: []string{"mount"}, look: program("mount")},
	{What: "ip", For: always(reproduce), Packages: []string{"iproute2"}, look: program("ip")},
	{
		What: "memory for another kernel", For: when("14 GiB; with less, the kernel of another day reads what it forgot from disk", reproduce),
		Remedy: "more memory", look: memory(14 << 10),
	},
	{
		What: "memory maps", For: when("where something on the kernel of another day was killed", reproduce), Remedy: "sysctl vm.max_map_count=1048576",
		look: setting("vm.max_map_count", 1<<20, noMost),
	},
	{What: "qemu-system-x86_64", For: hosts(), Packages: []string{"qemu-system-x86"}, Remedy: orTools, look: program("qemu-system-x86_64")},
	{What: "swtpm", For: hosts(), Packages: []string{"swtpm"}, Remedy: orTools, look: program("swtpm")},
	{What: "swtpm_setup", For: hosts(), Packages: []string{"swtpm-tools"}, Remedy: orTools, look: program("swtpm_setup")},
	{What: "swtpm_localca", For: hosts(), Packages: []string{"swtpm-tools"}, Remedy: orTools, look: program("swtpm_localca")},
	{What: "OVMF", For: hosts(), Packages: []string{"ovmf"}, Remedy: orTools, look: firmware(false)},
	{What: "OVMF with Secure Boot", For: when("with Secure Boot", boot, learn), Packages: []string{"ovmf"}, look: firmware(true)},
	{What: "a network card's boot ROM", For: when("where the card keeps it", boot, learn), Packages: []string{"ipxe-qemu"}, look: file("/usr/lib/ipxe/qemu/efi-virtio.rom")},
	{
		What: "/dev/kvm", For: when("acceleration; a machine without it is many times slower", boot, learn),
		Remedy: "a machine with KVM, and usermod --append --groups kvm USER", look: kvm,
	},
	{What: "memory for a machine", For: when("as much as a machine has by default, 3072 MiB", boot, learn), Remedy: "give it less", look: memory(3072)},
	{What: "tools tree", For: when("beside an image in out; elsewhere it is named (--tools)", diff), Remedy: "hullmark build", look: beside("tools/usr/bin/fsck.erofs")},
	{What: "the image's kubeadm", For: when("without --kubeadm", "render"), Remedy: "hullmark build", look: beside("kubectl")},
	{
		What: "certificate authorities", For: also(always("collateral"), when("over HTTPS", lock, construct, reproduce, "fetch", "publish", "log", "addons", "cluster")),
		Packages: []string{"ca-certificates"}, look: certificates,
	},
	{
		What: "programs that keep logins", For: when("registries, where Docker's configuration names such programs", "fetch", "publish", "log", "addons"),
		Remedy: "install them, or correct Docker's configuration", look: logins,
	},
	{What: "TPM", For: when("ek --tpm", "node"), Remedy: "a machine with a TPM 2.0", look: file("/dev/tpmrm0")},
}

// allow is what to do where a machine allows no namespaces.
const allow = "where the machine or a container allows none, docs/ci.md says what to do"
