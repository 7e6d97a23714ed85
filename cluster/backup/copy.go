package backup

import (
	"bytes"
	"fmt"

	"go.etcd.io/bbolt"
	"go.etcd.io/etcd/api/v3/mvccpb"
)

// Limits of one transaction, whose pages lie in memory until it ends.
const batchEntries, batchBytes = 10000, 16 << 20

// raised is a key that nobody has: its deletion is the newest entry, so that the new etcd's
// revisions begin after all of the old one's, though that one's newest entries may be dropped.
const raised = "/registry/"

// copyTo writes all buckets, and of the bucket key what the plan keeps. Leases and alarms are the old etcd's.
func (d *database) copyTo(to *bbolt.DB, s *state, p *plan) error {
	return d.tx.ForEach(func(name []byte, bucket *bbolt.Bucket) error {
		if bucket == nil {
			return fmt.Errorf("the snapshot has an entry %.40q in the place of a bucket; use another backup", name)
		}
		out := &writer{db: to, name: name}
		defer out.rollback()
		if err := out.begin(); err != nil {
			return err
		}
		var err error
		switch {
		case bytes.Equal(name, leaseBucket), bytes.Equal(name, alarmBucket):
		case bytes.Equal(name, keyBucket):
			err = d.copyKeys(out, s, p)
		default:
			err = d.each(name, out.put)
		}
		if err != nil {
			return err
		}
		return out.commit()
	})
}

// copyKeys writes what the plan keeps of the keys' last entries, each where it was.
func (d *database) copyKeys(out *writer, s *state, p *plan) error {
	var kv mvccpb.KeyValue
	err := d.each(keyBucket, func(k, v []byte) error {
		if err := decodeEntry(&kv, v); err != nil {
			return err
		}
		if !s.isLive(k, string(kv.Key)) {
			return nil
		}
		switch keep, changed, err := p.apply(&kv); {
		case err != nil || !keep:
			return err
		case changed:
			if v, err = kv.Marshal(); err != nil {
				return err
			}
		}
		return out.put(k, v)
	})
	if err != nil {
		return err
	}
	v, err := (&mvccpb.KeyValue{Key: []byte(raised)}).Marshal()
	if err != nil {
		return err
	}
	return out.put(append(s.next[:], 't'), v)
}

// writer fills one bucket in transactions of bounded size.
type writer struct {
	db   *bbolt.DB
	name []byte

	tx             *bbolt.Tx
	bucket         *bbolt.Bucket
	entries, bytes int
}

func (w *writer) begin() (err error) {
	if w.tx, err = w.db.Begin(true); err != nil {
		return err
	}
	if w.bucket, err = w.tx.CreateBucketIfNotExists(w.name); err != nil {
		return err
	}
	// Keys come in their order: pages need no room for others.
	w.bucket.FillPercent = 0.9
	w.entries, w.bytes = 0, 0
	return nil
}

// put writes an entry; its key follows all that were put before.
func (w *writer) put(k, v []byte) error {
	if w.entries++; w.entries > batchEntries || w.bytes > batchBytes {
		if err := w.commit(); err != nil {
			return err
		}
		if err := w.begin(); err != nil {
			return err
		}
	}
	w.bytes += len(k) + len(v)
	return w.bucket.Put(k, v)
}

func (w *writer) commit() error {
	err := w.tx.Commit()
	w.tx = nil
	return err
}

// rollback ends a transaction that an error left open.
func (w *writer) rollback() {
	if w.tx != nil {
		_ = w.tx.Rollback()
	}
}
