package vm

import (
	"bufio"
	"encoding/binary"
	"io"
	"maps"
	"net"
	"sync"
)

// segment is an Ethernet switch with a port for each network card, a stream connection. A frame is preceded by its length, 4 bytes,
// big-endian, as QEMU's socket backend has it.
//
// A frame for one card reaches that card alone: the router takes whatever it hears for its own, and would answer in another machine's
// name. A card that has not said anything yet hears only what is for all.
//
// QEMU has a hub, too, but its ports that listen crash it (7.2) when a frame arrives before a machine has.
type segment struct {
	mu    sync.Mutex
	ports map[*port]struct{}
	// cards tells behind which port a card was heard last.
	cards map[mac]*port
}

// mac is the hardware address of a card.
type mac [6]byte

// toMany reports whether frames to m are for more than one card (IEEE 802.3-2018 §3.2.3.1).
func (m mac) toMany() bool { return m[0]&1 != 0 }

// port is one connection's end in the segment.
type port struct {
	conn net.Conn
	// tag, if not 0, is the VLAN of what comes from the port and goes to it, without the tag (an access port, IEEE 802.1Q).
	tag uint16
	// frames wait here to be written. When it is full, frames are lost, as they are in any network: a machine that stands still must
	// not hold up the others.
	frames chan []byte
}

// portQueue is how many frames wait for one machine.
const portQueue = 1024

// maxFrame is the longest frame that QEMU sends or takes, in bytes (NET_BUFSIZE).
const maxFrame = 4096 + 65536

// frameHeader is the length before a frame, its two addresses and its type, in bytes; maxCards bounds how many addresses are remembered.
const (
	frameHeader = 4 + 6 + 6 + 2
	maxCards    = 1024
)

// serve takes every connection into the segment until the listener is closed, as a port with that tag.
func (s *segment) serve(l net.Listener, tag uint16) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		p := &port{conn: conn, tag: tag, frames: make(chan []byte, portQueue)}
		s.mu.Lock()
		s.ports[p] = struct{}{}
		s.mu.Unlock()
		go p.write()
		go s.hold(p)
	}
}

// hold keeps a port in the segment until its connection ends, or brings what is no frame.
func (s *segment) hold(p *port) {
	in := bufio.NewReaderSize(p.conn, maxFrame)
	for {
		frame, err := readFrame(in)
		if err != nil {
			break
		}
		s.spread(p, addTag(frame, p.tag))
	}
	s.mu.Lock()
	delete(s.ports, p)
	maps.DeleteFunc(s.cards, func(_ mac, behind *port) bool { return behind == p })
	s.mu.Unlock()
	close(p.frames) // nobody sends to it any more
	p.conn.Close()
}

// readFrame returns the next frame with the length before it.
func readFrame(in io.Reader) ([]byte, error) {
	var length [4]byte
	if _, err := io.ReadFull(in, length[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(length[:])
	if n > maxFrame {
		return nil, io.ErrShortBuffer
	}
	frame := make([]byte, len(length)+int(n))
	copy(frame, length[:])
	_, err := io.ReadFull(in, frame[len(length):])
	return frame, err
}

// spread gives a frame to the port of the card that it is for, or to every port but the one that it came from if it is for all.
func (s *segment) spread(from *port, frame []byte) {
	if len(frame) < frameHeader {
		return
	}
	to, sender := mac(frame[4:10]), mac(frame[10:16])
	s.mu.Lock()
	defer s.mu.Unlock()
	if !sender.toMany() && (s.cards[sender] != nil || len(s.cards) < maxCards) {
		s.cards[sender] = from
	}
	if !to.toMany() {
		if p := s.cards[to]; p != nil && p != from {
			p.offer(frame)
		}
		return
	}
	for p := range s.ports {
		if p != from {
			p.offer(frame)
		}
	}
}

// A tag stands behind the two addresses: its type, and in the lower 12 bits of what follows the VLAN.
const (
	tagAt, tagSize = 4 + 6 + 6, 4
	tagType        = 0x8100
)

// addTag returns a frame with a tag; 0 is none.
func addTag(frame []byte, tag uint16) []byte {
	if tag == 0 || len(frame) < frameHeader {
		return frame
	}
	tagged := binary.BigEndian.AppendUint32(nil, uint32(len(frame)-4+tagSize))
	tagged = append(tagged, frame[4:tagAt]...)
	tagged = binary.BigEndian.AppendUint16(tagged, tagType)
	tagged = binary.BigEndian.AppendUint16(tagged, tag)
	return append(tagged, frame[tagAt:]...)
}

// cutTag returns a frame of that VLAN without its tag, and nothing of another.
func cutTag(frame []byte, tag uint16) []byte {
	if len(frame) < frameHeader+tagSize || binary.BigEndian.Uint16(frame[tagAt:]) != tagType || binary.BigEndian.Uint16(frame[tagAt+2:])&0xfff != tag {
		return nil
	}
	cut := binary.BigEndian.AppendUint32(nil, uint32(len(frame)-4-tagSize))
	return append(append(cut, frame[4:tagAt]...), frame[tagAt+tagSize:]...)
}

// offer queues a frame, or loses it.
func (p *port) offer(frame []byte) {
	if p.tag != 0 {
		if frame = cutTag(frame, p.tag); frame == nil {
			return
		}
	}
	select {
	case p.frames <- frame:
	default:
	}
}

// write writes what waits until the port is taken from the segment. Where the other side is gone, the reader notices.
func (p *port) write() {
	for frame := range p.frames {
		_, _ = p.conn.Write(frame)
	}
}
