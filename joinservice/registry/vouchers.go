package registry

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/measurements"
)

const (
	// VoucherNamespace holds the vouchers, and nothing else of Hullmark's: an enroller's account may write there alone.
	VoucherNamespace = "hullmark-vouchers"
	// Enroller is the account, a ServiceAccount of VoucherNamespace, that Manifest lets write vouchers.
	Enroller = "enroller"
	// voucherKind is of the objects, and the key that they hold a voucher under.
	voucherKind = "voucher"
)

// VoucherObject names the ConfigMap, in VoucherNamespace, that holds the voucher for a machine.
func VoucherObject(node hullmark.EKID) string { return voucherKind + "." + node.String() }

// Vouchers are what enrollers issue for machines that nobody names.
type Vouchers struct{ *connection }

// Voucher returns the signed voucher for a machine, of which nothing is checked; see joinservice.Vouchers. It reads the one object
// of that machine's name, which Manifest's admission policy keeps small.
func (r *Vouchers) Voucher(ctx context.Context, node hullmark.EKID) ([]byte, error) {
	object, err := call(ctx, r.connection, "read the voucher of machine "+node.String(), func(ctx context.Context) (*corev1.ConfigMap, error) {
		return r.vouchers.get(ctx, VoucherObject(node))
	})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return []byte(object.Data[voucherKind]), nil // Without the key it is an empty one, which is refused as that.
}

// PutVoucher stores a signed voucher for its machine, in the place of any that is there.
func (r *Vouchers) PutVoucher(ctx context.Context, signed []byte) error {
	v, _, err := measurements.ReadVoucher(signed)
	if err != nil {
		return err
	}
	object := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{
			Name: VoucherObject(v.EKID), Namespace: VoucherNamespace, Labels: map[string]string{managedLabel: managedBy, kindLabel: voucherKind},
		},
		Data: map[string]string{voucherKind: string(signed)},
	}
	_, err = call(ctx, r.connection, "store the voucher of machine "+v.EKID.String(), func(ctx context.Context) (*corev1.ConfigMap, error) {
		stored, err := r.vouchers.create(ctx, object)
		if apierrors.IsAlreadyExists(err) {
			return r.vouchers.update(ctx, object.Name, object)
		}
		return stored, err
	})
	return err
}

// DeleteVoucher deletes the voucher for a machine; one that is gone is no error. A machine that it admitted stays.
func (r *Vouchers) DeleteVoucher(ctx context.Context, node hullmark.EKID) error {
	return r.remove(ctx, "delete the voucher of machine "+node.String(), r.vouchers.delete, VoucherObject(node))
}

// ListVouchers returns all signed vouchers that can be read, by identity, of which no signature is checked. The others are named by
// the error, which comes beside them.
func (r *Vouchers) ListVouchers(ctx context.Context) ([][]byte, error) {
	var all [][]byte
	var unread []error
	err := r.EachVoucher(ctx, func(signed []byte, err error) {
		if err != nil {
			unread = append(unread, err)
			return
		}
		all = append(all, signed)
	})
	if err != nil {
		return nil, err
	}
	return all, errors.Join(unread...)
}

// EachVoucher calls do with each signed voucher, of which no signature is checked, or with why it cannot be read. It keeps none of them.
func (r *Vouchers) EachVoucher(ctx context.Context, do func(signed []byte, err error)) error {
	return r.eachConfigMap(ctx, "list the vouchers", r.vouchers, selector("="+voucherKind), func(object *corev1.ConfigMap) {
		signed := []byte(object.Data[voucherKind])
		v, _, err := measurements.ReadVoucher(signed)
		if err == nil && object.Name != VoucherObject(v.EKID) {
			err = fmt.Errorf("it is for machine %s", v.EKID)
		}
		if err != nil {
			signed, err = nil, fmt.Errorf("ConfigMap %s/%s: %w; it admits nobody, and can be deleted", VoucherNamespace, object.Name, err)
		}
		do(signed, err)
	})
}
