package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
)

// serve starts a pod on a worker, with a service before it.
func (d *demo) serve(ctx context.Context) error {
	image, err := d.bundleImage(ctx)
	if err != nil {
		return err
	}
	for name, manifest := range map[string]string{"answer.yaml": answerManifest, "asker.yaml": askerManifest} {
		text := strings.NewReplacer("IMAGE", image, "NODE", d.first.name, "NAME", "answer").Replace(manifest)
		fmt.Printf("%s\n%s", d.path(name), text)
		if err := os.WriteFile(d.path(name), []byte(text), 0o600); err != nil {
			return err
		}
	}
	if err := d.kubectl(ctx, "apply", "-f", d.path("answer.yaml")); err != nil {
		return err
	}
	return d.reach(ctx)
}

// bundleImage is the image that all pods of the bundle run from: no other is on the nodes.
func (d *demo) bundleImage(ctx context.Context) (string, error) {
	asks := []string{"get", "deployment", "coredns", "--namespace", "kube-system", "-o", "jsonpath={.spec.template.spec.containers[0].image}"}
	d.show(asks)
	image, err := d.kubectlOutput(ctx, asks)
	fmt.Println(image)
	return image, err
}

// reach reaches the pod by its service's name, from the API server, and by the service's address, from the control plane's kubelet: a
// new pod there becomes Ready when its probe has been answered.
func (d *demo) reach(ctx context.Context) error {
	ctx, cancel := d.attended(ctx)
	defer cancel()
	err := d.until(ctx, func(answer string) (bool, error) { return answer == "OK", nil },
		"get", "--raw", "/api/v1/namespaces/default/services/http:answer:http/proxy/health")
	if err != nil {
		return err
	}
	if err := d.kubectl(ctx, "replace", "--force", "--grace-period", "0", "-f", d.path("asker.yaml")); err != nil {
		return errors.Join(err, context.Cause(ctx))
	}
	if err := d.kubectl(ctx, "wait", "--for", "condition=Ready", "pod/asker", "--timeout", answerTime.String()); err != nil {
		return errors.Join(err, context.Cause(ctx))
	}
	return d.kubectl(ctx, "get", "pods", "-o", "wide")
}

// look reads the log of the pod on the worker, and runs a program in it: the API server has verified the worker's kubelet then.
func (d *demo) look(ctx context.Context) error {
	ctx, cancel := d.attended(ctx)
	defer cancel()
	says := func(answer string) (bool, error) { return strings.Contains(answer, "CoreDNS-"), nil }
	for _, args := range [][]string{{"logs", "deployment/answer"}, {"exec", "deployment/answer", "--", "/usr/lib/kubernetes/bin/coredns", "-version"}} {
		if err := d.until(ctx, says, args...); err != nil {
			return err
		}
		fmt.Printf("kubectl %s reached the kubelet\n", args[0])
	}
	return nil
}

// answering and answers are what of a manifest has pods named NAME answer over HTTP: a configuration, and what runs in a Deployment's pod.
// The program is CoreDNS out of the verity root, because no other image is on the nodes.
const (
	answering = `apiVersion: v1
kind: ConfigMap
metadata:
  name: NAME
data:
  Corefile: |
    .:8053 {
        health :8080
        whoami
    }
`
	answers = `      containers:
      - name: NAME
        image: IMAGE
        command: ["/usr/lib/kubernetes/bin/coredns", "-conf", "/etc/coredns/Corefile"]
        readinessProbe:
          httpGet: {path: /health, port: 8080}
          timeoutSeconds: 10
        volumeMounts:
        - {name: configuration, mountPath: /etc/coredns}
        - {name: verity-root, mountPath: /usr/lib/kubernetes/bin, readOnly: true}
      volumes:
      - name: configuration
        configMap: {name: NAME}
      - name: verity-root
        hostPath: {path: /usr/lib/kubernetes/bin, type: Directory}
`
)

// answerManifest is a pod that answers, and a service before it. The control plane's taint leaves it to the workers.
const answerManifest = answering + `---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: answer
spec:
  selector:
    matchLabels: {app: answer}
  template:
    metadata:
      labels: {app: answer}
    spec:
      automountServiceAccountToken: false
` + answers + `---
apiVersion: v1
kind: Service
metadata:
  name: answer
spec:
  clusterIP: 10.96.0.200
  selector: {app: answer}
  ports:
  - {name: http, port: 80, targetPort: 8080}
`

// askerManifest is a pod on the control plane that is Ready when the service's address answers there.
const askerManifest = `apiVersion: v1
kind: Pod
metadata:
  name: asker
spec:
  nodeName: NODE
  tolerations:
  - operator: Exists
  automountServiceAccountToken: false
  containers:
  - name: asker
    image: IMAGE
    command: ["/pause"]
    readinessProbe:
      httpGet: {host: 10.96.0.200, path: /health, port: 80}
      timeoutSeconds: 10
`
