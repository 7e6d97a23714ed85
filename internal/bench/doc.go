// Package bench compares Hullmark's speed with that of a peer, both in one run on one machine, so that the ratio means something
// although the machine does not; what has no peer it holds to its target. It decides nothing: a missed target is a line of its
// report and no failed test.
package bench
