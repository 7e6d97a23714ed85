// Package rolling tests what restarts control planes one after another: three with real members of etcd, real API servers and the real
// join service, behind a balancer, with the real engine on each, while clients read, write and watch. Machines are fakes, each with a
// TPM emulator of its own; their restarts stop and start these programs.
package rolling
