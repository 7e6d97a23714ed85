// Command etcd is the etcd server, built against the same modules as kube, and
// under the name etcdutl the program that makes its data out of a snapshot.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/etcdutl/v3/etcdutl"
	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() {
	if filepath.Base(os.Args[0]) != "etcdutl" {
		etcdmain.Main(os.Args)
		return
	}
	root := &cobra.Command{Use: "etcdutl", Short: "Make etcd's data out of a snapshot", SilenceUsage: true}
	root.AddCommand(etcdutl.NewSnapshotCommand())
	if err := root.Execute(); err != nil {
		fmt.Fprintln(os.Stderr, "etcdutl:", err)
		os.Exit(1)
	}
}
