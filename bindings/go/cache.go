// SPDX-License-Identifier: Apache-2.0

package kvfolio

// #include <stdlib.h>
// #include <kvfolio/kvfolio.h>
import "C"

import (
	"runtime"
	"time"
	"unsafe"
)

// Sequence is the id of an open sequence. 0: none.
type Sequence uint64

// PinID is the id of a pin. 0: none.
type PinID uint64

// Ticket is the number of a step: 1, 2, 3, ...
type Ticket uint64

// Order says in which order steps complete.
type Order int32

// Orders.
const (
	InOrder   Order = C.KVFOLIO_IN_ORDER  // one stream: Complete(t) completes all earlier steps
	Unordered Order = C.KVFOLIO_UNORDERED // steps may complete in any order
)

// Policy says which sequence to preempt first.
type Policy int32

// Policies.
const (
	LRU             Policy = C.KVFOLIO_LRU               // the oldest last use
	LFU             Policy = C.KVFOLIO_LFU               // the fewest uses
	Longest         Policy = C.KVFOLIO_LONGEST           // the most tokens
	LowestPriority  Policy = C.KVFOLIO_LOWEST_PRIORITY   // the smallest priority
	PolicyOfOptions Policy = C.KVFOLIO_POLICY_OF_OPTIONS // that of Options
)

// Options of a cache (ManagerOptions in manager_types.h, which says the limits).
type Options struct {
	MaxSequences      int // 0: 1024
	MaxPins           int // 0: 256; -1: none
	MaxStepsInFlight  int // 0: 2
	Order             Order
	NoPrefixCache     bool  // nothing is ever findable
	MaxSequenceTokens int   // expected; 0: derived
	MaxRuns           int   // 0: derived
	MaxIndexTokens    int64 // 0: derived
	MaxRootKeyBytes   int64 // 0: 2^20; -1: none
	MaxTableEntries   int64 // 0: derived
	HashSeed          uint64
	HighWatermark     float64 // 0: 0.90; -1: 0
	MaxRootKeys       int     // 0: 1024
	MaxMediaExtents   int     // 0: 4096; -1: none
	VictimPolicy      Policy
	IDTag             int  // 0 to 65535; a program with two caches gives each its own
	MaxTransfers      int  // loads, and holds, that are open at once. 0: 256; -1: none
	ListFindable      bool // keep a list for TakeFindable
	// With storage: the host runs the copies of each plan in stream order, as it must with several
	// steps in flight: on a device by kernels of its own, since CopyBlocks knows no stream. false:
	// Commit refuses a step whose copies RunCopies has not run.
	CopiesByHost bool
	// Block 0 of each group is held for ever and never given out, and plans are padded with 0. It is
	// counted nowhere.
	NullBlock bool
	// Tokens of all announcements together that are not published yet. 0: those of the largest group.
	MaxAnnouncedTokens int64
}

func (o *Options) toC() *C.kvfolio_manager_options {
	if o == nil {
		return nil
	}
	return &C.kvfolio_manager_options{
		struct_size:          C.sizeof_kvfolio_manager_options,
		max_sequences:        i32(o.MaxSequences),
		max_pins:             i32(o.MaxPins),
		max_steps_in_flight:  i32(o.MaxStepsInFlight),
		order:                C.int32_t(o.Order),
		no_prefix_cache:      b32(o.NoPrefixCache),
		max_sequence_tokens:  i32(o.MaxSequenceTokens),
		max_runs:             i32(o.MaxRuns),
		max_index_tokens:     C.int64_t(o.MaxIndexTokens),
		max_root_key_bytes:   C.int64_t(o.MaxRootKeyBytes),
		max_table_entries:    C.int64_t(o.MaxTableEntries),
		hash_seed:            C.uint64_t(o.HashSeed),
		high_watermark:       C.double(o.HighWatermark),
		max_root_keys:        i32(o.MaxRootKeys),
		max_media_extents:    i32(o.MaxMediaExtents),
		victim_policy:        C.int32_t(o.VictimPolicy),
		id_tag:               i32(o.IDTag),
		max_transfers:        i32(o.MaxTransfers),
		list_findable:        b32(o.ListFindable),
		copies_by_host:       b32(o.CopiesByHost),
		null_block:           b32(o.NullBlock),
		max_announced_tokens: C.int64_t(o.MaxAnnouncedTokens),
	}
}

// Cache keeps the blocks of many sequences (KVCacheManager in manager.h, which says each call in
// full). Close it.
type Cache struct {
	c         *C.kvfolio_manager
	storage   *Storage
	numGroups int
	plan      *C.kvfolio_step_plan  // C memory that Plan writes to, since it holds C pointers
	groups    *C.kvfolio_group_plan // [numGroups], the same
	life      *life
	yielded   time.Duration // when BeginStep last gave the processor away
	birth
}

// p returns the handle, and nil of a Cache that is nil or closed: the library refuses that.
func (c *Cache) p() *C.kvfolio_manager {
	if c == nil {
		return nil
	}
	return c.c
}

func (c *Cache) done(s *scratch, code C.int32_t) error { return s.give(code, c.p() == nil, "Cache") }

func newCache(c *C.kvfolio_manager, storage *Storage, born birth) (*Cache, error) {
	n := int(C.kvfolio_num_groups(c))
	cache := &Cache{
		c: c, storage: storage, numGroups: n,
		plan:   (*C.kvfolio_step_plan)(C.calloc(1, C.sizeof_kvfolio_step_plan)),
		groups: (*C.kvfolio_group_plan)(C.calloc(C.size_t(n), C.sizeof_kvfolio_group_plan)),
		life:   &life{},
		birth:  born,
	}
	if storage != nil {
		storage.c = C.kvfolio_manager_storage(c)
		storage.owner = cache.life
	}
	runtime.SetFinalizer(cache, func(c *Cache) { c.leaked("Cache") })
	if cache.plan == nil || cache.groups == nil {
		cache.Close()
		return nil, failf(ErrOutOfMemory, "no memory for the plans of %d groups", n)
	}
	cache.plan.struct_size = C.sizeof_kvfolio_step_plan
	for i := range unsafe.Slice(cache.groups, n) {
		unsafe.Slice(cache.groups, n)[i].struct_size = C.sizeof_kvfolio_group_plan
	}
	return cache, nil
}

// NewCache makes a cache of ids only: the engine has the bytes and runs the copies of each plan.
func NewCache(groups []GroupSpec, options *Options) (*Cache, error) {
	if err := checkABI(); err != nil {
		return nil, err
	}
	specs := groupsToC(groups)
	s := take()
	var out *C.kvfolio_manager
	code := C.kvfolio_manager_create(&specs[0], i32(len(groups)), options.toC(), &out, &s.err)
	if err := s.give(code, false, ""); err != nil {
		return nil, err
	}
	return newCache(out, nil, bornOf())
}

// NewCacheWithStorage takes the storage over; if it fails, the storage stays the caller's.
func NewCacheWithStorage(storage *Storage, options *Options) (*Cache, error) {
	if storage.p() == nil || storage.owner != nil {
		return nil, failf(ErrFailedPrecondition, "the Storage is closed or belongs to a Cache")
	}
	s := take()
	var out *C.kvfolio_manager
	// A variable of its own: C writes to it, and the storage is one of Go.
	taken := storage.c
	code := C.kvfolio_manager_create_with_storage(&taken, options.toC(), &out, &s.err)
	if err := s.give(code, false, ""); err != nil {
		return nil, err
	}
	storage.c = nil
	runtime.SetFinalizer(storage, nil)
	return newCache(out, storage, bornOf())
}

// Close frees the cache and its storage. Slices of plans and tables are not to be read after it.
func (c *Cache) Close() {
	if c.p() == nil {
		return
	}
	runtime.SetFinalizer(c, nil)
	C.kvfolio_manager_destroy(c.c)
	C.free(unsafe.Pointer(c.plan))
	C.free(unsafe.Pointer(c.groups))
	c.c, c.plan, c.groups = nil, nil, nil
	c.life.closed = true
}

// Storage returns that of the cache, or nil. It belongs to the cache.
func (c *Cache) Storage() *Storage {
	if c == nil {
		return nil
	}
	return c.storage
}

// View makes a view of a group of the cache's storage, as Storage.View does.
func (c *Cache) View(group, layer int) (*View, error) {
	if c.p() == nil {
		return nil, failf(ErrFailedPrecondition, "the Cache is closed")
	}
	if c.storage == nil {
		return nil, failf(ErrUnsupported, "View: the Cache has no Storage")
	}
	return c.storage.view(group, layer, bornOf())
}

// Root is what prefixes are found under (RootKey in root_key.h). Close it.
type Root struct {
	c *C.kvfolio_root
	birth
}

// RootKey is the parts of a Root: bytes of any content.
type RootKey struct {
	Model          string
	Adapter        string
	AdapterVersion string
	TenantSalt     string
	Epoch          uint64
}

// NewRoot makes a root key. Make it once for each tenant and adapter.
func NewRoot(key RootKey) (*Root, error) {
	// One array of all bytes, so that each part has an address for the length of the call.
	all := []byte(key.Model + key.Adapter + key.AdapterVersion + key.TenantSalt + "\x00")
	at := 0
	next := func(part string) (*C.char, C.int64_t) {
		p := (*C.char)(unsafe.Pointer(&all[at]))
		at += len(part)
		return p, C.int64_t(len(part))
	}
	model, modelBytes := next(key.Model)
	adapter, adapterBytes := next(key.Adapter)
	version, versionBytes := next(key.AdapterVersion)
	salt, saltBytes := next(key.TenantSalt)
	s := take()
	var out *C.kvfolio_root
	code := C.kvfolio_root_create(model, modelBytes, adapter, adapterBytes, version, versionBytes,
		salt, saltBytes, C.uint64_t(key.Epoch), &out, &s.err)
	if err := s.give(code, false, ""); err != nil {
		return nil, err
	}
	return newRoot(out, bornOf()), nil
}

func newRoot(c *C.kvfolio_root, born birth) *Root {
	r := &Root{c: c, birth: born}
	runtime.SetFinalizer(r, func(r *Root) { r.leaked("Root") })
	return r
}

// Close frees the key. Sequences that were opened under it are as they were.
func (r *Root) Close() {
	if r == nil || r.c == nil {
		return
	}
	runtime.SetFinalizer(r, nil)
	C.kvfolio_root_destroy(r.c)
	r.c = nil
}

// MediaSpan says which positions are an image or the like (MediaSpan in root_key.h).
type MediaSpan struct {
	Begin           int
	End             int
	AttendsToItself bool
	ContentID       [32]byte // a digest of the content: all zeros are refused
}

// Publish says what other sequences may find of a sequence.
type Publish int32

// What to publish.
const (
	PublishAll        Publish = C.KVFOLIO_PUBLISH_ALL
	PublishFullBlocks Publish = C.KVFOLIO_PUBLISH_FULL_BLOCKS
	PublishNothing    Publish = C.KVFOLIO_PUBLISH_NOTHING
)

// OpenOptions of a sequence, and of the calls about a prompt.
type OpenOptions struct {
	Root          *Root       // nil: a key without any bytes
	Media         []MediaSpan // ascending and disjoint
	NoPrefixCache bool        // neither looks for a prefix nor publishes one
	NoLookUp      bool        // finds nothing, but publishes
	Publish       Publish
	HasCallerID   bool
	CallerID      uint64 // the caller's own name, see Find
	MaxTokens     int    // 0: no limit of its own
	Priority      int
	LateNames     bool // SetTokens may come until the sequence is closed
	Announce      bool // Soon tells others that the prompt is going to be appended
}

// prompt is what the calls about a prompt take besides the tokens.
type prompt struct {
	root    *C.kvfolio_root
	media   *C.kvfolio_media_span
	n       C.int64_t
	options *C.kvfolio_open_options
}

func (o *OpenOptions) toC() (prompt, error) {
	if o == nil {
		return prompt{}, nil
	}
	if err := checkPriority(o.Priority); err != nil {
		return prompt{}, err
	}
	p := prompt{options: &C.kvfolio_open_options{
		struct_size:     C.sizeof_kvfolio_open_options,
		no_prefix_cache: b32(o.NoPrefixCache),
		no_look_up:      b32(o.NoLookUp),
		publish:         C.int32_t(o.Publish),
		has_caller_id:   b32(o.HasCallerID),
		max_tokens:      i32(o.MaxTokens),
		caller_id:       C.uint64_t(o.CallerID),
		priority:        i32(o.Priority),
		late_names:      b32(o.LateNames),
		announce:        b32(o.Announce),
	}}
	if o.Root != nil {
		// A null root would be another key: the one without any bytes.
		if p.root = o.Root.c; p.root == nil {
			return p, failf(ErrFailedPrecondition, "the Root is closed")
		}
	}
	if len(o.Media) > 0 {
		media := make([]C.kvfolio_media_span, len(o.Media))
		for i := range o.Media {
			from, to := &o.Media[i], &media[i]
			to.struct_size = C.sizeof_kvfolio_media_span
			to.begin, to.end = i32(from.Begin), i32(from.End)
			to.attends_to_itself = b32(from.AttendsToItself)
			for j, b := range from.ContentID {
				to.content_id[j] = C.uint8_t(b)
			}
		}
		p.media, p.n = &media[0], C.int64_t(len(media))
	}
	return p, nil
}

// Opened is a sequence, and how much of its prompt need not be computed.
type Opened struct {
	Sequence     Sequence
	CachedTokens int  // append the tokens from here on
	Soon         Soon // what the prompt would find later, see Cache.Soon
}

// Open opens a sequence and holds what the cache has of the prompt.
func (c *Cache) Open(tokens []int32, options *OpenOptions) (Opened, error) {
	p, err := options.toC()
	if err != nil {
		return Opened{}, err
	}
	s := take()
	code := C.kvfolio_open(c.p(), p.root, first(tokens), C.int64_t(len(tokens)), p.media, p.n,
		p.options, &s.id, &s.found, &s.err)
	out := Opened{Sequence(s.id), int(s.found.cached_tokens), s.soon()}
	runtime.KeepAlive(options)
	return out, c.done(s, code)
}

// OpenUnnamed opens a sequence and appends numTokens unnamed tokens to the open step.
func (c *Cache) OpenUnnamed(numTokens int, options *OpenOptions) (Sequence, error) {
	p, err := options.toC()
	if err != nil {
		return 0, err
	}
	s := take()
	code := C.kvfolio_open_unnamed(c.p(), p.root, C.int64_t(numTokens), p.media, p.n, p.options, &s.id,
		&s.err)
	out := Sequence(s.id)
	runtime.KeepAlive(options)
	return out, c.done(s, code)
}

// Probe returns the tokens that Open would find. It changes nothing.
func (c *Cache) Probe(tokens []int32, options *OpenOptions) (int, error) {
	p, err := options.toC()
	if err != nil {
		return 0, err
	}
	s := take()
	code := C.kvfolio_probe(c.p(), p.root, first(tokens), C.int64_t(len(tokens)), p.media, p.n,
		p.options, &s.i32[0], &s.err)
	out := int(s.i32[0])
	runtime.KeepAlive(options)
	return out, c.done(s, code)
}

// Soon is what a prompt will find once the sequence By has appended and published it; no tokens:
// nothing of it is to come.
type Soon struct {
	Tokens int
	By     Sequence
}

// soon is what a call found, of which a call that fails writes nothing.
func (s *scratch) soon() Soon { return Soon{int(s.found.soon_tokens), Sequence(s.found.soon_by)} }

// Soon returns how far a hit of the prompt will reach, by what sequences announce
// (OpenOptions.Announce). It changes nothing.
func (c *Cache) Soon(tokens []int32, options *OpenOptions) (Soon, error) {
	p, err := options.toC()
	if err != nil {
		return Soon{}, err
	}
	s := take()
	code := C.kvfolio_soon(c.p(), p.root, first(tokens), C.int64_t(len(tokens)), p.media, p.n,
		p.options, &s.i32[0], &s.id, &s.err)
	out := Soon{int(s.i32[0]), Sequence(s.id)}
	runtime.KeepAlive(options)
	return out, c.done(s, code)
}

// ForkOptions of the child.
type ForkOptions struct {
	HasCallerID bool
	CallerID    uint64
	Priority    int
}

// Fork opens a sequence that has the same tokens and shares every block. Unordered: the child takes
// no append before the step of the parent's last one is complete.
func (c *Cache) Fork(parent Sequence, options *ForkOptions) (Sequence, error) {
	var o *C.kvfolio_fork_options
	if options != nil {
		if err := checkPriority(options.Priority); err != nil {
			return 0, err
		}
		o = &C.kvfolio_fork_options{
			struct_size:   C.sizeof_kvfolio_fork_options,
			has_caller_id: b32(options.HasCallerID),
			caller_id:     C.uint64_t(options.CallerID),
			priority:      i32(options.Priority),
		}
	}
	s := take()
	code := C.kvfolio_fork(c.p(), C.kvfolio_sequence(parent), o, &s.id, &s.err)
	out := Sequence(s.id)
	return out, c.done(s, code)
}

// Adopt gives an empty sequence blocks that are held already, by one table for each group.
func (c *Cache) Adopt(sequence Sequence, tables [][]int32, numTokens int) error {
	var all []int32
	sizes := make([]C.int64_t, len(tables)+1)
	for i, table := range tables {
		all = append(all, table...)
		sizes[i] = C.int64_t(len(table))
	}
	s := take()
	return c.done(s, C.kvfolio_adopt(c.p(), C.kvfolio_sequence(sequence), first(all), &sizes[0],
		i32(len(tables)), i32(numTokens), &s.err))
}

// Truncate forgets the tokens from position numTokens on, drafts too; those in front of it stay
// undecided. Never refused from SequenceInfo.RewindFrom on, unless the sequence is in the open step
// or numTokens is beyond its length. Below, what is read there may not be there any more (close, and
// open the first numTokens tokens again), or to take it back is a shortage.
func (c *Cache) Truncate(sequence Sequence, numTokens int) error {
	s := take()
	return c.done(s, C.kvfolio_truncate(c.p(), C.kvfolio_sequence(sequence), i32(numTokens), &s.err))
}

// Clear truncates to 0. The sequence stays open, and its trim is forgotten.
func (c *Cache) Clear(sequence Sequence) error {
	s := take()
	return c.done(s, C.kvfolio_clear(c.p(), C.kvfolio_sequence(sequence), &s.err))
}

// Trim keeps the first numSinks and the last window tokens, and returns how many went.
func (c *Cache) Trim(sequence Sequence, numSinks, window int) (int, error) {
	s := take()
	code := C.kvfolio_trim(c.p(), C.kvfolio_sequence(sequence), C.int64_t(numSinks), C.int64_t(window),
		&s.i32[0], &s.err)
	out := int(s.i32[0])
	return out, c.done(s, code)
}

// CloseSequence ends a sequence. What it published stays findable.
func (c *Cache) CloseSequence(sequence Sequence) error {
	s := take()
	return c.done(s, C.kvfolio_close(c.p(), C.kvfolio_sequence(sequence), &s.err))
}

// Cancel ends a sequence whose request was given up: takes it out of the open step, if it is in it, and
// closes it.
func (c *Cache) Cancel(sequence Sequence) error {
	s := take()
	return c.done(s, C.kvfolio_cancel(c.p(), C.kvfolio_sequence(sequence), &s.err))
}

// Preempt is CloseSequence for a sequence that must make room; takes it out of the open step first.
func (c *Cache) Preempt(sequence Sequence) error {
	s := take()
	return c.done(s, C.kvfolio_preempt(c.p(), C.kvfolio_sequence(sequence), &s.err))
}

// Touch counts as a use though nothing is appended, for LRU and LFU.
func (c *Cache) Touch(sequence Sequence) error {
	s := take()
	return c.done(s, C.kvfolio_touch(c.p(), C.kvfolio_sequence(sequence), &s.err))
}

// SetPriority is for LowestPriority.
func (c *Cache) SetPriority(sequence Sequence, priority int) error {
	if err := checkPriority(priority); err != nil {
		return err
	}
	s := take()
	return c.done(s, C.kvfolio_set_priority(c.p(), C.kvfolio_sequence(sequence), i32(priority),
		&s.err))
}

// CopyTo makes target a deep equal of the cache. Slices of plans of target are not to be read after
// it.
func (c *Cache) CopyTo(target *Cache) error {
	if target.p() == nil {
		return failf(ErrFailedPrecondition, "the target of CopyTo is nil or closed")
	}
	s := take()
	err := c.done(s, C.kvfolio_copy_to(c.p(), target.c, &s.err))
	runtime.KeepAlive(target)
	return err
}
