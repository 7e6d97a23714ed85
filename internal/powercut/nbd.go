package powercut

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
)

// Device is what can be served.
type Device interface {
	io.ReaderAt
	// WriteAt keeps b.
	io.WriterAt
	Flush() error
	Size() int64
}

// The network block device's protocol, as far as QEMU needs it
// (https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md). Numbers are big-endian.
const (
	nbdMagic         = 0x4e42444d41474943 // "NBDMAGIC"
	nbdOption        = 0x49484156454f5054 // "IHAVEOPT"
	nbdOptionReply   = 0x3e889045565a9
	nbdRequest       = 0x25609513
	nbdReply         = 0x67446698
	nbdFixedNewstyle = 1 // A flag of the server's and of the client's.

	nbdOptionAbort = 2
	nbdOptionGo    = 7

	nbdAck         = 1
	nbdInfo        = 3
	nbdUnsupported = 1<<31 + 1

	nbdInfoExport    = 0
	nbdInfoBlockSize = 3

	nbdHasFlags  = 1 << 0
	nbdSendFlush = 1 << 2

	nbdRead       = 0
	nbdWrite      = 1
	nbdDisconnect = 2
	nbdFlush      = 3

	nbdIOError = 5
	nbdInvalid = 22
)

// maxTransfer bounds a request, and maxOption an option's data, in bytes.
const (
	maxTransfer = 32 << 20
	maxOption   = 8 << 10
)

// Serve serves the device to whoever connects, one request after the other on each connection, until the listener is closed.
func Serve(l net.Listener, d Device) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			s := session{conn: conn, device: d}
			if err := s.negotiate(); err != nil {
				return
			}
			if errors.Is(s.transmit(), ErrCut) {
				// Who is asked by a disk without power gets no answer, not even that it has gone.
				_, _ = io.Copy(io.Discard, conn)
			}
		}()
	}
}

// session is one connection.
type session struct {
	conn   net.Conn
	device Device
}

func (s session) send(values ...any) error {
	var message []byte
	for _, v := range values {
		var err error
		if message, err = binary.Append(message, binary.BigEndian, v); err != nil {
			return err
		}
	}
	_, err := s.conn.Write(message)
	return err
}

func (s session) receive(v any) error { return binary.Read(s.conn, binary.BigEndian, v) }

// negotiate ends when the client begins to use the export.
func (s session) negotiate() error {
	if err := s.send(uint64(nbdMagic), uint64(nbdOption), uint16(nbdFixedNewstyle)); err != nil {
		return err
	}
	var clientFlags uint32
	if err := s.receive(&clientFlags); err != nil {
		return err
	}
	for {
		var o struct {
			Magic          uint64
			Option, Length uint32
		}
		if err := s.receive(&o); err != nil {
			return err
		}
		if o.Magic != nbdOption || o.Length > maxOption {
			return fmt.Errorf("option %d of %d bytes with magic %x", o.Option, o.Length, o.Magic)
		}
		if _, err := io.CopyN(io.Discard, s.conn, int64(o.Length)); err != nil {
			return err
		}
		switch o.Option {
		case nbdOptionGo:
			return s.describe()
		case nbdOptionAbort:
			return errors.Join(s.reply(o.Option, nbdAck), io.EOF)
		}
		if err := s.reply(o.Option, nbdUnsupported); err != nil {
			return err
		}
	}
}

func (s session) reply(option, kind uint32, values ...any) error {
	length := 0
	for _, v := range values {
		length += binary.Size(v)
	}
	return s.send(append([]any{uint64(nbdOptionReply), option, kind, uint32(length)}, values...)...)
}

// describe answers the option that ends the negotiation. Whatever export was asked for, there is the one.
func (s session) describe() error {
	return errors.Join(
		s.reply(nbdOptionGo, nbdInfo, uint16(nbdInfoExport), uint64(s.device.Size()), uint16(nbdHasFlags|nbdSendFlush)),
		s.reply(nbdOptionGo, nbdInfo, uint16(nbdInfoBlockSize), uint32(Sector), uint32(8*Sector), uint32(maxTransfer)),
		s.reply(nbdOptionGo, nbdAck))
}

// request is the head of one; a write's data follow.
type request struct {
	Magic       uint32
	Flags, Type uint16
	Cookie      uint64
	Offset      int64
	Length      uint32
}

// transmit answers requests until the client disconnects or the power is cut.
func (s session) transmit() error {
	for {
		var r request
		if err := s.receive(&r); err != nil {
			return err
		}
		if r.Magic != nbdRequest || r.Length > maxTransfer || r.Type == nbdDisconnect {
			return fmt.Errorf("request %d of %d bytes with magic %x", r.Type, r.Length, r.Magic)
		}
		var data []byte
		if r.Type == nbdRead || r.Type == nbdWrite {
			data = make([]byte, r.Length)
		}
		if r.Type == nbdWrite {
			if _, err := io.ReadFull(s.conn, data); err != nil {
				return err
			}
		}
		code, err := s.do(r, data)
		if err != nil {
			return err
		}
		if r.Type != nbdRead || code != 0 {
			data = nil
		}
		if err := s.send(uint32(nbdReply), code, r.Cookie, data); err != nil {
			return err
		}
	}
}

// do returns the error code to answer with, or an error if there is to be no answer.
func (s session) do(r request, data []byte) (code uint32, err error) {
	switch r.Type {
	case nbdRead:
		_, err = s.device.ReadAt(data, r.Offset)
	case nbdWrite:
		_, err = s.device.WriteAt(data, r.Offset)
	case nbdFlush:
		err = s.device.Flush()
	default:
		return nbdInvalid, nil
	}
	if errors.Is(err, ErrCut) {
		return 0, err
	}
	if err != nil {
		return nbdIOError, nil
	}
	return 0, nil
}
