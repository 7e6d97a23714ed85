package upgrade

import (
	"errors"
	"fmt"
	"reflect"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/measurements"
)

// stepName is what conditions of an upgrade name as theirs.
const stepName = "UPGRADE"

// Judge refuses a move that versions do not allow, with a *hullmark.Condition. Nil says nothing against any.
type Judge func(Move) error

// Move is a node's from one release to another.
type Move struct {
	Name     string
	Role     hullmark.Role
	From, To measurements.Document
	// Others are all other nodes, as they are now.
	Others []Other
}

// Other is a node that another one has to work with.
type Other struct {
	Name string
	Role hullmark.Role
	// Document is of the release that it runs; zero if the cluster has it no more. Kubelet is its kubelet's version, such as v1.36.3.
	Document measurements.Document
	Kubelet  string
}

// documentFor chooses the document of a release for a machine: the one that is of the same firmware and devices as that which the machine
// matched at its last boot. Nodes of other kinds could not show its registers.
func (v View) documentFor(s Spec, m Machine) (hullmark.DocumentID, error) {
	present, ok := v.Documents[m.Document]
	if !ok {
		return hullmark.DocumentID{}, &hullmark.Condition{
			Code: "document-unknown", Step: stepName, Title: "the cluster no longer has the document that " + m.Name + " booted by, so its kind of machine is not known",
			Got: m.Document.String(), Next: "accept that document again (hullmark policy add document, policy push), or leave the node out (--except " + m.Name + ")",
		}
	}
	for _, id := range s.Documents {
		if d, ok := v.Documents[id]; ok && reflect.DeepEqual(d.Machine, present.Machine) {
			return id, nil
		}
	}
	return hullmark.DocumentID{}, &hullmark.Condition{
		Code: "document-missing", Step: stepName, Title: "no document of the release is for the kind of machine that " + m.Name + " is",
		Expected: fmt.Sprintf("firmware %.16s…, as of document %.16s…", fmt.Sprint(present.Machine.Firmware), m.Document),
		Next:     "measure the release for that firmware (hullmark measure), accept the document (policy add document, policy push), and name it, too",
	}
}

// accepted refuses a release whose documents the policy does not accept, which every node would refuse.
func (v View) accepted(s Spec) error {
	for _, id := range s.Documents {
		d, there := v.Documents[id]
		switch {
		case !there || !accepts(v.Policy, id):
			return &hullmark.Condition{
				Code: "document-not-accepted", Step: stepName, Title: "the policy in the cluster does not accept a document of the release", Got: id.String(),
				Next: "accept it (hullmark policy add document), and bring the policy to the cluster (policy push)",
			}
		case !agreed(v.Policy, d):
			agreement, _ := v.Policy.Agreement(d)
			return &hullmark.Condition{
				Code: "builders-too-few", Step: stepName, Title: "too few builders have signed a document of the release: " + agreement.String(), Got: id.String(),
				Next: "have a builder who is missing rebuild it (hullmark reproduce --attest), add what comes out (hullmark policy add document --attestation), then policy push",
			}
		case d.SVN < v.Policy.MinimumSVN:
			return &hullmark.Condition{
				Code: "svn-too-low", Step: stepName, Title: "the release has a lower security version than the policy wants", Expected: fmt.Sprint(v.Policy.MinimumSVN, " or more"), Got: fmt.Sprint(d.SVN),
				Next: "take a later release",
			}
		case hullmark.RootHash(d.Image.RootHash) != s.RootHash:
			return &hullmark.Condition{
				Code: "document-mixed", Step: stepName, Title: "the documents are not of one release", Expected: "root hash " + s.RootHash.String(), Got: fmt.Sprint(d.Image.RootHash),
				Next: "name the documents of one image alone",
			}
		}
	}
	return nil
}

// agreed reports whether enough of the policy's builders signed a document.
func agreed(p measurements.Policy, d measurements.Document) bool {
	agreement, err := p.Agreement(d)
	return err == nil && agreement.Met()
}

func accepts(p measurements.Policy, id hullmark.DocumentID) bool {
	for _, a := range p.Documents {
		if a.Document == id {
			return true
		}
	}
	return false
}

// obstacle says what keeps a node from being begun with, whenever it is; nil if nothing does.
func (v View) obstacle(s Spec, m Machine, judge Judge) *hullmark.Condition {
	if m.Update == nil {
		return &hullmark.Condition{
			Code: "updates-unknown", Step: stepName, Title: m.Name + " says nothing of its slots: its release takes no directions",
			Next: "give it another disk with a release that does, or leave it out (--except " + m.Name + ")",
		}
	}
	if s.Action == hullmark.UpdateRestart {
		return nil
	}
	id, err := v.documentFor(s, m)
	if err == nil && judge != nil {
		err = judge(v.move(m, v.Documents[id]))
	}
	var c *hullmark.Condition
	if err == nil || errors.As(err, &c) {
		return c
	}
	return hullmark.AsCondition(err, stepName, "step-refused")
}

// move is a machine's to a release.
func (v View) move(m Machine, to measurements.Document) Move {
	move := Move{Name: m.Name, Role: m.Role, From: v.Documents[m.Document], To: to}
	for _, other := range v.Machines {
		if node, ok := v.Nodes[other.Name]; ok && other.EKID != m.EKID {
			move.Others = append(move.Others, Other{Name: other.Name, Role: other.Role, Document: v.Documents[other.Document], Kubelet: node.Kubelet})
		}
	}
	return move
}

// there reports whether a machine runs the release for good: it says so, and its registers were the release's at its last boot.
func (v View) there(s Spec, m Machine) bool {
	d, known := v.Documents[m.Document]
	u := m.Update
	return s.Action == hullmark.UpdateTry && u != nil && u.Release() == s.RootHash && u.Running == u.Default && known && hullmark.RootHash(d.Image.RootHash) == s.RootHash
}
