package build

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// The archives that images are made from, by the last element of their URL.
const (
	mainArchive     = "debian"
	securityArchive = "debian-security"
)

// machineMirrors reads from which URLs this machine gets Debian's archives: the APT configuration under dir (/etc/apt) in both its forms,
// sources.list(5). The first URL of each archive counts.
func machineMirrors(dir string) (map[string]string, error) {
	files, err := filepath.Glob(filepath.Join(dir, "sources.list.d", "*"))
	if err != nil {
		return nil, err
	}
	mirrors := map[string]string{}
	for _, file := range append([]string{filepath.Join(dir, "sources.list")}, files...) {
		text, err := os.ReadFile(file)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("find Debian mirror: %w", err)
		}
		for _, u := range sourceURLs(string(text), filepath.Ext(file) == ".sources") {
			addMirror(mirrors, u)
		}
	}
	if mirrors[mainArchive] == "" {
		return nil, fmt.Errorf("find Debian mirror: no URL that ends in /%s is in %s: name one with --mirror", mainArchive, dir)
	}
	return mirrors, nil
}

// CheckMirrors tells whether the APT configuration under dir (/etc/apt) names the archive that images are made from.
func CheckMirrors(dir string) error {
	_, err := machineMirrors(dir)
	return err
}

func addMirror(mirrors map[string]string, u string) {
	if list, ok := strings.CutPrefix(u, "mirror+file:"); ok {
		text, err := os.ReadFile(list)
		if err != nil {
			return // apt itself skips a list that it cannot read
		}
		u, _, _ = strings.Cut(strings.TrimSpace(string(text)), "\n")
	}
	u = strings.TrimRight(strings.TrimSpace(u), "/")
	archive := u[strings.LastIndex(u, "/")+1:]
	if (archive == mainArchive || archive == securityArchive) && strings.HasPrefix(u, "http") && mirrors[archive] == "" {
		mirrors[archive] = u
	}
}

// sourceURLs lists the URLs of binary packages in one file, deb822 or one line per source.
func sourceURLs(text string, deb822 bool) []string {
	var urls []string
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		switch {
		case len(f) < 2:
		case deb822 && strings.EqualFold(f[0], "URIs:"):
			urls = append(urls, f[1:]...)
		case !deb822 && f[0] == "deb":
			if i := slices.IndexFunc(f, func(w string) bool { return strings.Contains(w, ":/") }); i > 0 {
				urls = append(urls, f[i])
			}
		}
	}
	return urls
}

// aptSources turns mirrors into what is taken from them.
func aptSources(mirrors map[string]string) []aptSource {
	sources := []aptSource{{archive: mainArchive, url: mirrors[mainArchive], suites: []string{release, release + "-updates"}, keyring: ArchiveKeyring}}
	if u := mirrors[securityArchive]; u != "" {
		sources = append(sources, aptSource{archive: securityArchive, url: u, suites: []string{release + "-security"}, keyring: ArchiveKeyring})
	}
	return sources
}

// mirrors returns the URL of each archive: the one that the options name, else the machine's own.
func (o Options) mirrors() (map[string]string, error) {
	if o.Mirror == "" {
		return machineMirrors("/etc/apt")
	}
	return map[string]string{mainArchive: strings.TrimRight(o.Mirror, "/")}, nil
}
