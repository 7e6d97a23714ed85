// Package browsertest looks at pages in a real browser: whether they show what they should, fit on screens of all widths, can be read by
// day and by night, and ask nobody for anything. Tests that use it carry the build tag browser; `make test-browser` runs them.
package browsertest
