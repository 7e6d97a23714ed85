package main

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/joinservice/keys"
	"github.com/hullmark/hullmark/joinservice/keys/keeper"
)

// keysetPause lies between two attempts at a keyset that only a change by somebody can open.
const keysetPause = 5 * time.Minute

// keyset is the cluster's master keys once their keeper has opened them. Until
// then it has no generation, and tells every machine what it waits for.
type keyset struct {
	opened  atomic.Pointer[keys.Keyset]
	waiting atomic.Pointer[hullmark.Condition]
}

func newKeyset() *keyset {
	k := &keyset{}
	k.wait(keys.Unreachable("nothing yet: it is being asked"))
	return k
}

// Current returns the generation for new disks, 0 while there is none.
func (k *keyset) Current() uint32 {
	if opened := k.opened.Load(); opened != nil {
		return opened.Current()
	}
	return 0
}

// DiskKey derives a disk's key, or returns the condition that is waited on.
func (k *keyset) DiskKey(generation uint32, first hullmark.ClusterRoot, owner hullmark.EKID, disk hullmark.UUID) (hullmark.Secret, error) {
	if opened := k.opened.Load(); opened != nil {
		return opened.DiskKey(generation, first, owner, disk)
	}
	return hullmark.Secret{}, k.waiting.Load()
}

// Decrypt returns the secret in a pool's file, or the condition that is waited on.
func (k *keyset) Decrypt(first hullmark.ClusterRoot, text hullmark.EncryptedText) (hullmark.Secret, error) {
	if opened := k.opened.Load(); opened != nil {
		return opened.Decrypt(first, text)
	}
	return hullmark.Secret{}, k.waiting.Load()
}

// wait makes a cause what machines are told. For them it always passes: they
// try again whatever has to happen here first.
func (k *keyset) wait(cause *hullmark.Condition) {
	told := *cause
	told.Step, told.Retry = "ATTEST", true
	k.waiting.Store(&told)
}

// openKeyset opens the keyset that lies on the disk, with its keeper if it has
// one, and tries again until that works: a node that came back before its
// keeper did must not stay useless.
func (a *app) openKeyset(ctx context.Context) error {
	access := keys.Access{Open: a.credentials.keeper.Open, Report: func(cause *hullmark.Condition, pause time.Duration) {
		a.keyset.wait(cause)
		a.log.Warn("the keyset is not open yet", "code", cause.Code, "error", cause.Error(), "again in", pause.String())
	}}
	for {
		opened, err := access.Load(ctx, a.credentials.keyset, a.policy.Policy().First(a.credentials.id()))
		if err == nil {
			a.keyset.opened.Store(&opened)
			clear(a.credentials.keyset)
			a.log.Info("the keyset is open", "generation", opened.Current())
			return nil
		}
		var cause *hullmark.Condition
		if !errors.As(err, &cause) {
			return err // The file itself is wrong; no keeper mends that.
		}
		a.keyset.wait(cause)
		a.log.Error("the keyset cannot be opened", "code", cause.Code, "error", cause.Error(), "again in", keysetPause.String())
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(keysetPause):
		}
	}
}

// readKeeper reads what the keeper is shown.
func (c *credentials) readKeeper(f folder) (err error) {
	c.keeper, err = keeper.ReadCredentials(string(f))
	return err
}
