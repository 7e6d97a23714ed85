package wire

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/hullmark/hullmark"
)

// Limits of what is said of updates, in bytes.
const (
	// MaxUpdateStatus bounds an encoded hullmark.UpdateStatus, MaxUpdateClaim the claim that it is in.
	MaxUpdateStatus = 16 << 10
	MaxUpdateClaim  = MaxUpdateStatus + 1<<10
	// MaxDirection bounds an encoded hullmark.UpdateDirection.
	MaxDirection = 16 << 10
)

// EncodeUpdateStatus returns what UpdateReply and UpdateClaim carry. Of why an update failed it has the root, with texts cut until all
// of it fits: a node that has much to say of a failure has to be heard all the same.
func EncodeUpdateStatus(s hullmark.UpdateStatus) (text []byte, err error) {
	failed := s.Failed
	for most := MaxText; ; most /= 2 {
		if failed != nil {
			s.Failed = cutTo(*failed.Root(), most)
		}
		text, err = json.Marshal(s)
		if err == nil && len(text) > MaxUpdateStatus && failed != nil && most > 0 {
			continue
		}
		if err == nil {
			err = atMost("status", len(text), MaxUpdateStatus)
		}
		if err != nil {
			return nil, fmt.Errorf("encode update status: %w", err)
		}
		return text, nil
	}
}

// cutTo returns a condition of which no text is longer than that, in bytes.
func cutTo(c hullmark.Condition, most int) *hullmark.Condition {
	for _, text := range []*string{&c.Code, &c.Step, &c.Title, &c.Expected, &c.Got, &c.Next} {
		*text = strings.ToValidUTF8((*text)[:min(len(*text), most)], "")
	}
	return &c
}

// DecodeUpdateStatus strictly decodes that.
func DecodeUpdateStatus(text []byte) (s hullmark.UpdateStatus, err error) {
	if err := hullmark.DecodeStrict(text, MaxUpdateStatus, &s); err != nil {
		return hullmark.UpdateStatus{}, fmt.Errorf("decode update status: %w", err)
	}
	return s, nil
}

// NewUpdateOrder says what to do, and by which document and signed policy that is to be judged; both are empty if the direction names none.
func NewUpdateOrder(d hullmark.UpdateDirection, document, policy []byte) (*UpdateOrder, error) {
	text, err := json.Marshal(d)
	if err != nil {
		return nil, fmt.Errorf("encode direction: %w", err)
	}
	o := &UpdateOrder{Direction: text, Document: document, Policy: policy}
	_, err = DecodeUpdateOrder(o)
	return o, err
}

// DecodeUpdateOrder enforces the limits of an order and strictly decodes its direction. What document and policy say is for the node
// to judge: here they are only there, or not, as the direction needs them, and bounded.
func DecodeUpdateOrder(o *UpdateOrder) (d hullmark.UpdateDirection, err error) {
	err = firstError(strict(o.ProtoReflect()), atMost("document", len(o.GetDocument()), MaxFile), atMost("policy", len(o.GetPolicy()), MaxFile))
	if err == nil {
		err = hullmark.DecodeStrict(o.GetDirection(), MaxDirection, &d)
	}
	if err == nil {
		err = d.Check()
	}
	if err == nil && d.Document != (hullmark.DocumentID{}) && sha256.Sum256(o.GetDocument()) != d.Document {
		err = fmt.Errorf("the document is not %s", d.Document)
	}
	if err != nil {
		return hullmark.UpdateDirection{}, fmt.Errorf("order: %w", err)
	}
	return d, nil
}

// CheckUpdateReply enforces the limits of what a node answers its operator, before it is used.
func CheckUpdateReply(r *UpdateReply) error {
	if err := firstError(strict(r.ProtoReflect()), checkCauses(r.GetFailed())); err != nil {
		return fmt.Errorf("reply from the node: %w", err)
	}
	return nil
}

// CheckUpdateAsk enforces the limits of what a node tells a join service. A claim inside is only bounded: DecodeUpdateClaim looks into it.
func CheckUpdateAsk(a *UpdateAsk) error {
	err := firstError(strict(a.ProtoReflect()), atMost("claim", len(a.GetClaim()), MaxUpdateClaim), exactly("mac", len(a.GetMac()), sha256.Size))
	if err != nil {
		return fmt.Errorf("message from the node: %w", err)
	}
	return nil
}

// DecodeUpdateClaim strictly decodes what UpdateAsk authenticates. An error leaves nothing to use.
func DecodeUpdateClaim(raw []byte) (c *UpdateClaim, s hullmark.UpdateStatus, err error) {
	c = &UpdateClaim{}
	err = atMost("claim", len(raw), MaxUpdateClaim)
	if err == nil {
		err = proto.Unmarshal(raw, c)
	}
	if err == nil {
		err = firstError(
			strict(c.ProtoReflect()),
			exactly("ekid", len(c.GetEkid()), 32), exactly("uuid", len(c.GetUuid()), 16), exactly("owner", len(c.GetOwner()), 32))
	}
	if err == nil {
		s, err = DecodeUpdateStatus(c.GetStatus())
	}
	if err != nil {
		return nil, hullmark.UpdateStatus{}, fmt.Errorf("decode update claim: %w", err)
	}
	return c, s, nil
}

// CheckUpdateAnswer enforces the limits of an answer, before it is used. An order inside is DecodeUpdateOrder's to look into.
func CheckUpdateAnswer(a *UpdateAnswer) error {
	if err := firstError(strict(a.ProtoReflect()), checkCauses(a.GetDenied())); err != nil {
		return fmt.Errorf("message from the service: %w", err)
	}
	return nil
}
