package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"strings"

	"filippo.io/age"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/cluster/operate"
	"github.com/hullmark/hullmark/internal/canary"
	"github.com/hullmark/hullmark/joinservice/keys"
	"github.com/hullmark/hullmark/joinservice/keys/keeper"
	"github.com/hullmark/hullmark/tools/capi/custody"
)

// kubeconfigKey is the one key that lies in the management cluster, as Cluster API wants it.
const kubeconfigKey = "the kubeconfig's key"

// know collects the secrets that there are, and begins to look for them in the arguments and the environment of every process.
func (d *demo) know(ctx context.Context) error {
	passphrase, err := os.ReadFile(d.path("passphrase"))
	if err != nil {
		return err
	}
	passphrase = []byte(strings.TrimSpace(string(passphrase)))
	file, err := cluster.Open(d.path("cluster"), hullmark.NewSecret(passphrase))
	if err != nil {
		return err
	}
	if d.secrets, err = canary.OfCluster(file.Cluster); err != nil {
		return err
	}
	d.secrets["the cluster file's passphrase"] = passphrase
	identity, err := d.sealingKey(ctx)
	if err != nil {
		return err
	}
	d.secrets["the sealing key"] = []byte(identity.String())
	sealed, err := os.ReadFile(d.path("enroller.key"))
	if err != nil {
		return err
	}
	enroller, _, err := operate.OpenEnrollerKey(sealed, identity)
	if err != nil {
		return err
	}
	d.secrets["the enroller's key"] = enroller.Seed()
	secret, err := os.ReadFile(d.path("keeper.secret"))
	if err != nil {
		return err
	}
	if d.secrets["the keeper's key"], err = base64.StdEncoding.DecodeString(strings.TrimSpace(string(secret))); err != nil {
		return err
	}
	search, err := canary.New(d.secrets)
	if err != nil {
		return err
	}
	d.watch = search.Watch()
	return nil
}

// sealingKey has the keeper open the controllers' sealing key, which the demo can as it plays the keeper, too.
func (d *demo) sealingKey(ctx context.Context) (*age.X25519Identity, error) {
	encoded, err := d.ask(ctx, "get", "secret", "hullmark-sealing-key", "--namespace", "hullmark-control-plane-system", "-o", "jsonpath={.data.sealed}")
	if err != nil {
		return nil, err
	}
	wrapped, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil {
		return nil, err
	}
	credentials, err := keeper.ReadCredentialFiles(d.path("keeper.secret"), "")
	if err != nil {
		return nil, err
	}
	return custody.Unwrap(ctx, keys.Access{Open: credentials.Open}, wrapped)
}

// search looks for every key in every object of both clusters, in all that programs and machines wrote, the disks among it, and in what
// processes were called with since the keys were made.
func (d *demo) search(ctx context.Context) error {
	found, programs := d.watch.End()
	d.watch = nil
	var err error
	if d.secrets[kubeconfigKey], err = d.administratorsKey(); err != nil {
		return err
	}
	search, err := canary.New(d.secrets)
	if err != nil {
		return err
	}
	for name, kubeconfig := range map[string]string{"the management cluster": "management.conf", "the cluster": "prod.conf"} {
		objects, size := 0, 0
		err := d.eachObject(ctx, kubeconfig, func(object string, text []byte) {
			objects++
			size += len(text)
			found = append(found, search.Text(name+": "+object, text)...)
		})
		if err != nil {
			return err
		}
		fmt.Printf("%s: %d objects, %d bytes\n", name, objects, size)
	}
	for _, folder := range []string{"logs", "machines", "management/etcd"} {
		in, err := search.Tree(d.path(folder))
		if err != nil {
			return err
		}
		fmt.Printf("%s: everything that is written there\n", d.path(folder))
		found = append(found, in...)
	}
	total := 0
	for _, times := range programs {
		total += times
	}
	fmt.Printf("processes: %d programs, looked at %d times\n", len(programs), total)
	return judge(found)
}

// judge prints what was found, and is an error if it is anything but the kubeconfig's own key where it has to be.
func judge(found []canary.Finding) error {
	bad, kept := 0, 0
	for _, f := range found {
		fmt.Println("found in", f)
		switch {
		case f.Secret != kubeconfigKey:
			bad++
		case f.Where == "the management cluster: Secret "+namespace+"/prod-kubeconfig":
			kept++
		case !strings.Contains(f.Where, "etcd"): // which holds that Secret
			bad++
		}
	}
	switch {
	case bad > 0:
		return fmt.Errorf("%d keys lie where they must not", bad)
	case kept == 0:
		return errors.New("the kubeconfig's key was not found in its own Secret, so the search is good for nothing")
	}
	return nil
}

// eachObject gives all objects of a cluster to do, as JSON.
func (d *demo) eachObject(ctx context.Context, kubeconfig string, do func(object string, text []byte)) error {
	kinds, err := d.askOf(ctx, kubeconfig, "api-resources", "--verbs", "list", "-o", "name")
	if err != nil {
		return err
	}
	for _, kind := range strings.Fields(kinds) {
		text, err := d.askOf(ctx, kubeconfig, "get", kind, "--all-namespaces", "-o", "json", "--show-managed-fields")
		if err != nil {
			return err
		}
		var list struct {
			Items []json.RawMessage `json:"items"`
		}
		if err := json.Unmarshal([]byte(text), &list); err != nil {
			return fmt.Errorf("%s: %w", kind, err)
		}
		for _, item := range list.Items {
			var object struct {
				Kind     string `json:"kind"`
				Metadata struct {
					Namespace string `json:"namespace"`
					Name      string `json:"name"`
				} `json:"metadata"`
				Data map[string]string `json:"-"`
			}
			if err := json.Unmarshal(item, &object); err != nil {
				return fmt.Errorf("%s: %w", kind, err)
			}
			if object.Kind == "Secret" || object.Kind == "ConfigMap" {
				if err := json.Unmarshal(item, &struct {
					Data *map[string]string `json:"data"`
				}{&object.Data}); err != nil {
					return fmt.Errorf("%s: %w", kind, err)
				}
			}
			// A kubeconfig holds keys in base64 twice, and its Secret holds it in base64.
			text := bytes.Clone(item)
			for _, value := range object.Data {
				if decoded, err := base64.StdEncoding.DecodeString(value); err == nil {
					text = append(append(text, '\n'), decoded...)
				}
			}
			do(object.Kind+" "+object.Metadata.Namespace+"/"+object.Metadata.Name, text)
		}
	}
	return nil
}

// administratorsKey is the key in the Cluster's kubeconfig.
func (d *demo) administratorsKey() ([]byte, error) {
	config, err := clientcmd.LoadFromFile(d.path("prod.conf"))
	if err != nil {
		return nil, err
	}
	for _, user := range config.AuthInfos {
		block, _ := pem.Decode(user.ClientKeyData)
		if block == nil {
			continue
		}
		parsed, err := x509.ParseECPrivateKey(block.Bytes)
		if err != nil {
			var any any
			if any, err = x509.ParsePKCS8PrivateKey(block.Bytes); err != nil {
				return nil, err
			}
			var ok bool
			if parsed, ok = any.(*ecdsa.PrivateKey); !ok {
				return nil, fmt.Errorf("the kubeconfig's key is a %T", any)
			}
		}
		return parsed.Bytes()
	}
	return nil, errors.New("the kubeconfig has no key")
}
