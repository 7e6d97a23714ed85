package operate

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/joinservice"
	kubeadmrun "github.com/hullmark/hullmark/kubeadm/run"
)

// caStep is what one call does for a CA, and what has to be done next.
type caStep struct{ done, next string }

// caSteps are those of each CA, by how far its exchange has come.
var caSteps = map[cluster.CAName]map[cluster.Exchange]caStep{
	cluster.KubeletCA: {
		cluster.ExchangeSteady:  {"step 1 of 3: API servers are to trust the next CA of kubelets, too", "run this command again for step 2"},
		cluster.ExchangeTrusted: {"step 2 of 3: the next CA is to sign, and the former one stays trusted", "kubelets ask for other certificates by themselves, within three days; run this command again for step 3"},
		cluster.ExchangeSigning: {"step 3 of 3: the former CA is given up", "the exchange is done"},
	},
	cluster.EtcdCA: {
		cluster.ExchangeSteady:  {"step 1 of 3: members of etcd, and their clients, are to trust the next CA, too", "run this command again for step 2"},
		cluster.ExchangeTrusted: {"step 2 of 3: the next CA is to sign, and the former one stays trusted", "run this command again for step 3"},
		cluster.ExchangeSigning: {"step 3 of 3: the former CA is given up", "the exchange is done"},
	},
	cluster.FrontProxyCA: {
		cluster.ExchangeSteady:  {"step 1 of 3: API servers, and servers of aggregated APIs, are to trust the next CA, too", "run this command again for step 2"},
		cluster.ExchangeTrusted: {"step 2 of 3: the next CA is to sign, and the former one stays trusted", "run this command again for step 3"},
		cluster.ExchangeSigning: {"step 3 of 3: the former CA is given up", "run this command once more: until then servers of aggregated APIs are told of the former CA, too"},
	},
}

// caChanges change the cluster file by the step.
var caChanges = map[cluster.Exchange]func(*cluster.Cluster, cluster.CAName) error{
	cluster.ExchangeSteady: (*cluster.Cluster).TrustCA, cluster.ExchangeTrusted: (*cluster.Cluster).SignWithCA, cluster.ExchangeSigning: (*cluster.Cluster).DropCA,
}

// rotateCA takes the exchange of a CA one step on, if nothing in the cluster is still at the one before.
func (a *API) rotateCA(ctx context.Context, name cluster.CAName, except []string) (Rotated, error) {
	var behind map[string]string
	err := a.persist(ctx, func() (err error) {
		behind, err = a.behind(ctx, name)
		return err
	})
	if err == nil {
		err = leaveOut(behind, except, "no node of that name is behind", func(left []string) error { return notYet(name, left) })
	}
	if err != nil {
		return Rotated{}, err
	}
	at := a.file.Cluster.Exchange(name)
	if name == cluster.FrontProxyCA && at == cluster.ExchangeSteady {
		if ended, err := a.endFrontProxy(ctx); ended || err != nil {
			return Rotated{Ended: ended}, err
		}
	}
	if err := a.file.Update(func(c *cluster.Cluster) error { return caChanges[at](c, name) }); err != nil {
		return Rotated{}, err
	}
	a.Done.say("%s", caSteps[name][at].done)
	return Rotated{Next: caSteps[name][at].next}, a.pushSigned(ctx)
}

// checkLent refuses to begin with the CA of etcd, or with that of the front proxy, while the cluster file is lent: Cluster API's control
// plane provider goes on by the lent file as long as the cluster lives, reaches etcd by the CA in it, and is brought no other one. The CA
// of kubelets is for nodes alone.
func checkLent(c *cluster.Cluster, name cluster.CAName) error {
	if c.LentFor == nil || name == cluster.KubeletCA || c.Exchange(name) != cluster.ExchangeSteady {
		return nil
	}
	return as(ErrDenied, fmt.Errorf("%s: this cluster file is lent, for machine %s: the lent file, by which Cluster API's control plane provider goes on, has the present CA, and nothing brings it another one; "+
		"next: leave this CA as it is; if it has to go, begin the cluster anew on another machine by this file itself, with a backup of etcd (hullmark init --replace-first --etcd-backup), and then run this command", name, c.LentFor))
}

// notYet says who stands in the way of a step.
func notYet(name cluster.CAName, left []string) error {
	behind := strings.Join(left, "; ")
	if name == cluster.KubeletCA {
		return errors.New("API servers and kubelets would not trust each other: " + behind +
			"; next: reboot control planes, give kubelets the time to ask for other certificates, or name nodes whose logs may be lost until then (--except)")
	}
	return errors.New("control planes would not trust each other: " + behind +
		"; next: reboot these, one at a time; one that is behind after that says why (hullmark node status: certificates-superseded); forget one that is gone for good (hullmark node remove)")
}

// behind says of each node, by name, why the next step has to wait for it: a control plane that does not hold the keys of the last
// rotation, so that its programs are at an earlier step, or at a later one than an old cluster file knows; and before the former CA of
// kubelets goes, a kubelet whose certificate is of it, or that cannot be asked. A control plane's join service notes in its record which
// keys it holds, and an earlier rotation while a certificate of its programs is of a former CA.
func (a *API) behind(ctx context.Context, name cluster.CAName) (map[string]string, error) {
	policy, err := a.file.Cluster.OpenPolicy()
	if err != nil {
		return nil, err
	}
	machines, err := a.client.List(ctx)
	if err != nil {
		return nil, err
	}
	behind, err := planesBehind(machines, policy.Rotation)
	if err != nil || name != cluster.KubeletCA || a.file.Cluster.Exchange(name) != cluster.ExchangeSigning {
		return behind, err
	}
	return behind, a.addKubelets(ctx, behind)
}

// planesBehind are the control planes that do not hold the keys of a rotation. Where no record is of a control plane nobody says what any
// holds, which is ErrDenied: there is one at least, whose API server said so.
func planesBehind(machines []joinservice.Machine, rotation uint64) (map[string]string, error) {
	behind, planes := map[string]string{}, 0
	for _, m := range machines {
		if m.Role != hullmark.ControlPlane {
			continue
		}
		planes++
		switch {
		case m.Rotation > rotation:
			behind[m.Name] = fmt.Sprintf("%s: it holds the keys of rotation %d, and this cluster file knows of no more than %d: use the newest one", m.Name, m.Rotation, rotation)
		case m.Rotation < rotation:
			behind[m.Name] = fmt.Sprintf("%s: it holds the keys of rotation %d, not %d", m.Name, m.Rotation, rotation)
		}
	}
	if planes == 0 {
		return nil, as(ErrDenied, errors.New("the cluster has no record of any control plane, so nobody says which keys they hold; "+
			"next: see that hullmark node list shows them, whose join services keep the records, and run this command again"))
	}
	return behind, nil
}

// addKubelets adds kubelets that show no certificate of the CA that signs by now.
func (a *API) addKubelets(ctx context.Context, behind map[string]string) error {
	kubelets, err := a.client.Kubelets(ctx)
	if err != nil {
		return err
	}
	ca := a.file.Cluster.CACertificate(cluster.KubeletCA)
	for _, k := range kubelets {
		if _, err := kubeadmrun.KubeletCertificate(ctx, ca, k.Name, k.Address.String()); err != nil && behind[k.Name] == "" {
			behind[k.Name] = fmt.Sprintf("%s: its kubelet shows no certificate of the new CA: %v", k.Name, err)
		}
	}
	return nil
}

// endFrontProxy takes former CAs out of what API servers tell the servers of aggregated APIs: API servers only ever add theirs to that.
// It reports whether there was any, as after the third step.
func (a *API) endFrontProxy(ctx context.Context) (ended bool, err error) {
	trusted := a.file.Cluster.CATrust(cluster.FrontProxyCA)
	err = a.persist(ctx, func() error {
		dropped, err := a.client.KeepFrontProxyCA(ctx, trusted)
		ended = ended || dropped
		return err
	})
	if ended && err == nil {
		a.Done.say("servers of aggregated APIs are told of the present CA alone: the exchange is done")
	}
	return ended, err
}
