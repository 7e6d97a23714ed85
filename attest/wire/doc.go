// Package wire holds the messages of the exchange, generated from
// wire.proto, which docs/protocol.md specifies.
package wire

//go:generate buf generate
