// Command slotnode is the first process of a root file system that holds the slots' helper, and nothing else of a node.
package main

import (
	"github.com/hullmark/hullmark/internal/probe/guest"
	"github.com/hullmark/hullmark/internal/probe/slotnode"
)

func main() { guest.Main(slotnode.Run) }
