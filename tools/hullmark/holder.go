package main

import (
	"fmt"
	"io"
	"time"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/cluster/operate"
)

// holder is whose file a verb goes by: the cluster file, or an operator's. One of the two is there.
type holder struct {
	file     *cluster.File
	operator *cluster.OperatorFile
}

// bearer is what nodes are shown certificates of.
func (h holder) bearer() operate.Bearer {
	if h.operator != nil {
		return h.operator
	}
	return h.file.Cluster
}

// known is what the file knows of the cluster.
func (h holder) known() *cluster.Cluster {
	if h.operator != nil {
		return h.operator.Grant.Known
	}
	return h.file.Cluster
}

// openAny reads the file that --cluster names, whosever it is. The root signs for the cluster file alone.
func (o *operatorOptions) openAny(notes io.Writer) (h holder, err error) {
	passphrase, err := readPassphrase(o.passphraseFile, notes, "Passphrase of "+o.cluster)
	if err != nil {
		return h, err
	}
	h.file, h.operator, err = cluster.OpenAny(o.cluster, passphrase)
	switch {
	case err != nil:
		return h, err
	case h.file != nil:
		return h, o.rootKey.signFor(h.file)
	case o.rootKey.signer != "":
		return h, withCode(exitUsage, fmt.Errorf("--root-signer: %s is the file of operator %s, for whom no command signs; name the cluster file, or leave the flag out", o.cluster, h.operator.Grant.Who.Name))
	}
	return h, nil
}

// openFor is openAny for a verb that an operator needs a permission for.
func (o *operatorOptions) openFor(verb string, need hullmark.Permission, notes io.Writer) (holder, error) {
	h, err := o.openAny(notes)
	if err == nil && h.operator != nil {
		err = h.operator.Grant.Who.Permit(verb, need, time.Now())
	}
	return h, err
}
