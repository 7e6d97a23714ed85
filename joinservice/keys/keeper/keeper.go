// Package keeper reaches the external keepers that wrap a cluster's keyset:
// a Vault, a cloud's key service, or a key in a file (docs/keepers.md).
package keeper

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"gocloud.dev/secrets"
	"gocloud.dev/secrets/awskms"
	"gocloud.dev/secrets/azurekeyvault"
	"gocloud.dev/secrets/gcpkms"
	"gocloud.dev/secrets/hashivault"
	"gocloud.dev/secrets/localsecrets"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/joinservice/keys"
)

// Names of the files that ReadCredentials reads, and of the credentials of the join service's unit.
const (
	SecretFile = "keeper.secret"
	CAFile     = "keeper.crt"
)

// schemeLocal is the scheme of a key in a file; the drivers define the others.
const schemeLocal = "local"

const (
	// maxSecret bounds a keeper's secret, in bytes.
	maxSecret = 8 << 10
	// maxCA bounds the certificates of a keeper's authority, in bytes.
	maxCA = 64 << 10
)

// Credentials are what a client shows its keeper, and by what it knows it. Keepers
// that know machines by themselves, as clouds do, need none.
type Credentials struct {
	// Secret is Vault's token, or a local keeper's key of 32 bytes in base64.
	Secret hullmark.Secret
	// CA holds, as PEM, the authorities that may certify a Vault; none means the system's.
	CA []byte
}

// ReadCredentials reads keeper.secret and keeper.crt from a folder such as
// $CREDENTIALS_DIRECTORY. A file that is absent or empty is a credential that is not needed.
func ReadCredentials(dir string) (Credentials, error) {
	files := []string{filepath.Join(dir, SecretFile), filepath.Join(dir, CAFile)}
	for i, name := range files {
		if _, err := os.Stat(name); errors.Is(err, os.ErrNotExist) {
			files[i] = ""
		}
	}
	return ReadCredentialFiles(files[0], files[1])
}

// ReadCredentialFiles reads both files; one without a name is a credential that is not needed.
func ReadCredentialFiles(secretFile, caFile string) (Credentials, error) {
	secret, err := readFile(secretFile, maxSecret)
	if err != nil {
		return Credentials{}, err
	}
	ca, err := readFile(caFile, maxCA)
	if err != nil {
		return Credentials{}, err
	}
	return NewCredentials(secret, ca)
}

// NewCredentials takes ownership of both files' contents. White space around the secret is no part of it.
func NewCredentials(secret, ca []byte) (Credentials, error) {
	start, end := 0, len(secret)
	for start < end && secret[start] <= ' ' {
		start++
	}
	for end > start && secret[end-1] <= ' ' {
		end--
	}
	for _, b := range secret[start:end] {
		if b <= ' ' || b > '~' {
			return Credentials{}, errors.New("the keeper's secret: want one line of printable ASCII without spaces")
		}
	}
	if len(secret) > maxSecret || len(ca) > maxCA {
		return Credentials{}, fmt.Errorf("the keeper's secret and certificates: at most %d and %d bytes are allowed", maxSecret, maxCA)
	}
	c := Credentials{Secret: hullmark.NewSecret(secret[start:end:end]), CA: ca}
	if len(ca) > 0 {
		if _, err := c.roots(); err != nil {
			return Credentials{}, err
		}
	}
	return c, nil
}

// readFile reads a small file; a longer one than limit bytes is refused.
func readFile(path string, limit int) ([]byte, error) {
	if path == "" {
		return nil, nil
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("the keeper's credential: %w", err)
	}
	defer file.Close()
	content := make([]byte, limit+1) // Not grown while it is read: a copy of the secret would stay behind.
	n, err := io.ReadFull(file, content)
	if err == nil {
		return nil, fmt.Errorf("the keeper's credential: %s: more than %d bytes", path, limit)
	}
	if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, fmt.Errorf("the keeper's credential: %w", err)
	}
	return content[:n:n], nil
}

// Open returns the keeper that a URL names (docs/keepers.md has their forms).
// It is Access.Open's; the keeper is good for as long as ctx is. Only a cloud's own client looks into the environment, for
// the machine's identity. A URL or credential that cannot be used is a
// *hullmark.Condition of code keeper-setting.
func (c Credentials) Open(ctx context.Context, keeperURL string) (keys.Keeper, error) {
	u, err := url.Parse(keeperURL)
	if err != nil {
		return nil, keys.Unusable("not a URL")
	}
	open, ok := map[string]func(context.Context, *url.URL) (keys.Keeper, error){
		schemeLocal:          c.openLocal,
		hashivault.Scheme:    c.openVault,
		awskms.Scheme:        openAWS,
		gcpkms.Scheme:        openGoogle,
		azurekeyvault.Scheme: openAzure,
	}[u.Scheme]
	if !ok {
		return nil, keys.Unusable(fmt.Sprintf("the unknown kind of keeper %q", u.Scheme))
	}
	return open(ctx, u)
}

// openLocal opens "local://": the key is the client's secret, never in the URL.
func (c Credentials) openLocal(_ context.Context, u *url.URL) (keys.Keeper, error) {
	if u.Host != "" || u.Path != "" || u.RawQuery != "" {
		return nil, keys.Unusable("local:// with something behind it; its key is in a file")
	}
	var key [32]byte
	raw := make([]byte, base64.StdEncoding.DecodedLen(c.Secret.Len()))
	defer clear(raw)
	n, err := base64.StdEncoding.Decode(raw, c.Secret.Expose())
	if err != nil || n != len(key) {
		return nil, keys.Unusable("a secret that is not 32 bytes in base64")
	}
	copy(key[:], raw)
	defer clear(key[:])
	return driver{Keeper: localsecrets.NewKeeper(key), explain: func(error) *hullmark.Condition {
		return keys.Refused("the key does not open the keyset")
	}}, nil
}

// checkAddress refuses an address at which the keyset and the token would pass a network in clear.
func checkAddress(address string) error {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return keys.Unusable("an address that is not https://HOST[:PORT]")
	}
	ip := net.ParseIP(u.Hostname())
	if u.Scheme != "https" && (u.Scheme != "http" || ip == nil || !ip.IsLoopback()) {
		return keys.Unusable("an address without TLS, which only a loopback address may be")
	}
	return nil
}

// onlyParameters refuses a URL with a query parameter that is not named, or one that is named twice.
func onlyParameters(u *url.URL, names ...string) (map[string]string, error) {
	values, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return nil, keys.Unusable("a URL whose query cannot be read")
	}
	parameters := map[string]string{}
	for _, name := range names {
		if len(values[name]) > 1 {
			return nil, keys.Unusable("a URL that names " + name + " twice")
		}
		parameters[name] = values.Get(name)
		delete(values, name)
	}
	if len(values) > 0 {
		return nil, keys.Unusable("a URL with another parameter than " + strings.Join(names, ", "))
	}
	return parameters, nil
}

// driver is a keeper of the library whose errors say nothing that its server wrote.
type driver struct {
	*secrets.Keeper
	explain func(error) *hullmark.Condition
	close   func()
}

// Encrypt is Keeper's.
func (d driver) Encrypt(ctx context.Context, plaintext []byte) ([]byte, error) {
	return d.answered(d.Keeper.Encrypt(ctx, plaintext))
}

// Decrypt is Keeper's.
func (d driver) Decrypt(ctx context.Context, ciphertext []byte) ([]byte, error) {
	return d.answered(d.Keeper.Decrypt(ctx, ciphertext))
}

func (d driver) answered(answer []byte, err error) ([]byte, error) {
	if err != nil {
		clear(answer)
		return nil, d.explain(err)
	}
	return answer, nil
}

// Close is Keeper's.
func (d driver) Close() error {
	if d.close != nil {
		d.close()
	}
	return d.Keeper.Close()
}
