// Command initrd is /init of Hullmark's initial RAM file system.
package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hullmark/hullmark/firstboot/initrd"
)

// readingTime lets a person or a console log catch the message before the machine restarts.
const readingTime = 10 * time.Second

func main() {
	err := initrd.Run()
	say(fmt.Sprintf("HULLMARK: this machine cannot boot its image\n  step:  initrd\n  cause: %v\n"+
		"  next:  write the image to the disk again, and check it with: hullmark verify\n  The machine restarts in %v.\n", err, readingTime))
	if os.Getpid() != 1 {
		os.Exit(1)
	}
	time.Sleep(readingTime)
	unix.Sync()
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART)
	select {} // PID 1 must not end: that would be a kernel panic that hides the message
}

// record is how much of a line the kernel takes at once, in bytes (LOG_LINE_MAX).
const record = 900

// say tells something on every console of the machine, as the kernel's own critical messages; standard error is only one of them.
func say(text string) {
	log, err := os.OpenFile("/dev/kmsg", os.O_WRONLY, 0)
	if err != nil {
		fmt.Fprint(os.Stderr, text)
		return
	}
	for line := range strings.SplitSeq(text, "\n") {
		for part := range slices.Chunk([]byte(line), record) {
			if _, err := fmt.Fprintf(log, "<2>%s\n", part); err != nil {
				fmt.Fprintf(os.Stderr, "%s\n", part)
			}
		}
	}
}
