// SPDX-License-Identifier: Apache-2.0

package tiers

// #include <kvfolio/kvfolio_tiers.h>
import "C"

import (
	"runtime"
	"unsafe"

	kvfolio "github.com/kvfolio/kvfolio/bindings/go"
	"github.com/kvfolio/kvfolio/bindings/go/internal/bridge"
)

// Key is the name of a record: a digest, so it holds no text of a user. tier.h says its bytes.
type Key [72]byte

// Digest is a SHA-256: of a namespace, or of a prefix.
type Digest [32]byte

func (d Digest) toC() *C.kvfolio_digest {
	out := new(C.kvfolio_digest)
	for i, b := range d {
		out.bytes[i] = C.uint8_t(b)
	}
	return out
}

func digestOf(c *C.kvfolio_digest) Digest { return *(*Digest)(unsafe.Pointer(&c.bytes)) }

func (k Key) toC() C.kvfolio_tier_key {
	return *(*C.kvfolio_tier_key)(unsafe.Pointer(&k))
}

func keyOf(c *C.kvfolio_tier_key) Key { return *(*Key)(unsafe.Pointer(&c.bytes)) }

// ModelIdentity is what decides the bytes of a model's keys and values, beside the groups of the cache
// (identity.h). Two processes find each other's blocks only if all of it is equal. The texts up to
// Engine are required, and one that is empty is refused by its name.
type ModelIdentity struct {
	Model      string
	Weights    string // a digest or a revision
	Tokenizer  string
	ModelDType string // the type that the model computes with
	Positions  string // parameters of rope and the like
	Engine     string // name, revision and instruction set of what computes keys and values
	Layers     string // with several groups: which layers each has, such as "0-30/2;1-31/2"
	Scales     string // revision of quantization scales that the model brings

	Shard            int // which share of the KV heads this process has,
	NumShards        int // and of how many; 0: 1
	PipelineRank     int
	NumPipelineRanks int // 0: 1
	ContextRank      int
	NumContextRanks  int // 0: 1
}

func (m *ModelIdentity) toC(l *lent) *C.kvfolio_model_identity {
	if m == nil {
		return nil
	}
	return &C.kvfolio_model_identity{
		struct_size:        C.sizeof_kvfolio_model_identity,
		shard:              i32(m.Shard),
		num_shards:         i32(m.NumShards),
		pipeline_rank:      i32(m.PipelineRank),
		num_pipeline_ranks: i32(m.NumPipelineRanks),
		context_rank:       i32(m.ContextRank),
		num_context_ranks:  i32(m.NumContextRanks),
		model:              l.text(m.Model),
		weights:            l.text(m.Weights),
		tokenizer:          l.text(m.Tokenizer),
		model_dtype:        l.text(m.ModelDType),
		positions:          l.text(m.Positions),
		engine:             l.text(m.Engine),
		layers:             l.text(m.Layers),
		scales:             l.text(m.Scales),
	}
}

// Identity makes the names of blocks (identity.h). Close it, unless it is an Offload's.
type Identity struct {
	c     *C.kvfolio_identity
	owner *life // of its Offload, or nil
	birth
}

// p is null once the identity, or the Offload that has it, is closed.
func (n *Identity) p() *C.kvfolio_identity {
	if n == nil || n.owner != nil && n.owner.ended {
		return nil
	}
	return n.c
}

func (n *Identity) call(f func(e *C.kvfolio_error) C.int32_t) error {
	if n.p() == nil {
		return closed("Identity")
	}
	return call(f)
}

// NewIdentity makes the names of a model's blocks in a cache of these groups; NumBlocks does not count.
func NewIdentity(model *ModelIdentity, groups []kvfolio.GroupSpec) (*Identity, error) {
	if err := checkABI(); err != nil {
		return nil, err
	}
	var l lent
	defer l.free()
	m, specs := model.toC(&l), (*C.kvfolio_group_spec)(bridge.Groups(groups))
	var out *C.kvfolio_identity
	err := call(func(e *C.kvfolio_error) C.int32_t {
		return C.kvfolio_identity_create(m, specs, i32(len(groups)), &out, e)
	})
	if err != nil {
		return nil, err
	}
	n := &Identity{c: out, birth: bornOf()}
	runtime.SetFinalizer(n, func(n *Identity) { n.leaked("Identity") })
	return n, nil
}

// Close frees the identity. Does nothing to one that belongs to an Offload.
func (n *Identity) Close() {
	if n == nil || n.owner != nil || n.c == nil {
		return
	}
	runtime.SetFinalizer(n, nil)
	C.kvfolio_identity_destroy(n.c)
	n.c = nil
}

// CheckGroups returns ErrInvalidArgument with the first group and field that differ; NumBlocks may.
func (n *Identity) CheckGroups(groups []kvfolio.GroupSpec) error {
	specs := (*C.kvfolio_group_spec)(bridge.Groups(groups))
	return n.call(func(e *C.kvfolio_error) C.int32_t {
		return C.kvfolio_identity_check_groups(n.c, specs, i32(len(groups)), e)
	})
}

// Unit returns the smallest block size: as many tokens have a hash of their own.
func (n *Identity) Unit() int { return int(C.kvfolio_identity_unit(n.p())) }

// NumGroups returns the number of groups.
func (n *Identity) NumGroups() int { return int(C.kvfolio_identity_num_groups(n.p())) }

// Namespace returns that of a group; -1: of the model.
func (n *Identity) Namespace(group int) (Digest, error) {
	var out C.kvfolio_digest
	err := n.call(func(e *C.kvfolio_error) C.int32_t {
		return C.kvfolio_identity_namespace(n.c, i32(group), &out, e)
	})
	return digestOf(&out), err
}

// IdentityField is one that went into the namespaces.
type IdentityField struct{ Name, Value string }

// Fields returns a copy of all that went into the namespaces, in order.
func (n *Identity) Fields() ([]IdentityField, error) {
	if n.p() == nil {
		return nil, closed("Identity")
	}
	var out []IdentityField
	for i := C.int32_t(0); i < C.kvfolio_identity_num_fields(n.c); i++ {
		var name, value C.kvfolio_text
		err := n.call(func(e *C.kvfolio_error) C.int32_t {
			return C.kvfolio_identity_field(n.c, i, &name, &value, e)
		})
		if err != nil {
			return nil, err
		}
		out = append(out, IdentityField{textOf(name), textOf(value)})
	}
	return out, nil
}

func textOf(t C.kvfolio_text) string { return C.GoStringN(t.data, C.int(t.size)) }

// Root returns the hash of no tokens under a root; nil: the key without any bytes. epoch counts what
// was forgotten, see Offload.Epoch.
func (n *Identity) Root(root *kvfolio.Root, epoch uint64) (Digest, error) {
	p, err := promptOf(&kvfolio.OpenOptions{Root: root})
	if err != nil {
		return Digest{}, err
	}
	var out C.kvfolio_digest
	err = n.call(func(e *C.kvfolio_error) C.int32_t {
		return C.kvfolio_identity_root(n.c, p.root, C.uint64_t(epoch), &out, e)
	})
	runtime.KeepAlive(root)
	return digestOf(&out), err
}

// Next returns the hash of tokens behind those of `before`, which are `begin`: a multiple of Unit.
// There are 1 to Unit tokens. media may hold spans that lie elsewhere.
func (n *Identity) Next(before Digest, begin int, tokens []int32,
	media []kvfolio.MediaSpan) (Digest, error) {
	p, err := promptOf(&kvfolio.OpenOptions{Media: media})
	if err != nil {
		return Digest{}, err
	}
	var out C.kvfolio_digest
	err = n.call(func(e *C.kvfolio_error) C.int32_t {
		return C.kvfolio_identity_next(n.c, before.toC(), i32(begin), first(tokens),
			C.int64_t(len(tokens)), p.media, p.n, &out, e)
	})
	return digestOf(&out), err
}

// Key returns the name of a block of a group whose tokens end where `tokens` ends.
func (n *Identity) Key(group int, tokens Digest) (Key, error) {
	var out C.kvfolio_tier_key
	err := n.call(func(e *C.kvfolio_error) C.int32_t {
		return C.kvfolio_identity_key(n.c, i32(group), tokens.toC(), &out, e)
	})
	return keyOf(&out), err
}

// ForeignModel is what decides the bytes of an engine that hashes its blocks by itself
// (foreign_identity.h). All texts but Scales are required.
type ForeignModel struct {
	Engine     string
	Model      string
	Weights    string
	ModelDType string
	Hash       string // the algorithm of the engine's hashes
	HashSeed   string // what its root hash begins with; "none" if there is nothing
	Layout     string // element type, heads, block size, axes, ranks: all of a record
	Scales     string
	NumGroups  int // 0: 1
	Shard      int // which share of a block this process has,
	NumShards  int // and of how many; 0: 1
}

// ForeignIdentity makes keys from an engine's own hashes. Close it.
type ForeignIdentity struct {
	c *C.kvfolio_foreign_identity
	birth
}

func (n *ForeignIdentity) call(f func(e *C.kvfolio_error) C.int32_t) error {
	if n == nil || n.c == nil {
		return closed("ForeignIdentity")
	}
	return call(f)
}

// NewForeignIdentity makes the names of an engine's blocks.
func NewForeignIdentity(model *ForeignModel) (*ForeignIdentity, error) {
	if err := checkABI(); err != nil {
		return nil, err
	}
	if model == nil {
		return nil, failf(kvfolio.ErrInvalidArgument, "NewForeignIdentity: the model is nil")
	}
	var l lent
	defer l.free()
	m := &C.kvfolio_foreign_model{
		struct_size: C.sizeof_kvfolio_foreign_model,
		num_groups:  i32(model.NumGroups),
		shard:       i32(model.Shard),
		num_shards:  i32(model.NumShards),
		engine:      l.text(model.Engine),
		model:       l.text(model.Model),
		weights:     l.text(model.Weights),
		model_dtype: l.text(model.ModelDType),
		hash:        l.text(model.Hash),
		hash_seed:   l.text(model.HashSeed),
		layout:      l.text(model.Layout),
		scales:      l.text(model.Scales),
	}
	var out *C.kvfolio_foreign_identity
	err := call(func(e *C.kvfolio_error) C.int32_t {
		return C.kvfolio_foreign_identity_create(m, &out, e)
	})
	if err != nil {
		return nil, err
	}
	n := &ForeignIdentity{c: out, birth: bornOf()}
	runtime.SetFinalizer(n, func(n *ForeignIdentity) { n.leaked("ForeignIdentity") })
	return n, nil
}

// Close frees the identity.
func (n *ForeignIdentity) Close() {
	if n == nil || n.c == nil {
		return
	}
	runtime.SetFinalizer(n, nil)
	C.kvfolio_foreign_identity_destroy(n.c)
	n.c = nil
}

// Namespace returns that of a group; -1: of the model.
func (n *ForeignIdentity) Namespace(group int) (Digest, error) {
	var out C.kvfolio_digest
	err := n.call(func(e *C.kvfolio_error) C.int32_t {
		return C.kvfolio_foreign_identity_namespace(n.c, i32(group), &out, e)
	})
	return digestOf(&out), err
}

// Key returns the name of a block of a group by the engine's hash of it, of any length. salt keeps
// tenants apart; it may be empty.
func (n *ForeignIdentity) Key(group int, engineHash []byte, salt string) (Key, error) {
	var l lent
	defer l.free()
	text := l.text(salt)
	var out C.kvfolio_tier_key
	err := n.call(func(e *C.kvfolio_error) C.int32_t {
		return C.kvfolio_foreign_identity_key(n.c, i32(group), &text, firstByte(engineHash),
			C.int64_t(len(engineHash)), &out, e)
	})
	return keyOf(&out), err
}
