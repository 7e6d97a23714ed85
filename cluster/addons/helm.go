package addons

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path"
	"slices"
	"sync"

	"helm.sh/helm/v4/pkg/action"
	"helm.sh/helm/v4/pkg/chart/common"
	chartvalues "helm.sh/helm/v4/pkg/chart/common/util"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	chartutil "helm.sh/helm/v4/pkg/chart/v2/util"
	"helm.sh/helm/v4/pkg/engine"
	"helm.sh/helm/v4/pkg/kube"
	releasestatus "helm.sh/helm/v4/pkg/release/common"
	release "helm.sh/helm/v4/pkg/release/v1"
	releaseutil "helm.sh/helm/v4/pkg/release/v1/util"
	"helm.sh/helm/v4/pkg/storage/driver"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// chartManager is what Helm calls itself as a manager of fields, so that the helm command can go on with what we did.
const chartManager = "helm"

// helm is Helm in one namespace of a cluster.
type helm struct {
	client    *client
	namespace string
	cfg       *action.Configuration
}

// nameManager tells Helm its name once: it has one for the whole program, by default that of the program.
var nameManager = sync.OnceFunc(func() { kube.ManagedFieldsManager = chartManager })

// newHelm prepares Helm; it asks nothing yet, and knows the kinds that the API serves from now on.
func newHelm(config *rest.Config, namespace string) (*helm, error) {
	nameManager()
	c, err := connect(config)
	if err != nil {
		return nil, err
	}
	h := &helm{client: c, namespace: namespace, cfg: action.NewConfiguration(action.ConfigurationSetLogger(slog.DiscardHandler))}
	return h, h.cfg.Init(h, namespace, "secret")
}

// ToRESTConfig is Helm's way to the API, with the three that follow.
func (h *helm) ToRESTConfig() (*rest.Config, error) { return h.client.config, nil }

// ToDiscoveryClient says which kinds there are.
func (h *helm) ToDiscoveryClient() (discovery.CachedDiscoveryInterface, error) {
	return h.client.kinds, nil
}

// ToRESTMapper finds a kind's resource.
func (h *helm) ToRESTMapper() (meta.RESTMapper, error) { return h.client.mapper, nil }

// ToRawKubeConfigLoader says which namespace is meant by none.
func (h *helm) ToRawKubeConfigLoader() clientcmd.ClientConfig {
	return clientcmd.NewDefaultClientConfig(clientcmdapi.Config{}, &clientcmd.ConfigOverrides{Context: clientcmdapi.Context{Namespace: h.namespace}})
}

// last returns the newest revision of a release, or nil.
func (h *helm) last(name string) (*release.Release, error) {
	found, err := h.cfg.Releases.Last(name)
	if errors.Is(err, driver.ErrReleaseNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	r, err := releaseOf(name, found)
	if err != nil {
		return nil, err
	}
	if r.Info.Status.IsPending() || r.Info.Status == releasestatus.StatusUninstalling {
		return nil, fmt.Errorf("%w: release %s is %s: another program has not finished, or was killed; next: helm history %[2]s, then helm rollback or helm uninstall", ErrRefused, name, r.Info.Status)
	}
	if r.Info.Status == releasestatus.StatusUninstalled {
		return nil, fmt.Errorf("%w: release %s is uninstalled, and its history was kept; next: helm uninstall %[2]s --namespace %s removes that", ErrRefused, name, h.namespace)
	}
	return r, nil
}

// releaseOf is what Helm keeps of a release, which has a type of its own for each of its formats.
func releaseOf(name string, found any) (*release.Release, error) {
	r, ok := found.(*release.Release)
	if !ok {
		return nil, fmt.Errorf("release %s: a %T, want one of Helm 3 or 4", name, found)
	}
	return r, nil
}

// former are the objects that a release consists of: those of its newest revision, and, if that failed, those of the one that was
// deployed before, from which Helm goes on.
func (h *helm) former(last *release.Release) ([]*object, error) {
	if last == nil {
		return nil, nil
	}
	all, err := parse([]byte(last.Manifest))
	if err != nil || last.Info.Status == releasestatus.StatusDeployed {
		return all, err
	}
	found, err := h.cfg.Releases.Deployed(last.Name)
	if errors.Is(err, driver.ErrNoDeployedReleases) {
		return all, nil
	}
	if err != nil {
		return nil, err
	}
	deployed, err := releaseOf(last.Name, found)
	if err != nil {
		return nil, err
	}
	before, err := parse([]byte(deployed.Manifest))
	for _, o := range before {
		if !slices.ContainsFunc(all, func(n *object) bool { return nameOf(n).key() == nameOf(o).key() }) {
			all = append(all, o)
		}
	}
	return all, err
}

// rendered is what a chart makes.
type rendered struct {
	definitions, objects []*object
	hooks                []hook
}

// hook is an object that Helm creates at one moment of an installation or an upgrade, and waits for.
type hook struct {
	object *object
	events []release.HookEvent
}

// runs says when it runs in an upgrade, or in an installation; empty if never.
func (h hook) runs(upgrade bool) (at string) {
	moments := []release.HookEvent{release.HookPreInstall, release.HookPostInstall}
	if upgrade {
		moments = []release.HookEvent{release.HookPreUpgrade, release.HookPostUpgrade}
	}
	for _, e := range h.events {
		for _, m := range moments {
			if e == m {
				at += ", " + string(e)
			}
		}
	}
	if at == "" {
		return ""
	}
	return at[2:]
}

// render makes what a chart says, with the versions of its own definitions among those that the API serves.
func (h *helm) render(ch *chart.Chart, values map[string]any, name string, last *release.Release) (r rendered, err error) {
	if err := chartutil.ValidateReleaseName(name); err != nil {
		return r, err
	}
	if err := chartutil.ProcessDependencies(ch, values); err != nil {
		return r, err
	}
	for _, crd := range ch.CRDObjects() {
		some, err := parse(crd.File.Data)
		if err != nil {
			return r, fmt.Errorf("%s: %w", crd.Filename, err)
		}
		r.definitions = append(r.definitions, some...)
	}
	files, err := h.files(ch, values, name, last, r.definitions)
	if err != nil {
		return r, err
	}
	hooks, manifests, err := releaseutil.SortManifests(files, nil, releaseutil.InstallOrder)
	if err != nil {
		return r, err
	}
	for _, m := range manifests {
		some, err := parse([]byte(m.Content))
		if err != nil {
			return r, fmt.Errorf("%s: %w", m.Name, err)
		}
		r.objects = append(r.objects, some...)
	}
	r.hooks, err = parseHooks(hooks)
	return r, err
}

// files renders the templates, as Helm does before it sends anything.
func (h *helm) files(ch *chart.Chart, values map[string]any, name string, last *release.Release, definitions []*object) (map[string]string, error) {
	capabilities, err := h.capabilities(definitions)
	if err != nil {
		return nil, err
	}
	if wanted := ch.Metadata.KubeVersion; wanted != "" && !chartutil.IsCompatibleRange(wanted, capabilities.KubeVersion.String()) {
		return nil, fmt.Errorf("it wants Kubernetes %s, and the cluster has %s", wanted, capabilities.KubeVersion.Version)
	}
	options := common.ReleaseOptions{Name: name, Namespace: h.namespace, Revision: 1, IsInstall: last == nil, IsUpgrade: last != nil}
	if last != nil {
		options.Revision = last.Version + 1
	}
	top, err := chartvalues.ToRenderValuesWithSchemaValidation(ch, values, options, capabilities, false)
	if err != nil {
		return nil, err
	}
	files, err := engine.New(h.client.config).Render(ch, top)
	for file := range files {
		if path.Base(file) == "NOTES.txt" {
			delete(files, file)
		}
	}
	return files, err
}

// capabilities are what templates may ask of the cluster.
func (h *helm) capabilities(definitions []*object) (*common.Capabilities, error) {
	version, err := h.client.kinds.ServerVersion()
	if err != nil {
		return nil, err
	}
	served, err := action.GetVersionSet(h.client.kinds)
	if err != nil {
		return nil, err
	}
	for _, o := range definitions {
		d, err := defined(o)
		if err != nil {
			return nil, err
		}
		for _, v := range d.Spec.Versions {
			served = append(served, d.Spec.Group+"/"+v.Name, d.Spec.Group+"/"+v.Name+"/"+d.Spec.Names.Kind)
		}
	}
	c := common.DefaultCapabilities.Copy()
	c.APIVersions = served
	c.KubeVersion = common.KubeVersion{Version: version.GitVersion, Major: version.Major, Minor: version.Minor}
	return c, nil
}

func parseHooks(hooks []*release.Hook) (all []hook, err error) {
	for _, h := range hooks {
		objects, err := parse([]byte(h.Manifest))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", h.Path, err)
		}
		for _, o := range objects {
			all = append(all, hook{o, h.Events})
		}
	}
	return all, nil
}

// Labels and annotations by which Helm knows what is a release's (helm.sh/helm/v4/pkg/action, validate.go).
const (
	managedBy        = "app.kubernetes.io/managed-by"
	releaseName      = "meta.helm.sh/release-name"
	releaseNamespace = "meta.helm.sh/release-namespace"
)

// own marks an object as a release's, as Helm does before it sends it.
func (h *helm) own(o *object, name string) {
	o.SetLabels(with(o.GetLabels(), managedBy, "Helm"))
	o.SetAnnotations(with(with(o.GetAnnotations(), releaseName, name), releaseNamespace, h.namespace))
}

// owns reports whether Helm takes an object for the release's.
func (h *helm) owns(o *object, name string) bool {
	a := o.GetAnnotations()
	return o.GetLabels()[managedBy] == "Helm" && a[releaseName] == name && a[releaseNamespace] == h.namespace
}

func with(m map[string]string, key, value string) map[string]string {
	if m == nil {
		m = map[string]string{}
	}
	m[key] = value
	return m
}

// held is Helm's client, held to the objects that were planned, and so saved.
type held struct {
	*kube.Client
	planned map[key]bool
}

// Build reads manifests. It is called with all of them before anything is sent.
func (h held) Build(reader io.Reader, validate bool) (kube.ResourceList, error) {
	list, err := h.Client.Build(reader, validate)
	if err != nil {
		return nil, err
	}
	for _, r := range list {
		of := key{r.Mapping.GroupVersionKind.Group, r.Mapping.GroupVersionKind.Kind, r.Namespace, r.Name}
		if !h.planned[of] {
			return nil, fmt.Errorf("the chart makes %s %s, which it did not when it was planned, so nobody saved what is there: its templates name something else each time; give it a value for that", of.kind, of.name)
		}
	}
	return list, nil
}

// copyOf returns a copy of values that shares nothing with them, as decoding them anew makes it.
func copyOf(values map[string]any) (map[string]any, error) {
	text, err := json.Marshal(values)
	if err != nil {
		return nil, err
	}
	all := map[string]any{}
	if err := json.Unmarshal(text, &all); err != nil {
		return nil, err
	}
	if all == nil {
		all = map[string]any{}
	}
	return all, nil
}
