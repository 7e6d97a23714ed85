// Package infrastructure is Hullmark's QEMU infrastructure provider for Cluster API: it runs each cluster's network and machines on
// the controller's own host, and says what an infrastructure has to say of a machine, its identity above all. It is for development,
// CI and tests, not for production.
//
// The programs that it starts outlive it. Whoever comes next finds them by the locks that they hold on their folders, never by a pid
// that was written down, and finds everything else in these folders:
//
//	FOLDER/lock                            held by the controller that works here
//	FOLDER/NAMESPACE/CLUSTER/network       of hullmark vm network
//	FOLDER/NAMESPACE/CLUSTER/forwards.json the host's ports
//	FOLDER/NAMESPACE/CLUSTER/slot-00 …     a machine each: owner, node.json, machine.json, and vm, which is hullmark vm's
//
// A machine's network card has its hardware address from its folder's path. The router gives each card an address, 16 at most, and
// never takes one back; that is why machines have slots and not folders of their own names.
package infrastructure
