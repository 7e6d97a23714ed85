package firstboot

import (
	"context"
	"fmt"
	"syscall"
	"time"

	"github.com/google/go-tpm/tpm2/transport"

	"github.com/hullmark/hullmark/kubeadm/run"
)

// account is where the time of an exchange goes until Kubernetes starts. What is waited for others is not the agent's own.
type account struct {
	// began is when the exchange did, less what it took the agent to be ready for it once the network was up.
	began time.Time
	// tpm, disk, network and programs are what was waited for the TPM's commands, the disk helper, other machines, and units and kubeadm.
	tpm, disk, network, programs time.Duration
}

// wait adds the time since a moment to what was waited for somebody.
func wait(spent *time.Duration, since time.Time) { *spent += time.Since(since) }

// String says all parts; together they are the time since it began.
func (a *account) String() string {
	own := time.Since(a.began) - a.tpm - a.disk - a.network - a.programs
	short := func(d time.Duration) time.Duration { return d.Round(time.Microsecond) }
	return fmt.Sprintf("%v of its own time, and waited %v for the TPM, %v for the disk helper, %v for the network and %v for other programs",
		short(own), short(a.tpm), short(a.disk), short(a.network), short(a.programs))
}

// meteredTPM counts how long the TPM takes for its commands.
type meteredTPM struct {
	transport.TPM
	spent *time.Duration
}

// Send executes one command.
func (m meteredTPM) Send(command []byte) ([]byte, error) {
	defer wait(m.spent, time.Now())
	return m.TPM.Send(command)
}

// withTPM opens the TPM for one use of the exchange.
func (c *conversation) withTPM(use func(transport.TPM) error) error {
	return c.agent.withTPM(func(tpm transport.TPM) error { return use(meteredTPM{tpm, &c.took.tpm}) })
}

// start starts a unit and waits for it.
func (c *conversation) start(ctx context.Context, unit string) error {
	defer wait(&c.took.programs, time.Now())
	return c.agent.Machine.Start(ctx, unit)
}

// validate lets kubeadm judge documents.
func (c *conversation) validate(ctx context.Context, documents []byte) error {
	defer wait(&c.took.programs, time.Now())
	return c.agent.Cluster.Validate(ctx, documents)
}

// served wants the endpoint served, by a certificate of the authority that the kubelet trusts.
func (c *conversation) served(ctx context.Context, endpoint string) error {
	defer wait(&c.took.network, time.Now())
	return run.Serves(ctx, run.Access{Kubeconfig: kubeletConf, Read: c.agent.readState}, endpoint)
}

// note writes to the log alone, what nobody waits for.
func note(s *Status, format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprintln(s.Log, oneLine(fmt.Sprintf(format, args...)))
}

// sayUsage says what it took to get to the start of Kubernetes.
func (c *conversation) sayUsage() {
	note(c.agent.Status, "the agent took %s before Kubernetes", usage())
	note(c.agent.Status, "the agent took %v", &c.took)
}

// usage says what the agent, without the programs that it runs, has taken of its machine so far (getrusage(2)).
func usage() string {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return err.Error()
	}
	spent := time.Duration(u.Utime.Nano() + u.Stime.Nano())
	return fmt.Sprintf("%d ms of processor time, %d MiB of memory at most", spent.Milliseconds(), (u.Maxrss+1023)>>10)
}
