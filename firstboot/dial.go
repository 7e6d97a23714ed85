package firstboot

import (
	"context"
	"crypto/tls"
	"errors"
	"math/rand/v2"
	"net"
	"slices"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/attest/channel"
	"github.com/hullmark/hullmark/attest/wire"
)

// farewell is how long a join service has to take the node's last message and end the stream.
const farewell = 5 * time.Second

// dialler asks the join services for a ticket.
type dialler struct{ *Agent }

// start asks the join services in the background, and returns what ends that.
func (a dialler) start(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if len(a.config.Endpoints) > 0 {
			a.run(ctx)
		}
	}()
	return func() {
		cancel()
		select {
		case <-ended:
		case <-time.After(stopTimeout): // kubeadm runs, and does not hear of it
		}
	}
}

// run asks every join service that the node config names, round after round, for as long as this boot has no ticket.
func (a dialler) run(ctx context.Context) {
	unanswered, denied := a.Timing.FirstPause, a.Timing.DeniedPause
	for a.turn.ticketless(ctx) == nil {
		next := &unanswered
		if final := a.askAround(ctx); final {
			next = &denied
		}
		pause := *next
		*next = min(2*pause, a.Timing.LongestPause)
		// Half of the pause is chance: nodes that lost the power together do not come back in step.
		a.countDown(ctx, pause/2+rand.N(pause/2+1))
	}
}

// countDown waits, and lets the status say how long it still takes.
func (a dialler) countDown(ctx context.Context, pause time.Duration) {
	end := time.Now().Add(pause)
	for left := pause; left > 0; left = time.Until(end) {
		if a.turn.isKept() {
			a.Status.AskNoMore()
			return
		}
		a.Status.AskAgainIn(left)
		select {
		case <-time.After(min(left, time.Second)):
		case <-ctx.Done():
			return
		}
	}
}

// askAround tries each endpoint once, in any order. It reports whether only another policy or another disk would change the
// answer: then a service or the node itself said no, and no other service asked to be asked again.
func (a dialler) askAround(ctx context.Context) (final bool) {
	var denied, invited bool
	var unanswered *hullmark.Condition
	endpoints := slices.Clone(a.config.Endpoints)
	rand.Shuffle(len(endpoints), func(i, j int) { endpoints[i], endpoints[j] = endpoints[j], endpoints[i] })
	for _, endpoint := range endpoints {
		if ctx.Err() != nil || a.turn.isKept() {
			return false
		}
		a.Status.Ask(endpoint, a.config.Endpoints)
		answered, condition := a.askService(ctx, endpoint)
		if condition == nil {
			return false // the node has its ticket, or the operator asks for one
		}
		if online, err := networking(a).isOnline(); !answered && err == nil && !online {
			condition.Because = networking(a).noNetwork()
		}
		a.Status.Answered(endpoint, condition)
		switch {
		case !answered:
			unanswered = condition
		case condition.Retry:
			invited = true
		default:
			denied = true
		}
	}
	if !denied && !invited {
		a.failUnanswered(unanswered)
	}
	return denied && !invited
}

// failUnanswered shows why nobody answered, unless an exchange has said something since.
func (a dialler) failUnanswered(c *hullmark.Condition) {
	if !a.turn.take(context.Background(), 0) {
		return
	}
	defer a.turn.giveBack()
	a.Status.FailUnlessFailed(c)
}

// askService makes one attempt with one join service. No condition means that there was nothing to decide: the node has its
// ticket, or the turn was the operator's. answered tells that the other end was one of the cluster's services.
func (a dialler) askService(ctx context.Context, endpoint string) (answered bool, condition *hullmark.Condition) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	conn, info, condition := a.reach(ctx, endpoint)
	if condition != nil {
		return false, condition
	}
	defer conn.Close()
	client, err := over(conn, info)
	if err != nil {
		return false, unreachable(endpoint, err)
	}
	defer client.Close()
	if !a.turn.take(ctx, a.Timing.DialledTurn) {
		return false, nil
	}
	stream, err := wire.NewJoinServiceClient(client).Exchange(ctx)
	if err != nil {
		a.turn.giveBack()
		return false, unreachable(endpoint, err)
	}
	c := &conversation{agent: a.Agent, service: endpoint, stream: dialled{stream, cancel, a.Timing.Answer}}
	if err := c.exchange(); err != nil {
		return judge(endpoint, err)
	}
	return true, nil
}

// judge turns the end of an exchange into its condition; without one the stream just broke.
func judge(endpoint string, err error) (answered bool, c *hullmark.Condition) {
	if errors.As(err, &c) {
		return true, c
	}
	return false, unreachable(endpoint, err)
}

// reach connects to an endpoint and makes sure that it is a join service of the node's cluster. All this needs no turn.
func (a *Agent) reach(ctx context.Context, endpoint string) (net.Conn, credentials.AuthInfo, *hullmark.Condition) {
	dialer := net.Dialer{Timeout: a.Timing.Dial}
	raw, err := dialer.DialContext(ctx, "tcp", endpoint)
	if err != nil {
		return nil, nil, unreachable(endpoint, err)
	}
	config := channel.JoinTLS(a.config.ClusterRoot)
	verify := config.VerifyConnection
	var distrust error
	config.VerifyConnection = func(state tls.ConnectionState) error {
		distrust = verify(state)
		return distrust
	}
	ctx, cancel := context.WithTimeout(ctx, a.Timing.Dial)
	defer cancel()
	conn, info, err := credentials.NewTLS(config).ClientHandshake(ctx, config.ServerName, raw)
	switch {
	case distrust != nil:
		return nil, nil, untrusted(endpoint, distrust)
	case err != nil:
		_ = raw.Close()
		return nil, nil, unreachable(endpoint, err)
	}
	return conn, info, nil
}

func unreachable(endpoint string, err error) *hullmark.Condition {
	return &hullmark.Condition{
		Code: "service-unreachable", Step: StepAttest, Title: "the join service at " + endpoint + " does not answer: " + err.Error(), Retry: true,
		Next: "start a control plane and check the network in between; if all control planes are down, run hullmark recover for one",
	}
}

func untrusted(endpoint string, err error) *hullmark.Condition {
	if other := (*channel.OtherRoot)(nil); errors.As(err, &other) {
		return &hullmark.Condition{
			Code: "root-mismatch", Step: StepAttest, Title: "the join service at " + endpoint + " is of another root than the one in the node config, which has not handed over to it",
			Expected: other.Pinned.String(), Got: other.Shown.String(),
			Next: "if the cluster's root was exchanged, and the node's given up, name the present one in the node config (hullmark policy show); else find out who answers there",
		}
	}
	return &hullmark.Condition{
		Code: "service-untrusted", Step: StepAttest, Title: "who answers at " + endpoint + " is no join service of this cluster: " + err.Error(),
		Next: "correct endpoints or clusterRoot in the node config, or find out who answers there",
	}
}

// established hands gRPC a channel whose handshake is done.
type established struct {
	credentials.TransportCredentials
	info credentials.AuthInfo
}

// ClientHandshake does nothing: see reach.
func (e established) ClientHandshake(_ context.Context, _ string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return conn, e.info, nil
}

// Clone returns e, which does not change.
func (e established) Clone() credentials.TransportCredentials { return e }

// only dials once, to what is connected already: an attempt is one connection.
func only(conn net.Conn) func(context.Context, string) (net.Conn, error) {
	unused := make(chan net.Conn, 1)
	unused <- conn
	return func(context.Context, string) (net.Conn, error) {
		select {
		case c := <-unused:
			return c, nil
		default:
			return nil, errors.New("the connection has ended")
		}
	}
}

// dialled is a stream to a join service, which may read as slowly as it likes: a message that is not taken in time ends the stream.
type dialled struct {
	wire.JoinService_ExchangeClient
	cancel context.CancelFunc
	limit  time.Duration
}

// Send sends a message within the limit.
func (d dialled) Send(m *wire.FromNode) error {
	defer time.AfterFunc(d.limit, d.cancel).Stop()
	return d.JoinService_ExchangeClient.Send(m)
}

// hangUp ends a stream that the node opened, once the other end has read what was said.
func (c *conversation) hangUp() {
	d, ok := c.stream.(dialled)
	if !ok || c.stalled || d.CloseSend() != nil {
		return
	}
	defer time.AfterFunc(farewell, d.cancel).Stop()
	for {
		if _, err := d.Recv(); err != nil {
			return
		}
	}
}
