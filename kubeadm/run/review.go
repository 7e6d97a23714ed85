package run

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
)

// Reviewer asks the API server what the bearer of a token may do, as a kubelet does for its own callers. It is for one caller at a time.
type Reviewer struct{ api api }

// NewReviewer returns one that asks as a node.
func NewReviewer(access Access) *Reviewer { return &Reviewer{api{access: access}} }

// tokenReview is a TokenReview (authentication.k8s.io/v1), as far as it matters here.
type tokenReview struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Spec       struct {
		Token string `json:"token"`
	} `json:"spec"`
	Status struct {
		Authenticated bool `json:"authenticated"`
		User          struct {
			Username string              `json:"username"`
			UID      string              `json:"uid"`
			Groups   []string            `json:"groups"`
			Extra    map[string][]string `json:"extra"`
		} `json:"user"`
	} `json:"status"`
}

// accessReview is a SubjectAccessReview (authorization.k8s.io/v1), likewise.
type accessReview struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Spec       struct {
		User     string              `json:"user"`
		UID      string              `json:"uid,omitempty"`
		Groups   []string            `json:"groups,omitempty"`
		Extra    map[string][]string `json:"extra,omitempty"`
		Resource struct {
			Version     string `json:"version"`
			Verb        string `json:"verb"`
			Resource    string `json:"resource"`
			Subresource string `json:"subresource"`
			Name        string `json:"name"`
		} `json:"resourceAttributes"`
	} `json:"spec"`
	Status struct {
		Allowed bool `json:"allowed"`
	} `json:"status"`
}

// ErrNoUser is a token that is nobody's.
var ErrNoUser = errors.New("the token is nobody's")

// MayReadMetrics reports whether the bearer of a token may get nodes/metrics of a node: what a kubelet asks before it shows its own. A
// token that the API server does not take is ErrNoUser.
func (r *Reviewer) MayReadMetrics(ctx context.Context, token, node string) (bool, error) {
	who := tokenReview{APIVersion: "authentication.k8s.io/v1", Kind: "TokenReview"}
	who.Spec.Token = token
	if err := r.api.create(ctx, "/apis/authentication.k8s.io/v1/tokenreviews", &who); err != nil {
		return false, err
	}
	if !who.Status.Authenticated || who.Status.User.Username == "" {
		return false, ErrNoUser
	}
	may := accessReview{APIVersion: "authorization.k8s.io/v1", Kind: "SubjectAccessReview"}
	user := who.Status.User
	may.Spec.User, may.Spec.UID, may.Spec.Groups, may.Spec.Extra = user.Username, user.UID, user.Groups, user.Extra
	a := &may.Spec.Resource
	a.Version, a.Verb, a.Resource, a.Subresource, a.Name = "v1", "get", "nodes", "metrics", node
	err := r.api.create(ctx, "/apis/authorization.k8s.io/v1/subjectaccessreviews", &may)
	return err == nil && may.Status.Allowed, err
}

// create posts an object, and reads what becomes of it into the same. What fails, fails without the object's content: it may be a token.
func (a *api) create(ctx context.Context, path string, object any) error {
	if err := a.open(); err != nil {
		return err
	}
	err := a.post(ctx, path, object)
	if err != nil {
		a.close()
	}
	return err
}

func (a *api) post(ctx context.Context, path string, object any) error {
	body, err := json.Marshal(object)
	if err != nil {
		return err
	}
	defer clear(body)
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, a.server+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	answer, err := a.client.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode != http.StatusCreated {
		return fmt.Errorf("API server: %s", answer.Status)
	}
	text, err := io.ReadAll(io.LimitReader(answer.Body, maxObject))
	if err != nil {
		return err
	}
	defer clear(text)
	return json.Unmarshal(text, object)
}
