package registry

import (
	"bytes"
	"context"
	"encoding/pem"
	"fmt"
	"slices"
	"strings"

	"github.com/hullmark/hullmark/internal/pemcert"
)

// toldObject is the ConfigMap by which API servers tell the servers of aggregated APIs whom they take. Each API server adds its own CAs,
// and takes none out (k8s.io/kubernetes pkg/controlplane/controller/clusterauthenticationtrust, combinedClusterAuthenticationInfo).
const toldObject = "extension-apiserver-authentication"

// Told names what API servers tell the servers of aggregated APIs.
type Told string

const (
	// ToldFrontProxy are the CAs, in PEM, by which these know API servers, and ToldClients those by which they know clients that come to
	// them by themselves.
	ToldFrontProxy Told = "requestheader-client-ca-file"
	ToldClients    Told = "client-ca-file"
)

// KeepTold leaves, of the CAs that the servers of aggregated APIs are told of, those that are trusted, in PEM, and reports whether there
// were others, also with an error: what it asked for may be done although nobody said so. An API server that trusts another one adds it
// again. Where none of the trusted ones is told of, nothing is taken out.
func (r *Endpoints) KeepTold(ctx context.Context, what Told, trusted []byte) (dropped bool, err error) {
	known, err := pemcert.Split(trusted)
	if err != nil {
		return false, fmt.Errorf("%s: %w", what, err)
	}
	_, err = r.editSystem(ctx, toldObject, func(data map[string]string) (bool, error) {
		kept, others, err := keepCertificates(data[string(what)], known)
		if dropped = others && err == nil; dropped {
			data[string(what)] = kept
		}
		return dropped, err
	})
	return dropped, err
}

// keepCertificates leaves of the certificates in a text in PEM those that are known, and reports whether there were others. A text that
// has none of them stays as it is.
func keepCertificates(text string, known [][]byte) (kept string, others bool, err error) {
	if strings.TrimSpace(text) == "" {
		return text, false, nil
	}
	told, err := pemcert.Split([]byte(text))
	if err != nil {
		return text, false, err
	}
	var out bytes.Buffer
	for _, der := range told {
		if !slices.ContainsFunc(known, func(k []byte) bool { return bytes.Equal(k, der) }) {
			others = true
			continue
		}
		out.Write(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	}
	if out.Len() == 0 || !others {
		return text, false, nil
	}
	return out.String(), true, nil
}
