// Package explore goes through the states that a node, its state disk and the records of its cluster can be in, whatever
// happens to them: a power cut at any step, a message that is lost or comes again, a call of the API whose answer is lost, a
// replica or an agent that ends and begins anew, an exchange that goes on long after its node is gone, a host that exchanges or
// copies disks, manifests or etcd's files, a workload that asks for a ticket, an exchange of keys, a join service that forges
// them. In each state it looks whether a disk is lost or opened by another, a node half-joined, a ticket or token used twice,
// an old copy opened, keys taken that nobody signed, a member of etcd started that forgot; and it follows each state, left
// alone, to its end.
//
// All that decides is the real code: the agent, the disk helper, the verifier, the authorizer and the join service. It is compiled
// with edits (edits_test.go) that put fakes in the place of devices, of TLS and gRPC, and of the TPM's cryptography, and call
// package seam. Other edits (checks_test.go) take one check out of the code, and the explorer has to find out.
// docs/exploration.md tells the rest.
package explore
