// SPDX-License-Identifier: Apache-2.0

package kvfolio

// #include <kvfolio/kvfolio.h>
//
// // What a step calls. To check a pointer to an opaque struct cgo puts it in an interface, which
// // takes heap memory each time; it does not look at a number. C memory does not move, so its
// // address may be one.
// static int32_t go_begin_step(uintptr_t m, uint64_t now_us, kvfolio_ticket* out,
//                              kvfolio_error* error) {
//   return kvfolio_begin_step((kvfolio_manager*)m, now_us, out, error);
// }
// static int32_t go_append(uintptr_t m, kvfolio_sequence sequence, const int32_t* tokens,
//                          int64_t n, int32_t draft, kvfolio_error* error) {
//   return kvfolio_append((kvfolio_manager*)m, sequence, tokens, n, draft, error);
// }
// static int32_t go_append_prompt(uintptr_t m, kvfolio_sequence sequence, const int32_t* prompt,
//                                 int64_t n, int64_t at_most, int32_t* done,
//                                 kvfolio_error* error) {
//   return kvfolio_append_prompt((kvfolio_manager*)m, sequence, prompt, n, at_most, done, error);
// }
// static int32_t go_append_unnamed(uintptr_t m, kvfolio_sequence sequence, int64_t n,
//                                  int32_t draft, kvfolio_error* error) {
//   return kvfolio_append_unnamed((kvfolio_manager*)m, sequence, n, draft, error);
// }
// static int32_t go_append_each(uintptr_t m, const kvfolio_sequence* sequences,
//                               const int32_t* tokens, int64_t n, int64_t* done,
//                               kvfolio_error* error) {
//   return kvfolio_append_each((kvfolio_manager*)m, sequences, tokens, n, done, error);
// }
// static int32_t go_append_unnamed_each(uintptr_t m, const kvfolio_sequence* sequences, int64_t n,
//                                       int64_t* done, kvfolio_error* error) {
//   return kvfolio_append_unnamed_each((kvfolio_manager*)m, sequences, n, done, error);
// }
// static int32_t go_set_tokens(uintptr_t m, kvfolio_sequence sequence, const int32_t* tokens,
//                              int64_t n, kvfolio_error* error) {
//   return kvfolio_set_tokens((kvfolio_manager*)m, sequence, tokens, n, error);
// }
// static int32_t go_set_tokens_each(uintptr_t m, const kvfolio_sequence* sequences,
//                                   const int32_t* tokens, int64_t n, int64_t* done,
//                                   kvfolio_error* error) {
//   return kvfolio_set_tokens_each((kvfolio_manager*)m, sequences, tokens, n, done, error);
// }
// static int32_t go_plan(uintptr_t m, const kvfolio_plan_options* options, const int32_t* strides,
//                        uintptr_t plan, uintptr_t groups, int32_t n, kvfolio_error* error) {
//   kvfolio_plan_options ours = *options;
//   ours.table_stride.data = strides;
//   return kvfolio_plan((kvfolio_manager*)m, &ours, (void*)plan, (void*)groups, n, error);
// }
// static int32_t go_plan_bytes(uintptr_t m, const kvfolio_plan_options* options,
//                              const int32_t* strides, int64_t* bytes, kvfolio_error* error) {
//   kvfolio_plan_options ours = *options;
//   ours.table_stride.data = strides;
//   return kvfolio_plan_bytes((kvfolio_manager*)m, &ours, bytes, error);
// }
// static int32_t go_commit(uintptr_t m, kvfolio_ticket ticket, kvfolio_error* error) {
//   return kvfolio_commit((kvfolio_manager*)m, ticket, error);
// }
// static int32_t go_complete(uintptr_t m, kvfolio_ticket ticket, kvfolio_error* error) {
//   return kvfolio_complete((kvfolio_manager*)m, ticket, error);
// }
// static int32_t go_finish(uintptr_t m, kvfolio_ticket ticket, kvfolio_error* error) {
//   return kvfolio_finish((kvfolio_manager*)m, ticket, error);
// }
// static int32_t go_drop(uintptr_t m, kvfolio_ticket ticket, kvfolio_error* error) {
//   return kvfolio_drop((kvfolio_manager*)m, ticket, error);
// }
// static int32_t go_accept(uintptr_t m, kvfolio_sequence sequence, int32_t n,
//                          kvfolio_error* error) {
//   return kvfolio_accept((kvfolio_manager*)m, sequence, n, error);
// }
// static int32_t go_run_copies(uintptr_t m, kvfolio_error* error) {
//   return kvfolio_run_copies((kvfolio_manager*)m, error);
// }
import "C"

import (
	"runtime"
	"time"
	"unsafe"
)

// ids returns where an array of ids begins, and null for an empty one.
func ids(s []Sequence) *C.kvfolio_sequence {
	if len(s) == 0 {
		return nil
	}
	return (*C.kvfolio_sequence)(unsafe.Pointer(&s[0]))
}

// h is the handle as a number. The caller keeps the cache alive: done() does.
func (c *Cache) h() C.uintptr_t { return C.uintptr_t(uintptr(unsafe.Pointer(c.p()))) }

// What Go's scheduler calls a long time is 10 ms.
const yieldAfter = 4 * time.Millisecond

var processStart = time.Now()

// yield lets other goroutines run, at most every few milliseconds. A goroutine that is nearly always
// in C is never seen between two calls: after 10 ms without a turn the monitor of the runtime takes
// the processor away from each of its calls, every 20 microseconds, which cost a fifth of a decode
// step. A turn of its own ends that.
func (c *Cache) yield() {
	if now := time.Since(processStart); now-c.yielded > yieldAfter {
		c.yielded = now
		runtime.Gosched()
	}
}

// BeginStep opens a step. nowUS is not read yet.
func (c *Cache) BeginStep(nowUS uint64) (Ticket, error) {
	if c.p() != nil {
		c.yield()
	}
	s := take()
	code := C.go_begin_step(c.h(), C.uint64_t(nowUS), &s.id, &s.err)
	out := Ticket(s.id)
	return out, c.done(s, code)
}

// Append reserves slots for tokens whose K and V this step writes. The last `draft` of them are
// guesses: Accept decides. Behind undecided drafts an append assumes that all of them stand. The
// whole prompt behind what Open found of it is refused: append the tokens from the cached ones on.
func (c *Cache) Append(sequence Sequence, tokens []int32, draft int) error {
	s := take()
	return c.done(s, C.go_append(c.h(), C.kvfolio_sequence(sequence), first(tokens),
		C.int64_t(len(tokens)), i32(draft), &s.err))
}

// AppendPrompt appends the next tokens of the prompt that the sequence lacks, at most atMost, and
// returns how many; 0: it has them all. A prompt that differs from what the sequence has said is
// refused.
func (c *Cache) AppendPrompt(sequence Sequence, prompt []int32, atMost int) (int, error) {
	s := take()
	code := C.go_append_prompt(c.h(), C.kvfolio_sequence(sequence), first(prompt),
		C.int64_t(len(prompt)), C.int64_t(atMost), &s.i32[0], &s.err)
	n := int(s.i32[0])
	return n, c.done(s, code)
}

// AppendUnnamed appends tokens whose ids are not known yet: SetTokens names them.
func (c *Cache) AppendUnnamed(sequence Sequence, numTokens, draft int) error {
	s := take()
	return c.done(s, C.go_append_unnamed(c.h(), C.kvfolio_sequence(sequence),
		C.int64_t(numTokens), i32(draft), &s.err))
}

// AppendEach appends tokens[i] to sequences[i]: a decode step in one call. It ends at the first
// that fails, with its error: the first n are in the step then.
func (c *Cache) AppendEach(sequences []Sequence, tokens []int32) (n int, err error) {
	if len(sequences) != len(tokens) {
		return 0, failf(ErrInvalidArgument, "AppendEach: %d tokens for %d sequences", len(tokens),
			len(sequences))
	}
	s := take()
	code := C.go_append_each(c.h(), ids(sequences), first(tokens), C.int64_t(len(sequences)),
		&s.i64[0], &s.err)
	n = int(s.i64[0])
	return n, c.done(s, code)
}

// AppendUnnamedEach appends one unnamed token to each sequence, as AppendEach does.
func (c *Cache) AppendUnnamedEach(sequences []Sequence) (n int, err error) {
	s := take()
	code := C.go_append_unnamed_each(c.h(), ids(sequences), C.int64_t(len(sequences)), &s.i64[0],
		&s.err)
	n = int(s.i64[0])
	return n, c.done(s, code)
}

// SetTokens names the oldest unnamed tokens of a sequence, in order. What a step samples is the input
// of the next one.
func (c *Cache) SetTokens(sequence Sequence, tokens []int32) error {
	s := take()
	return c.done(s, C.go_set_tokens(c.h(), C.kvfolio_sequence(sequence), first(tokens),
		C.int64_t(len(tokens)), &s.err))
}

// SetTokensEach names one token of each sequence. It ends at the first that fails: the first n have
// their names then.
func (c *Cache) SetTokensEach(sequences []Sequence, tokens []int32) (n int, err error) {
	if len(sequences) != len(tokens) {
		return 0, failf(ErrInvalidArgument, "SetTokensEach: %d tokens for %d sequences", len(tokens),
			len(sequences))
	}
	s := take()
	code := C.go_set_tokens_each(c.h(), ids(sequences), first(tokens), C.int64_t(len(sequences)),
		&s.i64[0], &s.err)
	n = int(s.i64[0])
	return n, c.done(s, code)
}

// Undo takes a sequence out of the open step.
func (c *Cache) Undo(sequence Sequence) error {
	s := take()
	return c.done(s, C.kvfolio_undo(c.p(), C.kvfolio_sequence(sequence), &s.err))
}

// PlanOptions says which arrays a plan has.
type PlanOptions struct {
	PadWithZero    bool // false: block tables are padded with -1
	NoBlockTables  bool
	ChangedEntries bool
	FlashInfer     bool
	SharedPrefixes bool
	Positions      bool
	CallerIDs      bool

	// Fixed shapes (PlanOptions in step_plan.h), as a graph that was captured once wants them.
	//
	// A stride beyond what a table of the group can ever have, the blocks of 2^30 tokens or
	// MaxTableEntries, is refused; Widest is allowed always. Without Memory a step keeps a buffer up to
	// one and a half times as large as its largest plan.
	TableStride     []int32 // by group, or empty; 0: as wide as the longest table of the step
	PaddedSequences int     // rows; those behind the step's sequences have no tokens. 0: those of the step
	PaddedTokens    int     // slots; those behind the step's tokens are -1. 0: those of the step
	Int64Slots      bool    // SlotMapping64 in place of SlotMapping
	// Where the arrays of numbers are written, if not nil: memory that Go does not own, pinned memory of
	// a device's library, say, from a multiple of 8 on; each array begins a multiple of 16 bytes behind
	// its begin. It stays until the step has ended or was planned again. PlanBytes says how many bytes
	// there must be.
	Memory      unsafe.Pointer
	MemoryBytes int64
}

// toC fills *to and returns the strides, which C gets beside it.
func (o *PlanOptions) toC(to *C.kvfolio_plan_options) *C.int32_t {
	*to = C.kvfolio_plan_options{struct_size: C.sizeof_kvfolio_plan_options}
	if o == nil {
		return nil
	}
	to.pad_with_zero = b32(o.PadWithZero)
	to.no_block_tables = b32(o.NoBlockTables)
	to.changed_entries = b32(o.ChangedEntries)
	to.flashinfer = b32(o.FlashInfer)
	to.shared_prefixes = b32(o.SharedPrefixes)
	to.positions = b32(o.Positions)
	to.caller_ids = b32(o.CallerIDs)
	to.padded_sequences = i32(o.PaddedSequences)
	to.padded_tokens = i32(o.PaddedTokens)
	to.int64_slots = b32(o.Int64Slots)
	to.memory = o.Memory
	to.memory_bytes = C.int64_t(o.MemoryBytes)
	to.table_stride.size = C.int64_t(len(o.TableStride))
	if len(o.TableStride) == 0 {
		return nil
	}
	return (*C.int32_t)(unsafe.Pointer(&o.TableStride[0]))
}

// SharedPrefix: sequences [FirstSequence, FirstSequence+NumSequences) of the plan begin with the
// same NumBlocks blocks.
type SharedPrefix struct {
	FirstSequence int32
	NumSequences  int32
	NumBlocks     int32
}

// GroupPlan is the arrays of one group (GroupPlan in step_plan.h). What was not asked for is empty.
type GroupPlan struct {
	SlotMapping      []int32 // [tokens], -1: K and V are there already
	SlotMapping64    []int64 // the same with Int64Slots, else empty
	BlockTable       []int32 // [sequences, BlockTableStride]
	BlockTableStride int
	KVIndptr         []int32 // FlashInfer
	KVIndices        []int32
	KVLastPageLen    []int32
	KVFirstLive      []int32 // the first position behind the gap in the list of pages; 0: no gap
	CopySrc          []int32 // whole blocks to copy before the step writes
	CopyDst          []int32
	SharedPrefixes   []SharedPrefix
	ChangedRows      []int32
	ChangedColumns   []int32
	ChangedBlocks    []int32
}

// Plan is what an engine needs to run a step (StepPlan in step_plan.h). With PaddedSequences its arrays
// of numbers have that many rows; Sequences and CallerIDs name those of the step.
//
// Its slices are the library's memory: they are valid until Complete, Finish, Drop or Fail of that
// Ticket, the next Plan of it, or Close. Reading them later reads arrays of another step, or memory
// that was freed; nothing checks it. Clone returns a plan that stays.
type Plan struct {
	Ticket        Ticket
	NumTokens     int
	Sequences     []Sequence // in append order
	Rows          []int32    // [sequences]: a number below NumRows that a sequence keeps
	QueryStart    []int32    // [sequences + 1], tokens before each sequence
	KVLens        []int32    // [sequences], length with this step's tokens
	TrimSinks     []int32    // [sequences]: position p is visible iff p < TrimSinks[i] or
	TrimFirstKept []int32    // p >= TrimFirstKept[i]
	Rewinds       []int32    // [sequences]: SequenceInfo.Rewinds of each
	CallerIDs     []uint64   // [sequences]; 0: it has none. Empty unless asked for
	Positions     []int32    // [tokens]; empty unless asked for
	Groups        []GroupPlan
	Number        uint64 // counts the plans of the cache from 1 on, this one included
	// With ChangedEntries: the Number of the plan that these lists come after; 0: they name every
	// entry. Without: the largest uint64.
	Follows uint64
}

func sliceOf(a *C.kvfolio_i32s) []int32 {
	if a.size == 0 {
		return nil
	}
	return unsafe.Slice((*int32)(a.data), int(a.size))
}

func sliceOf64(a *C.kvfolio_i64s) []int64 {
	if a.size == 0 {
		return nil
	}
	return unsafe.Slice((*int64)(a.data), int(a.size))
}

// PlanBytes returns how many bytes of PlanOptions.Memory every plan with these options fits into.
// ErrInvalidArgument: they leave a size open (PaddedSequences, PaddedTokens, a TableStride), or a size
// is out of range.
func (c *Cache) PlanBytes(options *PlanOptions) (int64, error) {
	s := take()
	strides := options.toC(&s.plan)
	code := C.go_plan_bytes(c.h(), &s.plan, strides, &s.i64[0], &s.err)
	bytes := int64(s.i64[0])
	return bytes, c.done(s, code)
}

// Plan returns the arrays of the open step; the type says how long they live. Another Plan of the
// step overwrites them.
func (c *Cache) Plan(options *PlanOptions) (*Plan, error) {
	if c.p() == nil {
		return nil, failf(ErrFailedPrecondition, "the Cache is closed")
	}
	s := take()
	strides := options.toC(&s.plan)
	code := C.go_plan(c.h(), &s.plan, strides, C.uintptr_t(uintptr(unsafe.Pointer(c.plan))),
		C.uintptr_t(uintptr(unsafe.Pointer(c.groups))), C.int32_t(c.numGroups), &s.err)
	if err := c.done(s, code); err != nil {
		return nil, err
	}
	from := c.plan
	plan := &Plan{
		Ticket:        Ticket(from.ticket),
		NumTokens:     int(from.num_tokens),
		Rows:          sliceOf(&from.rows),
		QueryStart:    sliceOf(&from.query_start),
		KVLens:        sliceOf(&from.kv_lens),
		TrimSinks:     sliceOf(&from.trim_sinks),
		TrimFirstKept: sliceOf(&from.trim_first_kept),
		Rewinds:       sliceOf(&from.rewinds),
		Positions:     sliceOf(&from.positions),
		Groups:        make([]GroupPlan, c.numGroups),
		Number:        uint64(from.number),
		Follows:       uint64(from.follows),
	}
	if from.num_sequences > 0 {
		plan.Sequences = unsafe.Slice((*Sequence)(unsafe.Pointer(from.sequences)),
			int(from.num_sequences))
	}
	if from.caller_ids != nil && from.num_sequences > 0 {
		plan.CallerIDs = unsafe.Slice((*uint64)(unsafe.Pointer(from.caller_ids)),
			int(from.num_sequences))
	}
	groups := unsafe.Slice(c.groups, c.numGroups)
	for i := range groups {
		g := &groups[i]
		plan.Groups[i] = GroupPlan{
			SlotMapping:      sliceOf(&g.slot_mapping),
			SlotMapping64:    sliceOf64(&g.slot_mapping_64),
			BlockTable:       sliceOf(&g.block_table),
			BlockTableStride: int(g.block_table_stride),
			KVIndptr:         sliceOf(&g.kv_indptr),
			KVIndices:        sliceOf(&g.kv_indices),
			KVLastPageLen:    sliceOf(&g.kv_last_page_len),
			KVFirstLive:      sliceOf(&g.kv_first_live),
			CopySrc:          sliceOf(&g.copy_src),
			CopyDst:          sliceOf(&g.copy_dst),
			ChangedRows:      sliceOf(&g.changed_rows),
			ChangedColumns:   sliceOf(&g.changed_columns),
			ChangedBlocks:    sliceOf(&g.changed_blocks),
		}
		if g.num_shared_prefixes > 0 {
			plan.Groups[i].SharedPrefixes = unsafe.Slice(
				(*SharedPrefix)(unsafe.Pointer(g.shared_prefixes)), int(g.num_shared_prefixes))
		}
	}
	return plan, nil
}

// TableOf returns the block table of the i-th sequence of the plan in a group. It panics if there is no
// such plan, group or sequence, or the plan has no block tables.
func (p *Plan) TableOf(group, i int) []int32 {
	g := &p.Groups[group]
	return g.BlockTable[i*g.BlockTableStride : (i+1)*g.BlockTableStride]
}

func clone(s []int32) []int32 { return append([]int32(nil), s...) }

// Clone returns a copy in Go memory that stays valid, and nil for nil.
func (p *Plan) Clone() *Plan {
	if p == nil {
		return nil
	}
	out := &Plan{
		Ticket:        p.Ticket,
		NumTokens:     p.NumTokens,
		Sequences:     append([]Sequence(nil), p.Sequences...),
		Rows:          clone(p.Rows),
		QueryStart:    clone(p.QueryStart),
		KVLens:        clone(p.KVLens),
		TrimSinks:     clone(p.TrimSinks),
		TrimFirstKept: clone(p.TrimFirstKept),
		Rewinds:       clone(p.Rewinds),
		CallerIDs:     append([]uint64(nil), p.CallerIDs...),
		Positions:     clone(p.Positions),
		Groups:        make([]GroupPlan, len(p.Groups)),
		Number:        p.Number,
		Follows:       p.Follows,
	}
	for i := range p.Groups {
		g := &p.Groups[i]
		out.Groups[i] = GroupPlan{
			SlotMapping:      clone(g.SlotMapping),
			SlotMapping64:    append([]int64(nil), g.SlotMapping64...),
			BlockTable:       clone(g.BlockTable),
			BlockTableStride: g.BlockTableStride,
			KVIndptr:         clone(g.KVIndptr),
			KVIndices:        clone(g.KVIndices),
			KVLastPageLen:    clone(g.KVLastPageLen),
			KVFirstLive:      clone(g.KVFirstLive),
			CopySrc:          clone(g.CopySrc),
			CopyDst:          clone(g.CopyDst),
			SharedPrefixes:   append([]SharedPrefix(nil), g.SharedPrefixes...),
			ChangedRows:      clone(g.ChangedRows),
			ChangedColumns:   clone(g.ChangedColumns),
			ChangedBlocks:    clone(g.ChangedBlocks),
		}
	}
	return out
}

// RunCopies runs the copies of the open step on the cache's own storage, once per step. The step
// then takes no more appends.
func (c *Cache) RunCopies() error {
	s := take()
	return c.done(s, C.go_run_copies(c.h(), &s.err))
}

// Commit says that the work is enqueued: lengths advance, the next step may begin. An error, and the
// step stays open, if since its last Plan a sequence was appended, whose K and V were never written,
// or was taken out (Undo, Preempt, Cancel), whose slots may be another's by now; or if a cache with
// storage has copies that have not run (RunCopies, or Options.CopiesByHost).
func (c *Cache) Commit(ticket Ticket) error {
	s := take()
	return c.done(s, C.go_commit(c.h(), C.kvfolio_ticket(ticket), &s.err))
}

// Complete says that the device has finished the step, and under InOrder all earlier ones.
func (c *Cache) Complete(ticket Ticket) error {
	s := take()
	return c.done(s, C.go_complete(c.h(), C.kvfolio_ticket(ticket), &s.err))
}

// Finish is Commit and Complete, for engines that have computed already. Errors as Commit.
func (c *Cache) Finish(ticket Ticket) error {
	s := take()
	return c.done(s, C.go_finish(c.h(), C.kvfolio_ticket(ticket), &s.err))
}

// Drop ends the open step and undoes all of its appends.
func (c *Cache) Drop(ticket Ticket) error {
	s := take()
	return c.done(s, C.go_drop(c.h(), C.kvfolio_ticket(ticket), &s.err))
}

// Ended is a sequence that a call ended, and the name that its caller gave it.
type Ended struct {
	Sequence    Sequence
	HasCallerID bool
	CallerID    uint64
}

func endedOf(from *C.kvfolio_ended, n C.int64_t) []Ended {
	if n == 0 {
		return nil
	}
	out := make([]Ended, int(n))
	for i, e := range unsafe.Slice(from, int(n)) {
		out[i] = Ended{Sequence(e.sequence), e.has_caller_id != 0, uint64(e.caller_id)}
	}
	return out
}

// Fail says that the device has failed and is idle. It ends every step from ticket on and closes
// each sequence that they wrote to, or that holds a block of theirs. Returns a copy of these. One
// that found its whole prompt and appended only its last token wrote nothing: it stays open, with
// its length and rewinds, and what it sampled is lost. Close it too, and open its text again.
func (c *Cache) Fail(ticket Ticket) ([]Ended, error) {
	s := take()
	var ended *C.kvfolio_ended
	code := C.kvfolio_fail(c.p(), C.kvfolio_ticket(ticket), &ended, &s.i64[0], &s.err)
	out := endedOf(ended, s.i64[0])
	return out, c.done(s, code)
}

// Accept decides on the drafts of the oldest append that has some: the first numAccepted of them
// stand. If that is fewer than all, what was appended behind them is cut as well, and Info.Rewinds
// counts it: the sequence's rows in steps in flight are void then. Due once for each append with
// drafts; for one without, such as a chunk of a prompt, it would decide on those of a later one.
func (c *Cache) Accept(sequence Sequence, numAccepted int) error {
	s := take()
	return c.done(s, C.go_accept(c.h(), C.kvfolio_sequence(sequence), i32(numAccepted), &s.err))
}
