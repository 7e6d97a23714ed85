package firstboot

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/hullmark/hullmark/firstboot/network"
)

// udevRun is where udev keeps what it knows of devices, and a file named queue while it has work (udevadm(8), settle).
const udevRun = "/run/udev"

// Links asks the kernel for interfaces, and udev for what it knows of cards. settled says that udev has seen all cards that there are.
func (Systemd) Links() (links []network.Link, settled bool, err error) {
	_, err = os.Stat(filepath.Join(udevRun, "queue"))
	settled = errors.Is(err, fs.ErrNotExist)
	all, err := netlink.LinkList()
	if err != nil {
		return nil, false, fmt.Errorf("list network interfaces: %w", err)
	}
	made := map[int]bool{} // whether an interface is none of a device
	for _, l := range all {
		made[l.Attrs().Index] = !ofDevice(l)
	}
	for _, l := range all {
		if l.Attrs().EncapType == "loopback" {
			continue
		}
		link, known, err := describe(l)
		if err != nil {
			return nil, false, err
		}
		// A card whose master is a card is the hardware that speeds that up, with the same address.
		master := l.Attrs().MasterIndex
		link.Card = ofDevice(l) && (master == 0 || made[master])
		settled = settled && (known || !link.Card)
		links = append(links, link)
	}
	return links, settled, nil
}

// ofDevice reports whether an Ethernet interface is a device's, and none that somebody made: systemd.network(5) calls that Kind=!*.
func ofDevice(l netlink.Link) bool {
	return l.Type() == "device" && l.Attrs().EncapType == "ether"
}

// describe returns what the kernel and udev know of an interface, and whether udev knows it at all.
func describe(l netlink.Link) (link network.Link, known bool, err error) {
	a := l.Attrs()
	link = network.Link{Name: a.Name, MAC: a.HardwareAddr.String(), Up: a.OperState == netlink.OperUp}
	if len(a.PermHWAddr) > 0 { // A member of a bond has the bond's address beside.
		link.MAC = a.PermHWAddr.String()
	}
	addresses, err := netlink.AddrList(l, netlink.FAMILY_ALL)
	if err != nil {
		return link, false, fmt.Errorf("list addresses of %s: %w", a.Name, err)
	}
	for _, address := range addresses {
		ip, ok := netip.AddrFromSlice(address.IP)
		if bits, _ := address.Mask.Size(); ok && address.IP.IsGlobalUnicast() {
			link.Addresses = append(link.Addresses, netip.PrefixFrom(ip.Unmap(), bits))
		}
	}
	f, err := os.Open(filepath.Join(udevRun, "data", "n"+strconv.Itoa(a.Index)))
	if errors.Is(err, fs.ErrNotExist) {
		return link, false, nil
	}
	if err != nil {
		return link, false, err
	}
	defer f.Close()
	known, err = readDevice(f, &link)
	return link, known, err
}

// maxDevice bounds what udev says of one device, in bytes.
const maxDevice = 64 << 10

// readDevice reads a file of udev's database, a letter and a value in each line: E is a property, I is there once udev was done with it.
func readDevice(r io.Reader, link *network.Link) (known bool, err error) {
	lines := bufio.NewScanner(io.LimitReader(r, maxDevice))
	for lines.Scan() {
		letter, value, _ := strings.Cut(lines.Text(), ":")
		name, value, _ := strings.Cut(value, "=")
		switch {
		case letter == "I":
			known = true
		case letter == "E" && name == "ID_NET_DRIVER":
			link.Driver = value
		case letter == "E" && name == "ID_PATH":
			link.Path = value
		}
	}
	return known, lines.Err()
}
