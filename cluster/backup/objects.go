package backup

import (
	"bytes"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"

	"github.com/hullmark/hullmark/internal/pemcert"
)

// ConfigMaps of kubeadm's and of the controller manager's, with the keys that are read.
const (
	configurationKey    = "/registry/configmaps/kube-system/kubeadm-config"
	configurationObject = "ClusterConfiguration"
	authorityKey        = "/registry/configmaps/kube-system/kube-root-ca.crt"
	authorityObject     = "ca.crt"
)

// flannelKey is the DaemonSet's of kubeadm.Flannel.
const flannelKey = "/registry/daemonsets/kube-system/flannel"

// encrypted is what the API server's values begin with that it encrypts at rest.
var encrypted = []byte("k8s:enc:")

// Objects are read as the API server stores them, in protobuf or in JSON, and written as it does by default.
var (
	decoder, encoder = codecs()
	configMapKind    = corev1.SchemeGroupVersion.WithKind("ConfigMap")
)

func codecs() (runtime.Decoder, runtime.Encoder) {
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		panic(err) // Only a mistake in the program can be the cause.
	}
	return serializer.NewCodecFactory(scheme).UniversalDeserializer(), protobuf.NewSerializer(scheme, scheme)
}

// decodeObject reads the value of a key into an object of its kind.
func decodeObject(key string, value []byte, into runtime.Object) error {
	if bytes.HasPrefix(value, encrypted) {
		return fmt.Errorf("the value of %s is encrypted at rest, and has to be read: encrypt nothing but Secrets, write ConfigMaps and Pods anew, and take another backup", key)
	}
	got, _, err := decoder.Decode(value, nil, into)
	if err == nil && got != into {
		err = fmt.Errorf("it is a %T, want a %T", got, into)
	}
	if err != nil {
		return fmt.Errorf("read the value of %s: %w; use another backup", key, err)
	}
	return nil
}

// encodeConfigMap returns the value that the API server would store.
func encodeConfigMap(object *corev1.ConfigMap) ([]byte, error) {
	object.SetGroupVersionKind(configMapKind)
	var out bytes.Buffer
	err := encoder.Encode(object, &out)
	return out.Bytes(), err
}

// configMap returns the ConfigMap under a key, or nil.
func (s *state) configMap(key string) (*corev1.ConfigMap, error) {
	value, err := s.get(key)
	if value == nil || err != nil {
		return nil, err
	}
	object := &corev1.ConfigMap{}
	return object, decodeObject(key, value, object)
}

// content returns the text that a ConfigMap has under a key of its own.
func (s *state) content(key, name string) (string, error) {
	object, err := s.configMap(key)
	if err != nil {
		return "", err
	}
	if object == nil || object.Data[name] == "" {
		return "", fmt.Errorf("the backup has no %s in %s, which every cluster of Hullmark's has: use another backup", name, key)
	}
	return object.Data[name], nil
}

// configuration returns kubeadm's ClusterConfiguration.
func configuration(s *state) ([]byte, error) {
	text, err := s.content(configurationKey, configurationObject)
	return []byte(text), err
}

// checkAuthority refuses a backup of another cluster, which has none of the certificates of this one's Kubernetes CA: no other cluster
// does. One from before an exchange that is over has none either, and nothing else tells whose it is.
func checkAuthority(s *state, authorities []*x509.Certificate) error {
	text, err := s.content(authorityKey, authorityObject)
	if err != nil {
		return err
	}
	found, err := pemcert.Split([]byte(text))
	if err == nil && slices.ContainsFunc(authorities, func(c *x509.Certificate) bool {
		return slices.ContainsFunc(found, func(der []byte) bool { return bytes.Equal(der, c.Raw) })
	}) {
		return nil
	}
	return errors.New("this backup is of another cluster, or of before its Kubernetes CA was exchanged: that CA is not the one in the cluster file; give the backup and the cluster file of the same cluster, of before or of after")
}

// nodeOf returns the Node that a Pod is bound to, or nothing.
func nodeOf(key string, value []byte) (string, error) {
	var pod corev1.Pod
	err := decodeObject(key, value, &pod)
	return pod.Spec.NodeName, err
}
