package addons

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/hullmark/hullmark/internal/atomicfile"
	"github.com/hullmark/hullmark/internal/pemcert"
)

// savedEnding is what the name of a saved state ends with.
const savedEnding = ".saved"

// newRun names a run: its names are in the order of time, and no two are the same.
func newRun() string {
	return time.Now().UTC().Format("20060102-150405.000000") + "-" + strings.ToLower(rand.Text()[:8])
}

// file is where a run's state is saved.
func (a *Addons) file(run string) string { return filepath.Join(a.Saved, run+savedEnding) }

// authorities are the SHA-256 of the certificates of the Kubernetes CA of the cluster that is spoken to, at first of the one that signs.
func (a *Addons) authorities() (sums []string, err error) {
	certificates, err := pemcert.Split(a.Config.CAData)
	if err != nil {
		return nil, fmt.Errorf("the configuration has no certificate of the cluster's CA: %w", err)
	}
	for _, der := range certificates {
		sum := sha256.Sum256(der)
		sums = append(sums, hex.EncodeToString(sum[:]))
	}
	return sums, nil
}

// cluster is the first of them, which a saved state is known by.
func (a *Addons) cluster() (string, error) {
	sums, err := a.authorities()
	if err != nil {
		return "", err
	}
	return sums[0], nil
}

// save writes all that a plan may change, all definitions and all custom resources to a new file, and reads it back.
func (a *Addons) save(ctx context.Context, c *client, plan *Plan, h header) error {
	if err := os.MkdirAll(a.Saved, 0o700); err != nil {
		return fmt.Errorf("save what there is: %w", err)
	}
	var lines int
	err := atomicfile.Stream(a.file(h.Run), atomicfile.Options{Mode: 0o600, New: true}, func(f *os.File) (err error) {
		encrypted, err := a.File.Encrypt(f)
		if err != nil {
			return err
		}
		if lines, err = a.write(ctx, c, plan, h, encrypted); err != nil {
			return err
		}
		return encrypted.Close()
	})
	if err != nil {
		return fmt.Errorf("save what there is: %w", err)
	}
	n := 0
	if _, err := a.open(a.file(h.Run), h.Run, func(saved) error { n++; return nil }); err != nil || n != lines {
		return fmt.Errorf("read back what was saved: %d of %d objects: %w", n, lines, err)
	}
	a.done("saved %d objects in %s", n, a.file(h.Run))
	return nil
}

// write writes a saved state, and returns how many objects and absences it has.
func (a *Addons) write(ctx context.Context, c *client, plan *Plan, h header, to io.Writer) (int, error) {
	w, err := newSavedWriter(to, h)
	if err != nil {
		return 0, err
	}
	s := &saver{Addons: a, client: c, plan: plan, to: w}
	for _, step := range []func(context.Context) error{s.definitions, s.objects, s.records, s.custom} {
		if err := step(ctx); err != nil {
			return 0, err
		}
	}
	lines := w.lines - 1
	return lines, w.close()
}

// saver reads what is saved.
type saver struct {
	*Addons
	client *client
	plan   *Plan
	to     *savedWriter
	all    []definition
}

// definitions saves all definitions, and the absence of those that come.
func (s *saver) definitions(ctx context.Context) error {
	there := map[string]bool{}
	err := s.client.each(ctx, definitions, func(o *object) error {
		d, err := defined(o)
		if err != nil {
			return err
		}
		there[o.GetName()] = true
		s.all = append(s.all, d)
		return s.to.object(partDefinition, o)
	})
	if err != nil {
		return fmt.Errorf("the definitions: %w", err)
	}
	for name := range s.plan.touchedDefinitions() {
		if there[name] {
			continue
		}
		n := Name{APIVersion: definitionKind.GroupVersion().String(), Kind: definitionKind.Kind, Name: name}
		if err := s.to.put(line{Part: partDefinition, Absent: &n}); err != nil {
			return err
		}
	}
	return nil
}

// objects saves what the add-ons that change consist of, had, or get.
func (s *saver) objects(ctx context.Context) error {
	seen := map[key]bool{}
	for i, u := range s.plan.units {
		if !s.plan.Addons[i].Changes {
			continue
		}
		for _, n := range u.touched() {
			if isDefinition(n) || seen[n.key()] {
				continue
			}
			seen[n.key()] = true
			if err := s.one(ctx, n); err != nil {
				return fmt.Errorf("%s: %w", n, err)
			}
		}
	}
	return nil
}

func (s *saver) one(ctx context.Context, n Name) error {
	o, err := s.client.get(ctx, n)
	if err != nil {
		return err
	}
	if o == nil {
		return s.to.absent(n)
	}
	return s.to.object(partObject, o)
}

// secrets is the resource of what Helm keeps of releases.
var secrets = schema.GroupVersionResource{Version: "v1", Resource: "secrets"}

// records saves what Helm keeps of the releases.
func (s *saver) records(ctx context.Context) error {
	for i, u := range s.plan.units {
		if !u.isChart() || !s.plan.Addons[i].Changes {
			continue
		}
		list, err := s.client.records(ctx, u.namespace(), u.addon.Name)
		if err != nil {
			return fmt.Errorf("release %s: %w", u.addon.Name, err)
		}
		for i := range list {
			if err := s.to.object(partRecord, &list[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

// records lists the Secrets in which Helm keeps a release (helm.sh/helm/v4/pkg/storage/driver, secrets.go).
func (c *client) records(ctx context.Context, namespace, name string) ([]object, error) {
	list, err := c.objects.Resource(secrets).Namespace(namespace).List(ctx, metav1.ListOptions{LabelSelector: "owner=helm,name=" + name})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// revision is that which a Secret of Helm's holds; 0 if it does not say.
func revision(record *object) int {
	n, err := strconv.Atoi(record.GetLabels()["version"])
	if err != nil {
		return 0
	}
	return n
}

// custom saves all custom resources, a page at a time. Those of add-ons that do not change are for the operator alone: if they
// cannot be read, the plan has said so.
func (s *saver) custom(ctx context.Context) error {
	touched := s.plan.touchedDefinitions()
	for _, d := range s.all {
		name := d.Metadata.Name
		if _, unread := s.plan.Saved.Unread[name]; unread && !touched[name] {
			s.say("not saved: the objects of %s, which cannot be read: %s", name, s.plan.Saved.Unread[name])
			continue
		}
		n := 0
		err := s.client.each(ctx, d.resource(d.read()), func(o *object) error {
			n++
			return s.to.object(partCustom, o)
		})
		if err != nil {
			return fmt.Errorf("the objects of %s: %w", name, err)
		}
		if n > 0 {
			s.say("saved %d objects of %s", n, name)
		}
	}
	return nil
}

// open reads a saved state of this cluster's, of the run that is named, or of any if that is empty.
func (a *Addons) open(path, run string, each func(saved) error) (h header, err error) {
	authorities, err := a.authorities()
	if err != nil {
		return h, err
	}
	f, err := os.Open(path)
	if err != nil {
		return h, err
	}
	defer f.Close()
	plain, err := a.File.Decrypt(f)
	if err != nil {
		return h, fmt.Errorf("%s: it holds nothing under the cluster file's passphrase, or is damaged: %w", path, err)
	}
	begin := func(h header) error {
		switch {
		case !slices.Contains(authorities, h.Cluster):
			return errors.New("it is another cluster's, or of before the Kubernetes CA was exchanged: its CA is not this one's")
		case run != "" && h.Run != run:
			return fmt.Errorf("it is what run %s saved, under the name of run %s; next: look who has changed the folder, and bring the right file", h.Run, run)
		}
		return nil
	}
	if h, err = readSaved(plain, begin, each); err != nil {
		return h, fmt.Errorf("%s: %w", path, err)
	}
	return h, nil
}
