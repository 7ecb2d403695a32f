// SPDX-License-Identifier: Apache-2.0

package kvfolio

// #include <kvfolio/kvfolio.h>
//
// // Bytes in place of void*: see kernels.go.
// static int32_t kvfolio_go_store_append(kvfolio_token_store* store, const uint8_t* k,
//                                        const uint8_t* v, int64_t num_tokens, int32_t dtype,
//                                        kvfolio_error* error) {
//   return kvfolio_token_store_append(store, k, v, num_tokens, dtype, error);
// }
// static int32_t kvfolio_go_store_gather(const kvfolio_token_store* store, int64_t begin,
//                                        int64_t num_tokens, int32_t dtype, uint8_t* k, uint8_t* v,
//                                        kvfolio_error* error) {
//   return kvfolio_token_store_gather(store, begin, num_tokens, dtype, k, v, error);
// }
import "C"

import (
	"runtime"
	"unsafe"
)

// TokenStoreOptions of a store (token_store.h says the limits).
type TokenStoreOptions struct {
	HeadDimK   int
	HeadDimV   int // 0: there is no V
	NumKVHeads int // 0: 1
	DType      DType
	BlockSize  int // 0: 16
	MaxTokens  int // the exact cap
}

// TokenStore holds one sequence without a cache: a row of K, and of V if it has V, for each token.
// Close it.
type TokenStore struct {
	c     *C.kvfolio_token_store
	group GroupSpec // what a view of it shows
	birth
}

func (t *TokenStore) p() *C.kvfolio_token_store {
	if t == nil {
		return nil
	}
	return t.c
}

func (t *TokenStore) isClosed() bool { return t.p() == nil }

func (t *TokenStore) done(s *scratch, code C.int32_t) error {
	return s.give(code, t.p() == nil, "TokenStore")
}

func newTokenStore(c *C.kvfolio_token_store, group GroupSpec, born birth) *TokenStore {
	t := &TokenStore{c: c, group: group, birth: born}
	runtime.SetFinalizer(t, func(t *TokenStore) { t.leaked("TokenStore") })
	return t
}

// NewTokenStore makes an empty store. A nil resource is memory of the process.
func NewTokenStore(options TokenStoreOptions, resource *MemoryResource) (*TokenStore, error) {
	if err := checkABI(); err != nil {
		return nil, err
	}
	o := C.kvfolio_token_store_options{
		struct_size:  C.sizeof_kvfolio_token_store_options,
		head_dim_k:   i32(options.HeadDimK),
		head_dim_v:   i32(options.HeadDimV),
		num_kv_heads: i32(options.NumKVHeads),
		dtype:        C.int32_t(options.DType),
		block_size:   i32(options.BlockSize),
		max_tokens:   i32(options.MaxTokens),
	}
	s := take()
	var out *C.kvfolio_token_store
	code := C.kvfolio_token_store_create(&o, resource.toC(), &out, &s.err)
	if err := s.give(code, false, ""); err != nil {
		return nil, err
	}
	group := GroupSpec{NumKVHeads: options.NumKVHeads, HeadDimK: options.HeadDimK,
		HeadDimV: options.HeadDimV, DType: options.DType, BlockSize: options.BlockSize, Format: NHD}
	if group.NumKVHeads == 0 {
		group.NumKVHeads = 1
	}
	return newTokenStore(out, group, bornOf()), nil
}

// Close frees the store.
func (t *TokenStore) Close() {
	if t.p() == nil {
		return
	}
	runtime.SetFinalizer(t, nil)
	C.kvfolio_token_store_destroy(t.p())
	t.c = nil
}

// Copy returns a store of its own with the same options and tokens. It takes memory from the same
// resource.
func (t *TokenStore) Copy() (*TokenStore, error) {
	s := take()
	var out *C.kvfolio_token_store
	code := C.kvfolio_token_store_copy(t.p(), &out, &s.err)
	if err := t.done(s, code); err != nil {
		return nil, err
	}
	return newTokenStore(out, t.group, bornOf()), nil
}

// rows checks that k and v are rows without gaps of the shape of the store; one may be none.
func (t *TokenStore) rows(call string, k, v *Rows) (n int, dtype DType, err error) {
	if t.p() == nil {
		return 0, 0, failf(ErrFailedPrecondition, "%s: the TokenStore is closed", call)
	}
	for i, r := range []*Rows{k, v} {
		if r.isNone() {
			continue
		}
		name, headDim := "k", t.group.HeadDimK
		if i == 1 {
			name, headDim = "v", t.group.HeadDimV
		}
		if !r.isDense() || r.NumHeads != t.group.NumKVHeads || r.HeadDim != headDim {
			return 0, 0, failf(ErrInvalidArgument,
				"%s: %s has %d heads of %d elements, allowed: %d of %d, without gaps", call, name,
				r.NumHeads, r.HeadDim, t.group.NumKVHeads, headDim)
		}
		if err := r.check(call, name, 1, 0); err != nil {
			return 0, 0, err
		}
		n, dtype = r.NumTokens, r.DType
	}
	if !k.isNone() && !v.isNone() && (k.NumTokens != v.NumTokens || k.DType != v.DType) {
		return 0, 0, failf(ErrInvalidArgument,
			"%s: k and v have different tokens or element types", call)
	}
	return n, dtype, nil
}

// Append appends the tokens of k and v, all or none. v is Rows{} if the store has no V.
func (t *TokenStore) Append(k, v Rows) error {
	n, dtype, err := t.rows("Append", &k, &v)
	if err != nil {
		return err
	}
	s := take()
	return t.done(s, C.kvfolio_go_store_append(t.p(), k.data, v.data, C.int64_t(n), C.int32_t(dtype),
		&s.err))
}

// Gather copies tokens begin, begin+1, ... to as many rows as k and v have; one may be Rows{}.
func (t *TokenStore) Gather(begin int, k, v Rows) error {
	n, dtype, err := t.rows("Gather", &k, &v)
	if err != nil {
		return err
	}
	s := take()
	return t.done(s, C.kvfolio_go_store_gather(t.p(), C.int64_t(begin), C.int64_t(n),
		C.int32_t(dtype), k.data, v.data, &s.err))
}

// At returns the bytes of the row of K of token i where it lies, all heads; ErrUnsupported for
// Int8 and E4M3. The slice is the store's: valid until Close.
func (t *TokenStore) At(i int) ([]byte, error) {
	s := take()
	var out unsafe.Pointer
	code := C.kvfolio_token_store_at(t.p(), C.int64_t(i), &out, &s.err)
	if err := t.done(s, code); err != nil {
		return nil, err
	}
	return unsafe.Slice((*byte)(out),
		t.group.NumKVHeads*t.group.HeadDimK*t.group.DType.bytes()), nil
}

// VAt returns the bytes of the row of V of token i, as At does.
func (t *TokenStore) VAt(i int) ([]byte, error) {
	s := take()
	var out unsafe.Pointer
	code := C.kvfolio_token_store_v_at(t.p(), C.int64_t(i), &out, &s.err)
	if err := t.done(s, code); err != nil {
		return nil, err
	}
	return unsafe.Slice((*byte)(out),
		t.group.NumKVHeads*t.group.HeadDimV*t.group.DType.bytes()), nil
}

// String returns what the store holds, as C++ prints it: "token store: 20 of 64 tokens of f64, ...".
func (t *TokenStore) String() string {
	if t.p() == nil {
		return "token store: closed"
	}
	return textOf(func(out *C.char, capacity C.int64_t) C.int64_t {
		return C.kvfolio_token_store_describe(t.p(), out, capacity)
	})
}

// Clear forgets all tokens.
func (t *TokenStore) Clear() { C.kvfolio_token_store_clear(t.p()) }

// Size returns the tokens in the store.
func (t *TokenStore) Size() int { return int(C.kvfolio_token_store_size(t.p())) }

// MaxTokens returns the cap.
func (t *TokenStore) MaxTokens() int { return int(C.kvfolio_token_store_max_tokens(t.p())) }

// MemoryBytes returns the bytes taken from the resource.
func (t *TokenStore) MemoryBytes() int64 { return int64(C.kvfolio_token_store_memory_bytes(t.p())) }

// BytesUsed returns the bytes of the blocks in use.
func (t *TokenStore) BytesUsed() int64 { return int64(C.kvfolio_token_store_bytes_used(t.p())) }

// View makes a view for the kernels. The block table of the sequence is 0, 1, 2, ...
func (t *TokenStore) View() (*View, error) {
	s := take()
	var out *C.kvfolio_view
	code := C.kvfolio_token_store_view(t.p(), &out, &s.err)
	if err := t.done(s, code); err != nil {
		return nil, err
	}
	return newView(out, t, t.group, bornOf()), nil
}
