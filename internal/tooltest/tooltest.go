// Package tooltest runs the programs whose word tests take: those that people would ask too.
package tooltest

import (
	"os/exec"
	"testing"
)

// Path returns where the program is that a package of Debian brings. Without it the test fails, and says how to install it.
func Path(t testing.TB, pkg, name string) string {
	t.Helper()
	for _, dir := range []string{"", "/usr/sbin/"} { // An ordinary user's PATH has no sbin.
		if program, err := exec.LookPath(dir + name); err == nil {
			return program
		}
	}
	t.Fatalf("%s is missing: apt-get install %s", name, pkg)
	return ""
}

// Run runs the program, which has to succeed, and returns all that it printed.
func Run(t testing.TB, pkg, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(Path(t, pkg, name), args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
	return string(out)
}
