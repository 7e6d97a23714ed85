// Package build makes an image: it locks and fetches packages, runs mkosi, compiles our programs, and hands the parts to package image.
package build

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/image"
	"github.com/hullmark/hullmark/image/lock"
	"github.com/hullmark/hullmark/image/slot"
	"github.com/hullmark/hullmark/image/uki"
	"github.com/hullmark/hullmark/internal/cache"
)

// Options say what to build and where. Source, LockFile, Out, ID and Store have to be set.
type Options struct {
	// Source is the folder of the checkout; it holds mkosi/, systemd/ and tools/.
	Source string
	// LockFile is the lock to build from; Out is the folder that the image goes to.
	LockFile, Out string
	// ID names the image: it is IMAGE_ID in os-release and the name of its files.
	ID string
	// Config is a definition folder of the user's own that is layered over mkosi/; empty means none.
	Config string
	// Profiles are mkosi profiles ("azure", "debug"), sorted and each once.
	Profiles []string
	// Mirror is the URL of a Debian archive to use instead of the machine's own; empty means none.
	Mirror string
	// Historical has a lock take signed archive indexes that are older than the last lock's, or past their end.
	Historical bool
	// FewerSuites has a lock go without suites that the last one has: nobody holds their indexes to a date any more.
	FewerSuites bool
	// WithoutKubernetes leaves the bundle out: an image in a minute, for work on the system itself.
	WithoutKubernetes bool
	// Store keeps packages and finished steps.
	Store cache.Store
	// Progress is told what happens; it may be nil.
	Progress *Progress
}

// Result is a finished image.
type Result struct {
	// Image is the disk's file, OUT/ID.raw, and Size its length in bytes.
	Image string
	Size  int64
	// ID and Version are IMAGE_ID and IMAGE_VERSION of its os-release.
	ID, Version string
	// RootHash is the dm-verity root hash in hex, Cmdline the kernel command line that contains it.
	RootHash, Cmdline string
	// LockFile is what it was built from, Lock what of it is this image's, Tools the tools tree that built it.
	LockFile string
	Lock     lock.Lock
	Tools    string
	// Bundle is the folder of the Kubernetes bundle, or empty.
	Bundle string
	// Profiles are the profiles that were added, and Inputs what else it was made of.
	Profiles []string
	Inputs   Inputs
}

// job is a build under way: what each step leaves for the later ones.
type job struct {
	Options
	work     string // temporary folder
	inputs   Inputs
	lock     lock.Lock
	tools    string
	tree     string // folder of mkosi's tree
	programs string // folder of our own programs
	bundle   string // the Kubernetes folder, or empty
	versions hullmark.Versions
	members  members
	epoch    int64
	kernel   []byte
	version  string // the kernel's, as uname -r prints it
	initrd   []byte
	ucode    []byte   // the archive of microcode, or empty
	root     string   // the erofs file
	rootFile *os.File // open from plan on: the layout reads it
	layout   *image.Layout
	result   Result
}

// Build makes the image that o describes. Every step whose input is as before is taken from the store.
func Build(ctx context.Context, o Options) (Result, error) {
	if err := os.MkdirAll(o.Out, 0o755); err != nil {
		return Result{}, fmt.Errorf("build: %w", err)
	}
	work, err := os.MkdirTemp(o.Out, ".work-")
	if err != nil {
		return Result{}, fmt.Errorf("build: %w", err)
	}
	defer func() { _ = os.RemoveAll(work) }()
	j := &job{Options: o, work: work}
	defer j.close()
	for _, steps := range [][]step{
		{{"sources", j.readInputs}},
		{{"lock", j.readLock}},
		{{"tools tree", j.makeTools}},
		{{"root tree", j.makeRoot}, {"programs", j.makePrograms}, {"Kubernetes bundle", j.makeKubernetes}},
		{{"initrd", j.makeInitrd}},
		{{"merge tree", j.merge}},
		{{"file system", j.makeFileSystem}},
		{{"lay out disk", j.plan}},
		{{"write image", j.write}},
	} {
		if err := sideBySide(ctx, o.Progress, steps); err != nil {
			return Result{}, fmt.Errorf("build: %w", err)
		}
	}
	again := job{Options: o}
	if _, err := again.readInputs(ctx); err != nil {
		return Result{}, fmt.Errorf("build: %w", err)
	}
	if again.inputs.Sources != j.inputs.Sources || again.inputs.Config != j.inputs.Config {
		return Result{}, fmt.Errorf("build: %w", errChanged)
	}
	return j.result, nil
}

// step is a part of a build with a name of its own.
type step struct {
	name string
	do   func(context.Context) (note string, err error)
}

// sideBySide takes steps that do not need each other, and ends with the first that fails.
func sideBySide(ctx context.Context, p *Progress, steps []step) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, s := range steps {
		group.Go(func() error { return p.Step(s.name, func() (string, error) { return s.do(ctx) }) })
	}
	return group.Wait()
}

func (j *job) readLock(ctx context.Context) (note string, err error) {
	if err := checkSandbox(ctx); err != nil {
		return "", err
	}
	whole, err := ReadLock(j.Options)
	j.lock, j.epoch = whole.For(j.Profiles...), whole.Time
	return fmt.Sprintf("%d packages", len(j.lock.Packages)), err
}

func (j *job) makeTools(ctx context.Context) (note string, err error) {
	j.tools, err = Tools(ctx, j.Options, j.lock)
	return fmt.Sprintf("%d packages", len(j.lock.Of(lock.Tools))), err
}

func (j *job) makeRoot(ctx context.Context) (note string, err error) {
	var hit bool
	j.tree, hit, err = Tree(ctx, j.Options, j.lock, j.tools)
	return cachedNote(hit, fmt.Sprintf("%d packages", len(j.lock.Of(lock.Root)))), err
}

func (j *job) makePrograms(ctx context.Context) (note string, err error) {
	var hit bool
	j.programs, hit, err = makePrograms(ctx, j.Options, j.lock, j.tools)
	return cachedNote(hit, "compiled by "+j.lock.Go), err
}

func (j *job) makeKubernetes(ctx context.Context) (note string, err error) {
	if j.WithoutKubernetes {
		return "left out", nil
	}
	if err := checkModules(j.Source, j.lock.Kubernetes); err != nil {
		return "", err
	}
	var hit bool
	if j.bundle, hit, err = Kubernetes(ctx, j.Options, j.lock); err != nil {
		return "", err
	}
	j.versions, err = bundleVersions(ctx, filepath.Join(j.bundle, kubernetesPrograms))
	return fmt.Sprintf("%v, etcd %v, %s", j.versions.Kubernetes, j.versions.Etcd, cachedNote(hit, "compiled")), err
}

// makeInitrd reads the tree that mkosi made, and takes kernel and modules out of it.
func (j *job) makeInitrd(ctx context.Context) (note string, err error) {
	j.members = members{}
	if err := j.members.addTree(j.tree); err != nil {
		return "", err
	}
	verbatim, err := verbatim(j.Options)
	if err != nil {
		return "", err
	}
	if err := j.members.update(verbatim); err != nil {
		return "", err
	}
	if j.version, err = kernelVersion(j.members); err != nil {
		return "", err
	}
	if j.kernel, err = j.members.read("usr/lib/modules/" + j.version + "/vmlinuz"); err != nil {
		return "", err
	}
	program, err := os.ReadFile(filepath.Join(j.programs, "initrd"))
	if err != nil {
		return "", err
	}
	modules, err := initrdModules(j.definitions()...)
	if err != nil {
		return "", err
	}
	archive, err := packInitrd(j.members, program, modules)
	if err != nil {
		return "", err
	}
	if j.ucode, err = packMicrocode(j.members); err != nil {
		return "", err
	}
	sum := sha256.Sum256(archive)
	dir, hit, err := j.Store.Step("initrd", cache.Key(initrdFormat, hex.EncodeToString(sum[:]), j.lock.Digest(lock.Tools)), func(dir string) error {
		return compressInitrd(ctx, j.tools, archive, dir)
	})
	if err != nil {
		return "", err
	}
	j.initrd, err = os.ReadFile(filepath.Join(dir, initrdName))
	return cachedNote(hit, fmt.Sprintf("%d kB", len(j.initrd)/1000)), err
}

// merge adds to the tree what mkosi does not make, and takes away what the disk has no use for.
func (j *job) merge(context.Context) (note string, err error) {
	j.trim()
	if err := j.addOSRelease(); err != nil {
		return "", err
	}
	folders := []string{j.programs}
	if j.bundle != "" {
		folders = append(folders, filepath.Join(j.bundle, kubernetesPrograms))
	}
	if j.inputs.Modules, err = goModules(folders...); err != nil {
		return "", err
	}
	programs := members{}
	if err := programs.addFolder(filepath.Join(j.programs, "node")); err != nil {
		return "", err
	}
	for name, f := range programs {
		j.members[nodeHome+"/"+name] = f
	}
	if j.bundle != "" {
		err = j.members.addFolder(j.bundle)
	}
	return fmt.Sprintf("%d files", len(j.members)), err
}

// trim leaves of /boot nothing, and of /var only its top-level folders and links: the state disk's /var is mounted over it, and
// services need some of them before. The kernel's configuration moves to its modules, for whoever wants to know how it was
// made. Microcode is in the kernel image; a kernel that runs takes none.
func (j *job) trim() {
	modules := "usr/lib/modules/" + j.version
	j.members.remove(modules+"/vmlinuz", false)
	if config, ok := j.members["boot/config-"+j.version]; ok {
		j.members[modules+"/config"] = config
	}
	j.members.remove("boot", true)
	for dir := range microcode {
		j.members.remove(dir, false)
	}
	maps.DeleteFunc(j.members, func(name string, _ member) bool { return strings.HasPrefix(name, "var/") && path.Dir(name) != "var" })
	j.members.ownByRoot()
}

const osReleasePath = "usr/lib/os-release"

// addOSRelease names the image in os-release(5): IMAGE_VERSION is the day of the archive indexes that it was made from, VARIANT_ID the
// profiles that were added, and hullmark.Versions what the bundle's programs are.
func (j *job) addOSRelease() error {
	text, err := j.members.read(osReleasePath)
	if err != nil {
		return err
	}
	text = fmt.Appendf(text, "IMAGE_ID=%s\nIMAGE_VERSION=%s\n", j.ID, j.imageVersion())
	if len(j.Profiles) > 0 {
		text = fmt.Appendf(text, "VARIANT_ID=%s\n", strings.Join(j.Profiles, "-"))
	}
	j.members.addBytes(osReleasePath, 0o644, append(text, j.versions.OSRelease()...))
	return nil
}

func (j *job) imageVersion() string { return time.Unix(j.epoch, 0).UTC().Format("20060102") }

// makeFileSystem packs the merged tree.
func (j *job) makeFileSystem(ctx context.Context) (note string, err error) {
	dir, hit, err := makeErofs(ctx, j.Store, j.members, j.epoch)
	if err != nil {
		return "", err
	}
	j.root = filepath.Join(dir, erofsName)
	info, err := os.Stat(j.root)
	if err != nil {
		return "", err
	}
	return cachedNote(hit, fmt.Sprintf("%d MB", info.Size()/1e6)), nil
}

// plan takes kernel, stub and os-release from where the earlier steps left them, and decides every byte of the disk.
func (j *job) plan(context.Context) (note string, err error) {
	cmdline, err := os.ReadFile(filepath.Join(j.tree, treeCmdline))
	if err != nil {
		return "", err
	}
	stub, err := os.ReadFile(filepath.Join(j.tools, uki.DebianStub))
	if err != nil {
		return "", err
	}
	osRelease, err := j.members.read(osReleasePath)
	if err != nil {
		return "", err
	}
	text, err := j.members.read(slot.SizesFile)
	if err != nil {
		return "", err
	}
	sizes, err := slot.ParseSizes(string(text))
	if err != nil {
		return "", err
	}
	root, err := os.Open(j.root)
	if err != nil {
		return "", err
	}
	j.rootFile = root
	info, err := root.Stat()
	if err != nil {
		return "", err
	}
	j.layout, err = image.Plan(image.Parts{
		Stub: stub, Kernel: j.kernel, Initrd: j.initrd, Microcode: j.ucode, OSRelease: osRelease, Uname: j.version, Cmdline: string(cmdline),
		Root: root, RootSize: info.Size(), Time: time.Unix(j.epoch, 0).UTC(), Slot: sizes,
	})
	return "", err
}

// close ends the job's use of the root file.
func (j *job) close() {
	if j.rootFile != nil {
		_ = j.rootFile.Close()
	}
}

func cachedNote(hit bool, otherwise string) string {
	if hit {
		return "cached"
	}
	return otherwise
}
