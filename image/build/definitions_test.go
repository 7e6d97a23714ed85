package build

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// definitionsFrom makes a checkout with empty definitions, and a folder of somebody's, mine, beside a file that is not his. A name
// that ends in * is executable, a content that begins with -> is the target of a link.
func definitionsFrom(t *testing.T, files map[string]string) Options {
	t.Helper()
	dir := t.TempDir()
	put(t, dir, map[string]string{"source/mkosi/mkosi.conf": "", "source/systemd/system/a.service": "", "home/key": "secret", "mine/sub/a": "", "mine/run": "#!/bin/sh\n"})
	for name, content := range files {
		file := filepath.Join(dir, strings.TrimSuffix(name, "*"))
		target, isLink := strings.CutPrefix(content, "->")
		if isLink {
			mustBe(t, errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.RemoveAll(file), os.Symlink(target, file)))
			continue
		}
		put(t, dir, map[string]string{strings.TrimSuffix(name, "*"): strings.ReplaceAll(content, "HOME", filepath.Join(dir, "home"))})
		if strings.HasSuffix(name, "*") {
			mustBe(t, os.Chmod(file, 0o755))
		}
	}
	return Options{Source: filepath.Join(dir, "source"), Config: filepath.Join(dir, "mine")}
}

// Each way by which definitions would have mkosi run a program of theirs elsewhere than in its sandbox, or read a file that is
// not theirs, is refused before mkosi is started.
func TestDefinitionsRunNothing(t *testing.T) {
	const conf = "mine/mkosi.conf"
	for _, c := range []struct {
		way, file, text string
		want            string // in the error, beside the file's name
	}{
		{"a version that is a program", "mine/mkosi.version*", "#!/bin/sh\n", "chmod -x"},
		{"a password that is a program", "mine/mkosi.rootpw*", "#!/bin/sh\n", "chmod -x"},
		{"a machine ID that is a program", "mine/mkosi.machine-id*", "#!/bin/sh\n", "chmod -x"},
		{"a program of a profile", "mine/mkosi.profiles/p/mkosi.version*", "", "chmod -x"},
		{"a program beside settings", "mine/mkosi.conf.d/a/mkosi.version*", "", "chmod -x"},
		{"a program of a checkout", "source/mkosi/mkosi.version*", "", "chmod -x"},
		{"a program of a checkout's profile", "source/mkosi/mkosi.profiles/p/mkosi.rootpw*", "", "chmod -x"},
		{"a seed that is a program", "mine/mkosi.seed*", "", "docs/build.md"},
		{"credentials that are programs", "mine/mkosi.credentials/a*", "", "outside of its sandbox"},
		{"a program of a subimage", "mine/mkosi.images/a/mkosi.version*", "", "docs/build.md"},
		{"settings of one machine", "mine/mkosi.local.conf", "", "docs/build.md"},
		{"a sync script", "mine/mkosi.sync*", "", "no lock holds"},
		{"a folder of sync scripts", "mine/mkosi.sync.d/a*", "", "no lock holds"},
		{"a configure script", "mine/mkosi.configure*", "", "write them into mkosi.conf"},
		{"a clean script", "mine/mkosi.clean*", "", "take it away"},
		{"a script after all others", "mine/mkosi.postoutput*", "", "take it away"},
		{"settings of apt", "mine/mkosi.sandbox/etc/apt/apt.conf.d/a", "", "runs what they name"},
		{"settings of apt by an older name", "mine/mkosi.pkgmngr/etc/apt/apt.conf.d/a", "", "runs what they name"},
		{"packages of one's own", "mine/mkosi.packages/a.deb", "", "hullmark lock"},
		{"variables in a file", "mine/mkosi.env", "LD_PRELOAD=x\n", "write Environment="},
		{"tools of one's own", "mine/mkosi.tools/usr/bin/tar*", "", "docs/build.md"},
		{"a script that is a link", "mine/mkosi.finalize", "->../home/key", "it is a link"},
		{"a link in a folder of scripts", "mine/mkosi.finalize.d/a", "->../../home/key", "it is a link"},
		{"a tree that is a link", "mine/mkosi.extra", "->../home", "it is a link"},
		{"settings that are a link", "mine/mkosi.conf", "->../home/key", "it is a link"},
		{"a profile that is a link", "mine/mkosi.profiles/p", "->../../home", "it is a link"},
		{"settings beside settings that are a link", "mine/mkosi.conf.d/a.conf", "->../../home/key", "it is a link"},
		{"modules that are a link", "mine/modules.initrd", "->../home/key", "it is a link"},
		{"a checkout that is a link", "source/systemd", "->../home", "it is no folder"},

		{"SyncScripts=", conf, "[Content]\nSyncScripts=run\n", "SyncScripts=: it fetches what no lock holds"},
		{"ConfigureScripts=", conf, "[Config]\nConfigureScripts=run\n", "ConfigureScripts="},
		{"CleanScripts=", conf, "[Output]\nCleanScripts=run\n", "CleanScripts="},
		{"PostOutputScripts=", conf, "[Content]\nPostOutputScripts=run\n", "PostOutputScripts="},
		{"a setting of a profile", "mine/mkosi.profiles/p/mkosi.conf", "[Content]\nSyncScripts=../../run\n", "SyncScripts="},
		{"a setting of a profile that is a file", "mine/mkosi.profiles/p.conf", "[Content]\nSyncScripts=run\n", "SyncScripts="},
		{"a setting of a profile without an ending", "mine/mkosi.profiles/p", "[Content]\nSyncScripts=run\n", "SyncScripts="},
		{"a setting beside settings", "mine/mkosi.conf.d/a.conf", "[Content]\nSyncScripts=run\n", "SyncScripts="},
		{"a setting of a checkout", "source/mkosi/mkosi.conf.d/a.conf", "[Content]\nSyncScripts=run\n", "SyncScripts="},
		{"a setting that counts nowhere", conf, "[Match]\nProfiles=none\n[Content]\nSyncScripts=run\n", "SyncScripts="},
		{"a setting in another section", conf, "[Build]\nSyncScripts=run\n", "SyncScripts="},
		{"a setting behind spaces", conf, "[Content]\n  SyncScripts = run\n", "SyncScripts="},
		{"an older name", conf, "[Content]\nPrepareScript=run\n", "docs/build.md"},
		{"a name with @", conf, "[Content]\n@SyncScripts=run\n", "docs/build.md"},
		{"a setting that is not known", conf, "[Build]\nNewInMkosi99=run\n", "docs/build.md"},
		{"network", conf, "[Build]\nWithNetwork=yes\n", "WithNetwork=: scripts have no network"},
		{"network by another word", conf, "[Build]\nWithNetwork=%i\n", "WithNetwork="},
		{"SandboxTrees=", conf, "[Build]\nSandboxTrees=sub\n", "SandboxTrees="},
		{"PackageDirectories=", conf, "[Content]\nPackageDirectories=sub\n", "PackageDirectories="},
		{"VolatilePackageDirectories=", conf, "[Content]\nVolatilePackageDirectories=sub\n", "VolatilePackageDirectories="},
		{"EnvironmentFiles=", conf, "[Build]\nEnvironmentFiles=sub/a\n", "EnvironmentFiles="},
		{"ToolsTree=", conf, "[Build]\nToolsTree=sub\n", "ToolsTree="},
		{"ExtraSearchPaths=", conf, "[Build]\nExtraSearchPaths=sub\n", "ExtraSearchPaths="},
		{"CacheDirectory=", conf, "[Build]\nCacheDirectory=HOME\n", "CacheDirectory="},
		{"WorkspaceDirectory=", conf, "[Build]\nWorkspaceDirectory=HOME\n", "WorkspaceDirectory="},
		{"OutputDirectory=", conf, "[Output]\nOutputDirectory=HOME\n", "OutputDirectory="},
		{"Credentials=", conf, "[Runtime]\nCredentials=run\n", "Credentials="},
		{"Credentials= by an older section", conf, "[Host]\nCredentials=run\n", "Credentials="},
		{"SecureBootKey=", conf, "[Validation]\nSecureBootKey=HOME/key\n", "SecureBootKey="},
		{"ProxyClientKey=", conf, "[Build]\nProxyClientKey=HOME/key\n", "ProxyClientKey="},
		{"Mirror=", conf, "[Distribution]\nMirror=http://127.0.0.1/\n", "Mirror="},
		{"a library for the loader", conf, "[Build]\nEnvironment=A=b LD_PRELOAD=x.so\n", "LD_PRELOAD tells programs"},
		{"in quotes", conf, "[Build]\nEnvironment=\n  A=b\n  'LD'_\"PRELOAD\"=x.so\n", "LD_PRELOAD tells programs"},
		{"with a backslash", conf, "[Build]\nEnvironment=L\\D_PRELOAD=x.so\n", "write the value itself"},
		{"by a specifier", conf, "[Output]\nImageId=LD\n[Build]\nEnvironment=%i_PRELOAD=x.so\n", "write the value itself"},
		{"modules for Python", conf, "[Build]\nEnvironment=PYTHONPATH=x\n", "PYTHONPATH tells programs"},

		{"a tree from elsewhere", conf, "[Content]\nExtraTrees=sub,HOME:/opt\n", "outside of the folder"},
		{"by a way up", conf, "[Content]\nExtraTrees=../home\n", "outside of the folder"},
		{"on a line of its own", conf, "[Content]\nExtraTrees=\n   sub\n   ../home\n", "outside of the folder"},
		{"by a variable", conf, "[Content]\nExtraTrees=${HOME}\n", "write the path itself"},
		{"by a specifier of mkosi", conf, "[Content]\nExtraTrees=%D/../../home\n", "write the path itself"},
		{"by a tilde", conf, "[Content]\nExtraTrees=~/key:/key\n", "write the path itself"},
		{"that is not there yet", conf, "[Content]\nExtraTrees=later\n", "it is not there"},
		{"to elsewhere", conf, "[Content]\nExtraTrees=sub:/../../home\n", "a place with .."},
		{"a skeleton from elsewhere", conf, "[Content]\nSkeletonTrees=../home\n", "outside of the folder"},
		{"a base from elsewhere", conf, "[Content]\nBaseTrees=../home\n", "outside of the folder"},
		{"sources from elsewhere", conf, "[Build]\nBuildSources=../home:x\n", "outside of the folder"},
		{"a script from elsewhere", conf, "[Content]\nFinalizeScripts=../home/key\n", "outside of the folder"},
		{"definitions from elsewhere", conf, "[Include]\nInclude=../home\n", "outside of the folder"},
		{"definitions that mkosi has", conf, "[Include]\nInclude=mkosi-vm\n", "it is not there"},
		{"a condition that looks elsewhere", conf, "[Match]\nPathExists=!HOME/key\n", "name one in the folder"},

		{"a line that is none to others", conf, "[Content]\nHostname=a\rSyncScripts=run\n", "line 2: a control character"},
		{"a page break", conf, "[Content]\nHostname=a\fSyncScripts=run\n", "a control character"},
		{"a line separator", conf, "[Content]\nHostname=a\u2028SyncScripts=run\n", "a control character"},
		{"bytes that are no text", conf, "[Content]\nHostname=\xff\n", "no text in UTF-8"},
		{"all of it indented", conf, "  [Content]\n  Hostname=a\n  SyncScripts=run\n", "begin it in the first column"},
		{"a section that goes on with a value", conf, "[Content]\nHostname=a\n  [Build]\n", "begin it in the first column"},
		{"a section behind a condition", conf, "[Match]\nProfiles=a\n  [Content]\n  SyncScripts=run\n", "begin it in the first column"},
		{"a section that mkosi does not read", conf, "[Other]\nHostname=a\n", "no section that mkosi reads"},
		{"a setting of no section", conf, "SyncScripts=run\n", "want a section"},
	} {
		t.Run(c.way, func(t *testing.T) {
			got, named := refusal(t, map[string]string{c.file: c.text}), strings.TrimSuffix(c.file, "*")
			for strings.Count(named, "/") > 1 && !strings.Contains(got, named+":") {
				named = filepath.Dir(named)
			}
			if !strings.Contains(got, named+":") || !strings.Contains(got, c.want) {
				t.Errorf("%q; want %s and %q", got, named, c.want)
			}
		})
	}
	for way, c := range map[string]struct {
		files map[string]string
		want  string
	}{
		"a tree behind a link":        {map[string]string{conf: "[Content]\nExtraTrees=sub/out/../home:/home\n", "mine/sub/out": "->../../home"}, "outside of the folder"},
		"a tree that is a disk":       {map[string]string{conf: "[Content]\nExtraTrees=disk.raw\n", "mine/disk.raw": ""}, "mkosi mounts a disk"},
		"an included file":            {map[string]string{conf: "[Include]\nInclude=more\n", "mine/more": "[Content]\nSyncScripts=run\n"}, "mine/more: SyncScripts="},
		"an included folder":          {map[string]string{conf: "[Include]\nInclude=sub\n", "mine/sub/mkosi.sync*": ""}, "mine/sub/mkosi.sync: "},
		"what includes others":        {map[string]string{conf: "[Include]\nInclude=more\n", "mine/more": "[Include]\nInclude=sub\n", "mine/sub/mkosi.sync*": ""}, "mine/sub/mkosi.sync: "},
		"a folder that nobody hashes": {map[string]string{conf: "[Include]\nInclude=.git\n", "mine/.git/mkosi.sync*": ""}, "mine/.git/mkosi.sync: "},
		"an included link":            {map[string]string{conf: "[Include]\nInclude=in\n", "mine/in": "->sub", "mine/sub/mkosi.sync*": ""}, "mine/sub/mkosi.sync: "},
		"a file that two include, with the paths of each": {map[string]string{
			conf: "[Include]\nInclude=sub\n  more\n", "mine/more": "[Content]\nExtraTrees=inside\n", "mine/inside/x": "", "mine/sub/mkosi.conf": "[Include]\nInclude=../more\n", "mine/sub/inside": "->../../home",
		}, "mine/more: ExtraTrees=: inside is outside"},
	} {
		t.Run(way, func(t *testing.T) {
			if got := refusal(t, c.files); !strings.Contains(got, c.want) {
				t.Errorf("%q; want %q", got, c.want)
			}
		})
	}
}

// refusal is what is said of definitions, or nothing.
func refusal(t *testing.T, files map[string]string) string {
	t.Helper()
	if err := CheckDefinitions(definitionsFrom(t, files)); err != nil {
		return err.Error()
	}
	return ""
}

func TestLegalDefinitions(t *testing.T) {
	for what, files := range map[string]map[string]string{
		"none": nil,
		"packages, words and conditions": {
			"mine/mkosi.conf":            "# A comment.\n[Match]\nProfiles=!debug\nPathExists=sub\n\n[Content]\nPackages=htop # and more\n        socat\n\nRemoveFiles=/usr/share/*\nKernelCommandLine=a=b c\nHostname=\n[Build]\nWithNetwork=no\nEnvironment=CFLAGS=\"-O2 -DA=1\" VERSION=1\n",
			"mine/mkosi.conf.d/a.conf":   "[Distribution]\nRepositories=non-free-firmware\n",
			"mine/mkosi.conf.d/README":   "No settings.\n",
			"mine/mkosi.profiles/p.conf": "[Content]\nExtraTrees=sub:/opt/p\n",
			"mine/README":                "Mine.\n", "mine/modules.initrd": "virtio_pmem\n",
		},
		"trees, sources and scripts": {
			"mine/mkosi.conf":          "[Content]\nExtraTrees=sub:/opt,./sub/../sub\nFinalizeScripts=\n\trun\n[Build]\nBuildSources=sub:sub\nBuildSourcesEphemeral=yes\n",
			"mine/mkosi.build.chroot*": "", "mine/mkosi.finalize.d/1*": "", "mine/mkosi.postinst*": "", "mine/mkosi.prepare*": "",
			"mine/mkosi.extra/etc/a": "->/home/of/the/image", "mine/mkosi.extra/mkosi.version*": "", "mine/mkosi.skeleton/a": "",
			"mine/mkosi.version": "1\n", "mine/sub/out": "->/home/of/others", "mine/sub/mkosi.sync*": "of a program's sources",
			"source/mkosi/mkosi.finalize*": "", "source/mkosi/mkosi.conf": "[Content]\nExtraTrees=../systemd/system:/usr/lib/systemd/system\n",
		},
		"further definitions": {
			"mine/mkosi.conf":     "[Include]\nInclude=sub\n  more\n  mkosi.conf\n",
			"mine/sub/mkosi.conf": "[Content]\nPackages=htop\n", "mine/more": "[Content]\nExtraTrees=sub\n",
		},
	} {
		if got := refusal(t, files); got != "" {
			t.Errorf("%s: %s", what, got)
		}
	}
	mine := t.TempDir()
	put(t, mine, map[string]string{"mkosi.conf": ""})
	link := filepath.Join(t.TempDir(), "config")
	mustBe(t, os.Symlink(mine, link))
	for _, config := range []string{"", "../../docs/examples/kernel-module", link} {
		if err := CheckDefinitions(Options{Source: "../..", Config: config}); err != nil {
			t.Errorf("%q over ours: %v", config, err)
		}
	}
}

// The page says what definitions may have, and nothing else.
func TestDefinitionsAreDocumented(t *testing.T) {
	page := readText(t, "../../docs/build.md")
	_, list, _ := strings.Cut(page, "\nThe settings that definitions may have: ")
	list, _, _ = strings.Cut(list, "\n")
	var said, want []string
	for _, word := range strings.Split(list, "`") {
		if name, ok := strings.CutSuffix(word, "="); ok {
			said = append(said, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(known)) {
		if known[name].never == "" {
			want = append(want, name)
		}
	}
	slices.Sort(said)
	if !slices.Equal(said, want) {
		t.Errorf("docs/build.md lists %v, want %v", said, want)
	}
}
