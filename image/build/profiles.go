package build

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// profilesFolder holds, in a definition folder, a profile a folder (mkosi(1), "Profiles").
const profilesFolder = "mkosi.profiles"

// platformFile is in the tree of each profile that is for one platform. It tells a node where its configuration is found
// (firstboot/config).
const platformFile = "mkosi.extra/usr/lib/hullmark/config-source"

// Profiles lists the profiles that the definitions in o have, ours and the user's, sorted.
func Profiles(o Options) ([]string, error) {
	var known []string
	for _, folder := range o.folders() {
		entries, err := os.ReadDir(filepath.Join(folder, profilesFolder))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("list profiles: %w", err)
		}
		for _, e := range entries {
			known = append(known, strings.TrimSuffix(e.Name(), ".conf"))
		}
	}
	slices.Sort(known)
	return slices.Compact(known), nil
}

// CheckProfiles refuses profiles that the definitions in o do not have, and two that are for a platform each.
func CheckProfiles(o Options) error {
	known, err := Profiles(o)
	if err != nil {
		return err
	}
	var platforms []string
	for _, p := range o.Profiles {
		if !slices.Contains(known, p) {
			return fmt.Errorf("profile %q: there is %s", p, strings.Join(known, ", "))
		}
		if slices.ContainsFunc(o.folders(), func(folder string) bool {
			_, err := os.Stat(filepath.Join(folder, profilesFolder, p, platformFile))
			return err == nil
		}) {
			platforms = append(platforms, p)
		}
	}
	if len(platforms) > 1 {
		return fmt.Errorf("profiles %s: each is for a platform of its own: build an image for each", strings.Join(platforms, ", "))
	}
	return nil
}

// folders are the definition folders: ours, and the user's if there is one.
func (o Options) folders() []string {
	if o.Config == "" {
		return []string{filepath.Join(o.Source, "mkosi")}
	}
	return []string{filepath.Join(o.Source, "mkosi"), o.Config}
}

// definitions are the definition folders, and in each those of o's profiles.
func (o Options) definitions() []string {
	var all []string
	for _, folder := range o.folders() {
		all = append(all, folder)
		for _, p := range o.Profiles {
			all = append(all, filepath.Join(folder, profilesFolder, p))
		}
	}
	return all
}
