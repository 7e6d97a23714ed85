// Command initrd is /init of Hullmark's initial RAM file system.
package main

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hullmark/hullmark/firstboot/initrd"
)

// readingTime lets a person or a console log catch the message before the machine restarts.
const readingTime = 10 * time.Second

func main() {
	err := initrd.Run()
	fmt.Fprintf(os.Stderr, "\nHULLMARK: this machine cannot boot its image\n  step:  initrd\n  cause: %v\n"+
		"  next:  write the image to the disk again, and check it with: hullmark verify\n  The machine restarts in %v.\n", err, readingTime)
	if os.Getpid() != 1 {
		os.Exit(1)
	}
	time.Sleep(readingTime)
	unix.Sync()
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART)
	select {} // PID 1 must not end: that would be a kernel panic that hides the message
}
