package infrastructure

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"
)

// A machine without an address of its own in its node configuration is given one by the network's router, which tells nobody. So all
// cards are asked which of these addresses is theirs (ARP, RFC 826), as a machine does that wants to know whether an address is free
// (RFC 5227 §2.1.1): a question without an address of the asker's changes nobody's tables.

type mac [6]byte

// cardOf is the hardware address of the machine of a folder, as internal/vm makes it from the folder's path.
func cardOf(folder string) (m mac) {
	digest := sha256.Sum256([]byte(folder))
	copy(m[:], []byte{0x52, 0x54, 0x00, digest[0], digest[1], digest[2]})
	return m
}

// patience is how long the cards of a network may take to answer.
const patience = 300 * time.Millisecond

// givenAddress returns the address that the router of a network gave to a card; the zero Addr where the card does not answer, such
// as one whose machine still boots.
func givenAddress(network string, card mac) (netip.Addr, error) {
	conn, err := plugIn(network)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("network %s: %w", network, err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return netip.Addr{}, err
	}
	me := mac{0x02} // locally administered (IEEE 802-2014 §8.4), of this question alone
	_, _ = rand.Read(me[1:])
	address := firstGiven
	for range slots {
		if _, err := conn.Write(question(me, address)); err != nil {
			return netip.Addr{}, fmt.Errorf("network %s: %w", network, err)
		}
		address = address.Next()
	}
	return awaitAnswer(conn, card)
}

// plugIn connects to a network as hullmark vm does: to the segment's socket, whose path is short only behind the link.
func plugIn(network string) (net.Conn, error) {
	run, err := os.Readlink(filepath.Join(network, runName))
	if err != nil {
		return nil, err
	}
	return net.Dial("unix", filepath.Join(run, "segment"))
}

// ARP's numbers (RFC 826), and where its parts lie in an Ethernet frame.
const (
	typeARP       = 0x0806
	opRequest     = 1
	opReply       = 2
	arpStart      = 14
	arpEnd        = arpStart + 28
	smallestFrame = 60
	largestFrame  = 1 << 17
)

// question is the frame, with its length before it, that asks all cards who has the address.
func question(me mac, address netip.Addr) []byte {
	var b bytes.Buffer
	b.Write([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff})
	b.Write(me[:])
	for _, v := range []uint16{typeARP, 1, 0x0800, 6<<8 | 4, opRequest} {
		_ = binary.Write(&b, binary.BigEndian, v)
	}
	b.Write(me[:])
	b.Write(make([]byte, 4+6)) // no address yet; whose card it is, is the question
	b.Write(address.AsSlice())
	b.Write(make([]byte, smallestFrame-b.Len()))
	return append(binary.BigEndian.AppendUint32(nil, uint32(b.Len())), b.Bytes()...)
}

// awaitAnswer reads frames until the card has said that an address is its own, or time is up.
func awaitAnswer(conn io.Reader, card mac) (netip.Addr, error) {
	for {
		var length [4]byte
		_, err := io.ReadFull(conn, length[:])
		n := binary.BigEndian.Uint32(length[:])
		if err == nil && n > largestFrame {
			return netip.Addr{}, errors.New("network: no frame has so many bytes")
		}
		frame := make([]byte, n)
		if err == nil {
			_, err = io.ReadFull(conn, frame)
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return netip.Addr{}, nil
		}
		if err != nil {
			return netip.Addr{}, fmt.Errorf("network: %w", err)
		}
		if address, ok := answer(frame, card); ok {
			return address, nil
		}
	}
}

// answer returns the address that the frame says is the card's own, of those that the router gives.
func answer(frame []byte, card mac) (netip.Addr, bool) {
	if len(frame) < arpEnd || binary.BigEndian.Uint16(frame[12:]) != typeARP || binary.BigEndian.Uint16(frame[arpStart+6:]) != opReply {
		return netip.Addr{}, false
	}
	if mac(frame[arpStart+8:arpStart+14]) != card {
		return netip.Addr{}, false
	}
	address := netip.AddrFrom4([4]byte(frame[arpStart+14 : arpStart+18]))
	return address, network.Contains(address) && !address.Less(firstGiven)
}
