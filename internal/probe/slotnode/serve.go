package slotnode

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hullmark/hullmark/firstboot/update"
)

// Source is where the helper fetches releases from.
const Source = "http://127.0.0.1"

// serveHelper starts the helper for each connection to its socket, as systemd does.
func serveHelper() error {
	if err := os.MkdirAll(filepath.Dir(update.Socket), 0o755); err != nil {
		return err
	}
	l, err := net.Listen("unix", update.Socket)
	if err != nil {
		return err
	}
	go func() {
		for {
			conn, err := l.Accept()
			if err == nil {
				err = help(conn.(*net.UnixConn))
			}
			if err != nil {
				fmt.Println("slots:", err)
			}
		}
	}()
	return nil
}

func help(conn *net.UnixConn) error {
	socket, err := conn.File()
	if err != nil {
		return err
	}
	helper := exec.Command("/" + Helper)
	helper.Stdin, helper.Stdout, helper.Stderr = socket, socket, os.Stdout
	return errors.Join(helper.Start(), socket.Close(), conn.Close(), helper.Wait())
}

// publish serves raw disks as a folder that a web server shows.
func publish(host io.ReaderAt, disks []Disk) error {
	if err := raiseLoopback(); err != nil {
		return err
	}
	mux := http.NewServeMux()
	for _, d := range disks {
		mux.HandleFunc(fmt.Sprintf("/sha256/%s.raw", d.Digest), func(w http.ResponseWriter, r *http.Request) {
			http.ServeContent(w, r, "", time.Time{}, io.NewSectionReader(host, d.Offset, d.Size))
		})
	}
	l, err := net.Listen("tcp", "127.0.0.1:80")
	if err != nil {
		return err
	}
	go func() { fmt.Println("publish:", http.Serve(l, mux)) }()
	return nil
}

// raiseLoopback lets the machine speak to itself.
func raiseLoopback() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	r, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	r.SetUint16(unix.IFF_UP)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, r)
}
