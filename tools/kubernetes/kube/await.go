package main

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// awaitAPIServer returns when the API server of --kubeconfig=FILE in args answers
// /healthz, the page that kube-controller-manager itself gives ten seconds before it
// ends. A kubelet starts all programs of a control plane at once, and puts one that
// ended three times into a back-off that outlasts the API server's start.
// Without the argument, or with a file that can't be read, it returns at once: what is
// wrong is the program's to say. The kubelet's startup probe bounds the wait.
func awaitAPIServer(program string, args []string) {
	file := ""
	for _, arg := range args {
		if value, is := strings.CutPrefix(arg, "--kubeconfig="); is {
			file = value
		}
	}
	if file == "" {
		return
	}
	config, err := clientcmd.BuildConfigFromFlags("", file)
	if err != nil {
		return
	}
	config.Timeout = 10 * time.Second
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return
	}
	said := ""
	for {
		reason := unanswered(client, strings.TrimSuffix(config.Host, "/")+"/healthz")
		if reason == "" {
			return
		}
		if reason != said {
			fmt.Fprintf(os.Stderr, "%s: waits for the API server: %s\n", program, reason)
			said = reason
		}
		time.Sleep(time.Second)
	}
}

// unanswered says why the API server is not ready at url, or "". A refusal of the
// client's name is an answer, too.
func unanswered(client *http.Client, url string) string {
	response, err := client.Get(url)
	if err != nil {
		return err.Error()
	}
	defer response.Body.Close()
	switch response.StatusCode {
	case http.StatusOK, http.StatusUnauthorized, http.StatusForbidden:
		return ""
	}
	return response.Status
}
