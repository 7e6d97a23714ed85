package operate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/joinservice"
	"github.com/hullmark/hullmark/joinservice/registry"
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
	cluster.KubernetesCA: {
		cluster.ExchangeSteady: {"step 1 of 3: API servers, kubelets and pods are to trust the next CA, too", "reboot all workers after that, and run this command again for step 2"},
		cluster.ExchangeTrusted: {
			"step 2 of 3: the next CA is to sign, and the former one stays trusted",
			"make kubeconfigs, and files of operators, anew; kubelets ask for other certificates by themselves, and those of the former CA end within three days; run this command again for step 3",
		},
		cluster.ExchangeSigning: {
			"step 3 of 3: the former CA is given up",
			"reboot all workers after that, and run this command once more: until then they, and servers of aggregated APIs, trust the former CA",
		},
	},
}

// told is what API servers tell the servers of aggregated APIs of a CA: once its exchange is over, the former one is taken out there.
var told = map[cluster.CAName]registry.Told{cluster.FrontProxyCA: registry.ToldFrontProxy, cluster.KubernetesCA: registry.ToldClients}

// caChanges change the cluster file by the step.
var caChanges = map[cluster.Exchange]func(*cluster.Cluster, cluster.CAName) error{
	cluster.ExchangeSteady: (*cluster.Cluster).TrustCA, cluster.ExchangeTrusted: (*cluster.Cluster).SignWithCA, cluster.ExchangeSigning: (*cluster.Cluster).DropCA,
}

// rotateCA takes the exchange of a CA one step on, if nothing in the cluster is still at the one before.
func (a *API) rotateCA(ctx context.Context, name cluster.CAName, except []string) (Rotated, error) {
	var behind map[string]string
	err := a.persist(ctx, func() (err error) {
		behind, err = a.behind(ctx, name, except)
		return err
	})
	if err == nil {
		err = leaveOut(behind, except, "no node of that name is behind", func(left []string) error { return notYet(name, left) })
	}
	if err != nil {
		return Rotated{}, err
	}
	at := a.file.Cluster.Exchange(name)
	if what, ok := told[name]; ok && at == cluster.ExchangeSteady {
		if ended, err := a.endTold(ctx, name, what); ended || err != nil {
			return Rotated{Ended: ended}, err
		}
	}
	if name == cluster.KubernetesCA && at == cluster.ExchangeSteady {
		if err := a.checkSigner(ctx); err != nil {
			return Rotated{}, err
		}
	}
	if err := a.file.Update(func(c *cluster.Cluster) error { return caChanges[at](c, name) }); err != nil {
		return Rotated{}, err
	}
	a.Done.say("%s", caSteps[name][at].done)
	if name == cluster.KubernetesCA { // API servers will show certificates of another CA, and take ours of it.
		if err := a.logIn(time.Now()); err != nil {
			return Rotated{}, err
		}
	}
	return Rotated{Next: caSteps[name][at].next}, a.pushSigned(ctx)
}

// checkLent refuses to begin with any CA but that of kubelets, which is for nodes alone, while the cluster file is lent: Cluster API's
// control plane provider goes on by the lent file as long as the cluster lives, reaches etcd and the API by the CAs in it, and is brought
// no other ones.
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
	if name == cluster.KubernetesCA {
		return errors.New("API servers, and nodes or what runs there, would not trust each other: " + behind +
			"; next: reboot control planes first, one at a time, and workers after them, and give kubelets the time to ask for other certificates; a control plane that is behind after that says why (hullmark node status: certificates-superseded); " +
			"forget a machine that is gone for good (hullmark node remove), or name workers that are off, or that may be lost until they are rebooted (--except)")
	}
	return errors.New("control planes would not trust each other: " + behind +
		"; next: reboot these, one at a time; one that is behind after that says why (hullmark node status: certificates-superseded); forget one that is gone for good (hullmark node remove)")
}

// behind says of each node, by name, why the next step has to wait for it: a control plane that does not hold the keys of the last
// rotation, so that its programs are at an earlier step, or at a later one than an old cluster file knows; and before the former CA of
// kubelets goes, a kubelet whose certificate is of it, or that cannot be asked. A control plane's join service notes in its record which
// keys it holds, and an earlier rotation while a certificate of its programs is of a former CA. For the Kubernetes CA see addNodes.
func (a *API) behind(ctx context.Context, name cluster.CAName, except []string) (map[string]string, error) {
	policy, err := a.file.Cluster.OpenPolicy()
	if err != nil {
		return nil, err
	}
	machines, err := a.client.List(ctx)
	if err != nil {
		return nil, err
	}
	behind, err := planesBehind(machines, policy.Rotation)
	switch {
	case err != nil:
		return nil, err
	case name == cluster.KubernetesCA:
		addNodes(behind, machines, a.file.Cluster, policy.KubernetesCA, time.Now())
		return behind, checkExcept(machines, except)
	case name == cluster.KubeletCA && a.file.Cluster.Exchange(name) == cluster.ExchangeSigning:
		return behind, a.addKubelets(ctx, behind)
	}
	return behind, nil
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

// addNodes adds what stands in the way of a step of the Kubernetes CA beside control planes. Before the next one signs, and before an
// exchange ends, these are workers that do not trust what the policy commits to: they were not Ready since a boot in which all control
// planes held it. One whose kubelet has no certificate that lasts is none of them, since it gets all that it needs at its next boot. Before
// the former one goes, they are nodes whose kubelets may be known by a certificate of it.
func addNodes(behind map[string]string, machines []joinservice.Machine, c *cluster.Cluster, committed hullmark.CADigest, now time.Time) {
	signing, present := c.Exchange(cluster.KubernetesCA) == cluster.ExchangeSigning, joinservice.AuthorityID(c.Kubernetes.Certificate)
	for _, m := range machines {
		until := m.FormerUntil(present, now)
		switch {
		case behind[m.Name] != "":
		case signing && !until.IsZero():
			behind[m.Name] = fmt.Sprintf("%s: its kubelet may be known by a certificate of the former CA until %s", m.Name, until.UTC().Format(time.RFC3339))
		case !signing && m.Role == hullmark.Worker && m.KubernetesCA != committed && m.CertificateEnds.After(now):
			behind[m.Name] = m.Name + ": it was not booted since all control planes trust what they do"
		}
	}
}

// checkExcept refuses to leave a control plane behind: all that is there asks it.
func checkExcept(machines []joinservice.Machine, except []string) error {
	for _, m := range machines {
		if m.Role == hullmark.ControlPlane && slices.Contains(except, m.Name) {
			return as(ErrUsage, fmt.Errorf("--except %s: it is a control plane, which each step has to wait for", m.Name))
		}
	}
	return nil
}

// checkSigner refuses to begin where controller managers sign by kubeadm's own file: with two certificates in it they would sign nothing,
// and kubelets get no certificates any more.
func (a *API) checkSigner(ctx context.Context) error {
	apart := false
	err := a.persist(ctx, func() (err error) {
		apart, err = a.client.SignsApart(ctx)
		return err
	})
	if err == nil && !apart {
		err = as(ErrDenied, fmt.Errorf("%s: an earlier release of Hullmark began this cluster, whose controller managers sign by a file that takes no second CA; next: leave this CA as it is, or begin another cluster", cluster.KubernetesCA))
	}
	return err
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

// endTold takes former CAs out of what API servers tell the servers of aggregated APIs: API servers only ever add theirs to that.
// It reports whether there was any, as after the third step.
func (a *API) endTold(ctx context.Context, name cluster.CAName, what registry.Told) (ended bool, err error) {
	trusted := a.file.Cluster.CATrust(name)
	err = a.persist(ctx, func() error {
		dropped, err := a.client.KeepTold(ctx, what, trusted)
		ended = ended || dropped
		return err
	})
	if ended && err == nil {
		a.Done.say("servers of aggregated APIs are told of the present CA alone: the exchange is done")
	}
	return ended, err
}
