// Package e2e holds the tests that take whole machines: an image is built, boots in a virtual machine, and is
// dealt with by the hullmark program as its users would. They carry the build tag vm; `make test-vm` runs them. What CI systems
// run is here, too: the Action and the template keep their rules without a tag, and run whole with the tag builds.
package e2e
