package update

import (
	"context"
	"errors"
	"fmt"

	"github.com/hullmark/hullmark/image/slot"
	"github.com/hullmark/hullmark/image/verity"
)

// Config returns the node configuration that the disk holds; it is empty if the disk holds none.
func (d *Disk) Config() ([]byte, error) {
	if d.config == nil {
		return nil, errors.New("the disk has no place for a node configuration")
	}
	return slot.ReadConfig(d.dev, *d.config)
}

// onMedium does what a medium is asked for.
func (h Helper) onMedium(ctx context.Context, q Request, send func(Answer) error) error {
	switch q.Op {
	case OpLook:
		return send(Answer{Slots: &Slots{Medium: true}})
	case OpConfig:
		config, err := h.Medium.Config()
		if err != nil {
			return err
		}
		return send(Answer{Config: config})
	case OpInstall:
		return h.install(ctx, q, send)
	}
	return fmt.Errorf("operation %.20q is unknown to an installation medium", q.Op)
}

func (h Helper) install(ctx context.Context, q Request, send func(Answer) error) error {
	done, err := h.Medium.Install(ctx, h.Disks, verity.Root(q.RootHash), q.Config, func(doing string, percent int) {
		_ = send(Answer{Installing: &Installing{Doing: doing, Percent: percent}}) // Who asked may have gone: the context ends then.
	})
	if err != nil {
		return err
	}
	answer := Installed{Disk: done.Disk.String(), Before: done.Before}
	if err := h.Variables.StartNext(done.ESP); err != nil {
		answer.Next = err.Error()
	}
	return send(Answer{Installed: &answer})
}
