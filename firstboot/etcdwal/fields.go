package etcdwal

import (
	"google.golang.org/protobuf/encoding/protowire"
)

// maxField is the highest number of a field that is looked at.
const maxField = 3

// fields reads the numbers of a message in Protocol Buffers, by field, and the content of its field bytes; others are skipped.
// In etcd's messages an absent number is 0.
func fields(message []byte, bytes protowire.Number) (numbers [maxField + 1]uint64, content []byte, err error) {
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return numbers, nil, protowire.ParseError(n)
		}
		message = message[n:]
		switch {
		case kind == protowire.VarintType && number <= maxField:
			numbers[number], n = protowire.ConsumeVarint(message)
		case kind == protowire.BytesType && number == bytes:
			content, n = protowire.ConsumeBytes(message)
		default:
			n = protowire.ConsumeFieldValue(number, kind, message)
		}
		if n < 0 {
			return numbers, nil, protowire.ParseError(n)
		}
		message = message[n:]
	}
	return numbers, content, nil
}
