// SPDX-License-Identifier: Apache-2.0

package kvfolio

// #include <kvfolio/kvfolio.h>
import "C"

import "unsafe"

// The methods of this file may run at the same time as each other.

// SequenceInfo is what is known of a sequence (manager_types.h).
type SequenceInfo struct {
	Length          int // tokens, those of the open step included
	AcceptedLength  int // without draft tokens
	PublishedLength int
	TrimSinks       int
	TrimFirstKept   int
	InOpenStep      bool
	NumUnnamed      int
	ReservedTokens  int64
	HasCallerID     bool
	CallerID        uint64
	MaxTokens       int
	LastUse         uint64
	UseCount        uint64
	Priority        int
	Load            LoadID // that is open for it; 0: none
	// How often tokens of committed steps were cut. A row of an earlier plan is void if its sequence is
	// gone or Plan.Rewinds says another number.
	Rewinds int
	// Truncate to this length or more is refused only while the sequence is in the open step.
	RewindFrom int
}

// Info returns what is known of a sequence.
func (c *Cache) Info(sequence Sequence) (SequenceInfo, error) {
	out := C.kvfolio_sequence_info{struct_size: C.sizeof_kvfolio_sequence_info}
	s := take()
	code := C.kvfolio_info(c.p(), C.kvfolio_sequence(sequence), &out, &s.err)
	return SequenceInfo{
		Length:          int(out.length),
		AcceptedLength:  int(out.accepted_length),
		PublishedLength: int(out.published_length),
		TrimSinks:       int(out.trim_sinks),
		TrimFirstKept:   int(out.trim_first_kept),
		InOpenStep:      out.in_open_step != 0,
		NumUnnamed:      int(out.num_unnamed),
		ReservedTokens:  int64(out.reserved_tokens),
		HasCallerID:     out.has_caller_id != 0,
		CallerID:        uint64(out.caller_id),
		MaxTokens:       int(out.max_tokens),
		LastUse:         uint64(out.last_use),
		UseCount:        uint64(out.use_count),
		Priority:        int(out.priority),
		Load:            LoadID(out.load),
		Rewinds:         int(out.rewinds),
		RewindFrom:      int(out.rewind_from),
	}, c.done(s, code)
}

// BlockTable returns the physical block of each logical block, -1 if it was dropped. The slice is
// the cache's: valid until the sequence changes or is admitted, or Close.
func (c *Cache) BlockTable(sequence Sequence, group int) ([]int32, error) {
	var out C.kvfolio_i32s
	s := take()
	code := C.kvfolio_block_table(c.p(), C.kvfolio_sequence(sequence), i32(group), &out, &s.err)
	if err := c.done(s, code); err != nil {
		return nil, err
	}
	return sliceOf(&out), nil
}

// SlotMapping writes the slots of positions [begin, begin+len(out)); -1: the block was dropped.
func (c *Cache) SlotMapping(sequence Sequence, group, begin int, out []int32) error {
	s := take()
	return c.done(s, C.kvfolio_slot_mapping(c.p(), C.kvfolio_sequence(sequence), i32(group),
		i32(begin), first(out), C.int64_t(len(out)), &s.err))
}

// Find returns the open sequence with this caller id.
func (c *Cache) Find(callerID uint64) (Sequence, error) {
	s := take()
	code := C.kvfolio_find(c.p(), C.uint64_t(callerID), &s.id, &s.err)
	out := Sequence(s.id)
	return out, c.done(s, code)
}

// NumSequences returns how many sequences are open.
func (c *Cache) NumSequences() int { return int(C.kvfolio_num_sequences(c.p())) }

// Sequences returns the open sequences, in no promised order.
func (c *Cache) Sequences() []Sequence {
	out := make([]Sequence, c.NumSequences())
	return out[:C.kvfolio_sequences(c.p(), ids(out), C.int64_t(len(out)))]
}

// GroupUsage is the blocks of one group by state: Free + Held + Cached + Retiring = NumBlocks.
type GroupUsage struct {
	NumBlocks int
	Free      int
	Held      int
	Cached    int
	Retiring  int
	Evictable int
	Reserved  int // of the held ones
	Loading   int // of the held ones: those that open loads wait for
	OnHold    int // references of open holds
}

// Usage returns the blocks of a group by state.
func (c *Cache) Usage(group int) (GroupUsage, error) {
	out := C.kvfolio_group_usage{struct_size: C.sizeof_kvfolio_group_usage}
	s := take()
	code := C.kvfolio_usage(c.p(), i32(group), &out, &s.err)
	return GroupUsage{
		NumBlocks: int(out.num_blocks),
		Free:      int(out.free),
		Held:      int(out.held),
		Cached:    int(out.cached),
		Retiring:  int(out.retiring),
		Evictable: int(out.evictable),
		Reserved:  int(out.reserved),
		Loading:   int(out.loading),
		OnHold:    int(out.on_hold),
	}, c.done(s, code)
}

// BlockState says what a block is at the moment.
type BlockState int32

// States of a block.
const (
	BlockFree     BlockState = C.KVFOLIO_BLOCK_FREE
	BlockHeld     BlockState = C.KVFOLIO_BLOCK_HELD
	BlockCached   BlockState = C.KVFOLIO_BLOCK_CACHED
	BlockRetiring BlockState = C.KVFOLIO_BLOCK_RETIRING
)

// BlockState returns the state of a block.
func (c *Cache) BlockState(group, block int) (BlockState, error) {
	s := take()
	code := C.kvfolio_block_state(c.p(), i32(group), i32(block), &s.i32[0], &s.err)
	out := BlockState(s.i32[0])
	return out, c.done(s, code)
}

// RefCount returns the references to a block.
func (c *Cache) RefCount(group, block int) (int, error) {
	s := take()
	code := C.kvfolio_ref_count(c.p(), i32(group), i32(block), &s.i32[0], &s.err)
	out := int(s.i32[0])
	return out, c.done(s, code)
}

// IsFindable reports whether the prefix tree has an entry for the block.
func (c *Cache) IsFindable(group, block int) (bool, error) {
	s := take()
	code := C.kvfolio_is_findable(c.p(), i32(group), i32(block), &s.i32[0], &s.err)
	out := s.i32[0] != 0
	return out, c.done(s, code)
}

// FindableEnd returns one past the last position whose token can be found in the block; 0: none.
func (c *Cache) FindableEnd(group, block int) (int, error) {
	s := take()
	code := C.kvfolio_findable_end(c.p(), i32(group), i32(block), &s.i32[0], &s.err)
	out := int(s.i32[0])
	return out, c.done(s, code)
}

// BytesTotal returns the bytes of all blocks.
func (c *Cache) BytesTotal() int64 { return int64(C.kvfolio_bytes_total(c.p())) }

// BytesUsed returns the bytes of the held blocks.
func (c *Cache) BytesUsed() int64 { return int64(C.kvfolio_bytes_used(c.p())) }

// Metadata returns the bytes beside the blocks: reserved at creation, and in use.
func (c *Cache) Metadata() (reserved, used int64) {
	s := take()
	C.kvfolio_metadata(c.p(), &s.i64[0], &s.i64[1])
	reserved, used = int64(s.i64[0]), int64(s.i64[1])
	scratches.Put(s)
	return reserved, used
}

// NumRows returns a bound of Plan.Rows: a block table on the device needs that many rows.
func (c *Cache) NumRows() int { return int(C.kvfolio_num_rows(c.p())) }

// Widest returns the entries of a table of a sequence of Options.MaxSequenceTokens tokens.
func (c *Cache) Widest(group int) (int, error) {
	s := take()
	code := C.kvfolio_widest(c.p(), i32(group), &s.i32[0], &s.err)
	out := int(s.i32[0])
	return out, c.done(s, code)
}

// Describe returns text for people, one fact per line.
func (c *Cache) Describe() string {
	return textOf(func(out *C.char, capacity C.int64_t) C.int64_t {
		return C.kvfolio_describe(c.p(), out, capacity)
	})
}

// textOf returns the text that a *_describe() of C writes: it returns the bytes of all of it.
func textOf(describe func(out *C.char, capacity C.int64_t) C.int64_t) string {
	n := describe(nil, 0)
	text := make([]byte, int(n)+1)
	describe((*C.char)(unsafe.Pointer(&text[0])), C.int64_t(len(text)))
	return string(text[:n])
}

// Counters are counts since creation (manager_types.h says what each counts).
type Counters struct {
	BlocksAllocated     uint64
	BlocksFreed         uint64
	BlocksEvicted       uint64
	BlocksUnhung        uint64
	BlockCopies         uint64
	SequencesOpened     uint64
	SequencesClosed     uint64
	SequencesPreempted  uint64
	SequencesAborted    uint64
	Forks               uint64
	TokensLookedUp      uint64
	TokensReused        uint64
	TokensCommitted     uint64
	BlocksPublished     uint64
	PublicationsSkipped uint64
	BlocksUsedPeak      uint64
	TokensLoaded        uint64

	AnnouncementsSkipped uint64
}

// Counters returns counts since creation; zero for a closed cache.
func (c *Cache) Counters() Counters {
	out := C.kvfolio_counters{struct_size: C.sizeof_kvfolio_counters}
	C.kvfolio_get_counters(c.p(), &out, nil)
	return Counters{
		BlocksAllocated:     uint64(out.blocks_allocated),
		BlocksFreed:         uint64(out.blocks_freed),
		BlocksEvicted:       uint64(out.blocks_evicted),
		BlocksUnhung:        uint64(out.blocks_unhung),
		BlockCopies:         uint64(out.block_copies),
		SequencesOpened:     uint64(out.sequences_opened),
		SequencesClosed:     uint64(out.sequences_closed),
		SequencesPreempted:  uint64(out.sequences_preempted),
		SequencesAborted:    uint64(out.sequences_aborted),
		Forks:               uint64(out.forks),
		TokensLookedUp:      uint64(out.tokens_looked_up),
		TokensReused:        uint64(out.tokens_reused),
		TokensCommitted:     uint64(out.tokens_committed),
		BlocksPublished:     uint64(out.blocks_published),
		PublicationsSkipped: uint64(out.publications_skipped),
		BlocksUsedPeak:      uint64(out.blocks_used_peak),
		TokensLoaded:        uint64(out.tokens_loaded),

		AnnouncementsSkipped: uint64(out.announcements_skipped),
	}
}

// Groups returns the groups of the cache; nil if it is closed.
func (c *Cache) Groups() []GroupSpec {
	if c.p() == nil {
		return nil
	}
	out := make([]GroupSpec, c.numGroups)
	for i := range out {
		group := C.kvfolio_group_spec{struct_size: C.sizeof_kvfolio_group_spec}
		C.kvfolio_get_group(c.p(), C.int32_t(i), &group, nil)
		out[i] = groupOf(&group)
	}
	return out
}

// Options returns those of the cache, with derived values in place of 0; zero for a closed cache.
func (c *Cache) Options() Options {
	out := C.kvfolio_manager_options{struct_size: C.sizeof_kvfolio_manager_options}
	C.kvfolio_get_options(c.p(), &out, nil)
	return Options{
		MaxSequences:      int(out.max_sequences),
		MaxPins:           int(out.max_pins),
		MaxStepsInFlight:  int(out.max_steps_in_flight),
		Order:             Order(out.order),
		NoPrefixCache:     out.no_prefix_cache != 0,
		MaxSequenceTokens: int(out.max_sequence_tokens),
		MaxRuns:           int(out.max_runs),
		MaxIndexTokens:    int64(out.max_index_tokens),
		MaxRootKeyBytes:   int64(out.max_root_key_bytes),
		MaxTableEntries:   int64(out.max_table_entries),
		HashSeed:          uint64(out.hash_seed),
		HighWatermark:     float64(out.high_watermark),
		MaxRootKeys:       int(out.max_root_keys),
		MaxMediaExtents:   int(out.max_media_extents),
		VictimPolicy:      Policy(out.victim_policy),
		IDTag:             int(out.id_tag),
		MaxTransfers:      int(out.max_transfers),
		ListFindable:      out.list_findable != 0,
		CopiesByHost:      out.copies_by_host != 0,

		NullBlock:          out.null_block != 0,
		MaxAnnouncedTokens: int64(out.max_announced_tokens),
	}
}

// StateHash is a hash of all that later answers depend on, but for names: numbers of blocks and ids.
// An error while a load or a hold is open.
func (c *Cache) StateHash() (uint64, error) {
	s := take()
	var hash C.uint64_t
	err := c.done(s, C.kvfolio_state_hash(c.p(), &hash, &s.err))
	return uint64(hash), err
}

// CheckInvariants recounts everything, in O(state).
func (c *Cache) CheckInvariants() error {
	s := take()
	return c.done(s, C.kvfolio_check_invariants(c.p(), &s.err))
}
