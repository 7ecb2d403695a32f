// SPDX-License-Identifier: Apache-2.0

package tiers

// #include <kvfolio/kvfolio_tiers.h>
//
// // With bytes for void, so that cgo does not look for pointers around them.
// static int32_t kvfolio_go_seal(const kvfolio_record_keys* keys, const kvfolio_record_info* info,
//                                const uint8_t* payload, uint8_t* header, kvfolio_error* error) {
//   return kvfolio_record_seal(keys, info, payload, header, error);
// }
// static int32_t kvfolio_go_verify(const kvfolio_record_keys* keys,
//                                  const kvfolio_record_info* expected, const uint8_t* header,
//                                  const uint8_t* payload, kvfolio_error* error) {
//   return kvfolio_record_verify(keys, expected, header, payload, error);
// }
// static int32_t kvfolio_go_read(const uint8_t* header, kvfolio_record_info* out,
//                                kvfolio_error* error) {
//   return kvfolio_record_read(header, out, error);
// }
import "C"

import (
	"runtime"

	kvfolio "github.com/kvfolio/kvfolio/bindings/go"
)

// RecordKeys are 32 random bytes each that only the host knows (RecordKeyOptions in record.h). With a
// Key a record is believed only if it was sealed with it, or with Accepted, while one is replaced by
// the other. They are copied. Print shows none of their bytes.
type RecordKeys struct {
	Key      *[32]byte // nil: none; records have a checksum then
	Accepted *[32]byte // nil: none
}

// String says which keys there are.
func (k RecordKeys) String() string {
	said := map[bool]string{false: "no key", true: "a key"}
	return said[k.Key != nil] + ", " + said[k.Accepted != nil] + " accepted"
}

// GoString is String.
func (k RecordKeys) GoString() string { return k.String() }

func keyToC(key *[32]byte, l *lent) *C.uint8_t {
	if key == nil {
		return nil
	}
	return (*C.uint8_t)(l.bytes(key[:]))
}

// RecordHeader stands in front of a record, and shows whether its bytes are those of the name.
type RecordHeader [C.KVFOLIO_RECORD_HEADER_BYTES]byte

// RecordInfo is what a header says beside its seal. Key is enough; the rest is the caller's.
type RecordInfo struct {
	Key          Key
	Layout       Digest
	Begin        int
	End          int
	Epoch        uint64
	Writer       uint64
	Owner        uint64
	PayloadBytes int64  // ReadRecordHeader fills it in
	KeyID        uint32 // the same: of the key that sealed it, 0: none
}

func (i *RecordInfo) toC(payload []byte) *C.kvfolio_record_info {
	return &C.kvfolio_record_info{
		struct_size:   C.sizeof_kvfolio_record_info,
		key:           i.Key.toC(),
		layout:        *i.Layout.toC(),
		payload_bytes: C.int64_t(len(payload)),
		begin:         i32(i.Begin),
		end:           i32(i.End),
		epoch:         C.uint64_t(i.Epoch),
		writer:        C.uint64_t(i.Writer),
		owner:         C.uint64_t(i.Owner),
	}
}

// Sealer seals and verifies records for a medium of the caller's own. Tiers on a disk and in Redis do
// so by themselves. Close it.
type Sealer struct {
	c    *C.kvfolio_record_keys // null: without a key
	open bool
	birth
}

// NewSealer makes a sealer; without keys its seals are checksums.
func NewSealer(keys RecordKeys) (*Sealer, error) {
	if err := checkABI(); err != nil {
		return nil, err
	}
	s := &Sealer{open: true, birth: bornOf()}
	if keys.Key != nil || keys.Accepted != nil {
		var l lent
		defer l.free()
		key, accepted := keyToC(keys.Key, &l), keyToC(keys.Accepted, &l)
		var out *C.kvfolio_record_keys
		err := call(func(e *C.kvfolio_error) C.int32_t {
			return C.kvfolio_record_keys_create(key, accepted, &out, e)
		})
		if err != nil {
			return nil, err
		}
		s.c = out
	}
	runtime.SetFinalizer(s, func(s *Sealer) { s.leaked("Sealer") })
	return s, nil
}

// Close frees the keys.
func (s *Sealer) Close() {
	if s == nil || !s.open {
		return
	}
	runtime.SetFinalizer(s, nil)
	C.kvfolio_record_keys_destroy(s.c)
	s.c, s.open = nil, false
}

func (s *Sealer) call(info *RecordInfo, f func(e *C.kvfolio_error) C.int32_t) error {
	if s == nil || !s.open {
		return closed("Sealer")
	}
	if info == nil {
		return failf(kvfolio.ErrInvalidArgument, "a record has no RecordInfo")
	}
	return call(f)
}

// Seal returns the header for a record.
func (s *Sealer) Seal(info *RecordInfo, payload []byte) (RecordHeader, error) {
	var header RecordHeader
	err := s.call(info, func(e *C.kvfolio_error) C.int32_t {
		return C.kvfolio_go_seal(s.c, info.toC(payload), firstByte(payload), firstByte(header[:]), e)
	})
	return header, err
}

// Verify returns ErrCorrupt, with what is wrong, unless header and payload are those of `expected`,
// whose Writer and Owner are not looked at, and were sealed with one of the keys.
func (s *Sealer) Verify(expected *RecordInfo, header *RecordHeader, payload []byte) error {
	if s != nil && s.open && header == nil {
		return failf(kvfolio.ErrInvalidArgument, "Verify: the header is nil")
	}
	return s.call(expected, func(e *C.kvfolio_error) C.int32_t {
		return C.kvfolio_go_verify(s.c, expected.toC(payload), firstByte(header[:]),
			firstByte(payload), e)
	})
}

// ReadRecordHeader reads a header; its seal is not checked. ErrCorrupt: it is none.
func ReadRecordHeader(header *RecordHeader) (RecordInfo, error) {
	if header == nil {
		return RecordInfo{}, failf(kvfolio.ErrInvalidArgument, "ReadRecordHeader: the header is nil")
	}
	out := C.kvfolio_record_info{struct_size: C.sizeof_kvfolio_record_info}
	err := call(func(e *C.kvfolio_error) C.int32_t {
		return C.kvfolio_go_read(firstByte(header[:]), &out, e)
	})
	if err != nil {
		return RecordInfo{}, err
	}
	return RecordInfo{
		Key:          keyOf(&out.key),
		Layout:       digestOf(&out.layout),
		Begin:        int(out.begin),
		End:          int(out.end),
		Epoch:        uint64(out.epoch),
		Writer:       uint64(out.writer),
		Owner:        uint64(out.owner),
		PayloadBytes: int64(out.payload_bytes),
		KeyID:        uint32(out.key_id),
	}, nil
}
