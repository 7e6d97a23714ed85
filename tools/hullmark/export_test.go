package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hullmark/hullmark/measurements/export"
)

func TestExport(t *testing.T) {
	document, _, values := explainFixture(t)
	for _, format := range export.Formats() {
		t.Run(string(format), func(t *testing.T) {
			out := filepath.Join(t.TempDir(), "out")
			code, names := hullmarkCLI(t, "export", document, "--format", string(format), "--out", out)
			wantExit(t, code, 0, names, out)
			if format.Several() {
				if got := strings.Fields(names); len(got) != 8 || got[0] != filepath.Join(out, "500-hullmark-pcr02.pcrlock") {
					t.Errorf("written: %v", got)
				}
				return
			}
			written, err := os.ReadFile(out)
			if err != nil {
				t.Fatal(err)
			}
			code, printed := hullmarkCLI(t, "export", document, "--format", string(format))
			wantExit(t, code, 0, printed)
			if printed != string(written) || printed == "" {
				t.Error("standard output gets other bytes than a file")
			}
		})
	}
	code, output := hullmarkCLI(t, "export", document, "--format", "json", "--registers", "4,11")
	wantExit(t, code, 0, output, values[4].String(), values[11].String())
	if strings.Contains(output, values[9].String()) {
		t.Errorf("PCR 9 was not asked for:\n%s", output)
	}
}

// A folder of components is one statement: systemd-pcrlock takes all that lies in it.
func TestExportKeepsFoldersWhole(t *testing.T) {
	document, _, _ := explainFixture(t)
	folder := filepath.Join(t.TempDir(), "pcrlock.d")
	again := []string{"export", document, "--format", "pcrlock", "--out", folder}
	for range 2 {
		code, output := hullmarkCLI(t, again...)
		wantExit(t, code, 0, output)
	}
	stray := filepath.Join(folder, "600-other.pcrlock")
	write(t, stray, []byte("{}"))
	first := filepath.Join(folder, "500-hullmark-pcr02.pcrlock")
	if err := os.Remove(first); err != nil {
		t.Fatal(err)
	}
	code, output := hullmarkCLI(t, again...)
	wantExit(t, code, exitFailed, output, "holds 600-other.pcrlock", "name an empty folder")
	if _, err := os.Stat(first); err == nil {
		t.Error("the folder was written to all the same")
	}
}

func TestExportRefuses(t *testing.T) {
	document, list, _ := explainFixture(t)
	out := filepath.Join(t.TempDir(), "out")
	for name, c := range map[string]struct {
		args []string
		code int
		want string
	}{
		"an unknown form":        {[]string{document, "--format", "cel"}, exitUsage, "json, corim, keylime, rvps, pcrlock"},
		"no document":            {[]string{"--format", "json"}, exitUsage, "name the measurement document"},
		"no folder":              {[]string{document, "--format", "pcrlock"}, exitUsage, "--out"},
		"a register of the node": {[]string{document, "--format", "json", "--registers", "8", "--out", out}, exitUsage, "choose other registers with --registers"},
		"a negative register":    {[]string{document, "--format", "json", "--registers", "-1", "--out", out}, exitUsage, "does not predict"},
		"no components":          {[]string{document, "--format", "pcrlock", "--registers", "12", "--out", out}, exitUsage, "has an event"},
		"no measurement":         {[]string{list, "--format", "json", "--out", out}, exitFailed, list},
	} {
		t.Run(name, func(t *testing.T) {
			code, output := hullmarkCLI(t, append([]string{"export"}, c.args...)...)
			wantExit(t, code, c.code, output, c.want)
			if _, err := os.Lstat(out); err == nil {
				t.Error("something was written")
			}
		})
	}
}
