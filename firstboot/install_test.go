package firstboot

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest"
	"github.com/hullmark/hullmark/firstboot/update"
)

// installer plays the helper: each call ends as the next of ends says.
type installer struct {
	medium  bool
	ends    []any // an update.Installed or an error
	release hullmark.RootHash
	config  []byte
}

func (i *installer) OnMedium(context.Context) (bool, error) { return i.medium, nil }

func (i *installer) Install(_ context.Context, release hullmark.RootHash, config []byte, tell func(update.Installing)) (update.Installed, error) {
	i.release, i.config = release, config
	tell(update.Installing{Doing: "writing", Percent: 7})
	end := i.ends[0]
	i.ends = i.ends[1:]
	if err, ok := end.(error); ok {
		return update.Installed{}, err
	}
	return end.(update.Installed), nil
}

// A machine that has booted from a medium measures its configuration, installs, shows how that ended, and restarts.
func TestBootOfAMedium(t *testing.T) {
	lost := &hullmark.Condition{Code: "medium-lost", Title: "the medium cannot be read any more", Next: "n", Retry: true}
	for name, c := range map[string]struct {
		end  any
		code string
		says string
	}{
		"installed":        {update.Installed{Disk: "/dev/sda"}, "installed", "/dev/sda is installed"},
		"installed before": {update.Installed{Disk: "/dev/sda", Before: true}, "installed", "nothing was written"},
		"no variables":     {update.Installed{Disk: "/dev/sda", Next: "no such file"}, "installed", "could not be told to (no such file)"},
		"pulled out":       {error(lost), "medium-lost", "cannot be read any more"},
	} {
		s := newStage(t)
		i := &installer{medium: true, ends: []any{c.end}}
		var console bytes.Buffer
		s.agent.Installer, s.agent.Timing.Read, s.agent.Status.Console = i, time.Millisecond, &console
		err := s.agent.Run(t.Context())
		var condition *hullmark.Condition
		if !errors.Is(err, errReboot) || !errors.As(err, &condition) || condition.Code != c.code {
			t.Errorf("%s: %v, want a restart with %s", name, err, c.code)
		}
		if !s.machine.Has("reboot at once") {
			t.Errorf("%s: no restart without what is on the medium: %v", name, s.machine.Did())
		}
		if n := strings.Count(console.String(), c.says); n != 1 {
			t.Errorf("%s: the console says %q %d times:\n%s", name, c.says, n, console.String())
		}
		if !bytes.Equal(i.config, s.agent.configData) || i.release != s.agent.Release {
			t.Errorf("%s: installed %s with %q", name, i.release, i.config)
		}
		if r := s.registers(t); r[attest.ConfigRegister] != attest.Extended(hullmark.ConfigEvent(i.config)) {
			t.Errorf("%s: the configuration is not measured", name)
		}
	}
}

// What a person has to mend is shown until it is, without a restart.
func TestInstallIsTriedAgain(t *testing.T) {
	s := newStage(t)
	s.agent.Installer = &installer{medium: true, ends: []any{error(&hullmark.Condition{Code: "install-disk-used", Step: StepInstall, Title: "t", Next: "n"})}}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := (setup{s.agent}).run(ctx); errors.Is(err, errReboot) {
		t.Errorf("%v, want none", err)
	}
	if d := s.document(t); d.Condition == nil || d.Condition.Code != "install-disk-used" || d.Step != StepInstall {
		t.Errorf("the status is %+v", d)
	}
}

func TestBootOfADisk(t *testing.T) {
	s := newStage(t)
	s.agent.Installer = &installer{}
	if err := (setup{s.agent}).run(t.Context()); err != nil {
		t.Errorf("%v", err)
	}
}
