package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hullmark/hullmark/firstboot"
	"github.com/hullmark/hullmark/firstboot/network"
)

const (
	// consoles lists the kernel's consoles by name (Linux, Documentation/ABI/testing/sysfs-tty).
	consoles = "/sys/class/tty/console/active"
	// screen is the one that is a screen.
	screen = "tty0"
	// redraw lies between two times that the screen is drawn, if nothing happens.
	redraw = 10 * time.Second
)

// showStatus has the status shown on all consoles: on a screen as a page, elsewhere line by line.
func showStatus(ctx context.Context, status *firstboot.Status, image string) {
	names, err := os.ReadFile(consoles)
	if err != nil {
		names = []byte("console")
	}
	var lines []io.Writer
	for name := range strings.FieldsSeq(string(names)) {
		f, err := os.OpenFile("/dev/"+name, os.O_WRONLY|unix.O_NOCTTY, 0)
		switch {
		case err != nil:
			fmt.Fprintln(os.Stderr, "console:", err)
		case name == screen:
			status.Screen = &firstboot.Screen{W: f, Size: func() (int, int) { return size(f) }, Image: image, Links: links, Hostname: os.Hostname}
		default:
			lines = append(lines, f)
		}
	}
	if status.Screen != nil {
		go status.KeepDrawn(ctx, redraw)
	}
	status.Console = io.MultiWriter(lines...)
}

// size is that of a terminal, in characters; of one that does not tell, the least that there is.
func size(f *os.File) (columns, rows int) {
	w, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil || w.Col == 0 || w.Row == 0 {
		return 80, 25
	}
	return int(w.Col), int(w.Row)
}

// links are the network interfaces; none if that cannot be told.
func links() []network.Link {
	all, _, err := firstboot.Systemd{}.Links()
	if err != nil {
		fmt.Fprintln(os.Stderr, "network interfaces:", err)
	}
	return all
}
