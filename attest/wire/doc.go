// Package wire holds the messages of the release exchange, generated from
// wire.proto, which docs/protocol.md specifies.
package wire

//go:generate buf generate
