// SPDX-License-Identifier: Apache-2.0

// Package kvfolio keeps the KV cache of many sequences in blocks: it decides which block holds
// which tokens, shares blocks between sequences, finds prompts that it has seen, evicts, and hands
// an engine the arrays of each step. It binds the C interface, include/kvfolio/kvfolio.h, with the
// same verbs; the headers beside it say the rules in full.
//
//	cache, err := kvfolio.NewCache(groups, &kvfolio.Options{MaxSequences: 256})
//	opened, err := cache.Open(prompt, nil)             // finds and holds in one call
//	ticket, err := cache.BeginStep(0)
//	_, err = cache.AppendPrompt(opened.Sequence, prompt, len(prompt))
//	plan, err := cache.Plan(nil)                       // slots, tables, copies
//	... run the copies, write K and V to the slots, attend ...
//	err = cache.Finish(ticket)                         // commit and complete
//
// # Defaults
//
// Zero is the default of every field of an options struct, and nil of the struct. Where 0 is a
// value of its own, -1 stands for it.
//
// # Errors
//
// Errors are of type *Error: errors.Is(err, kvfolio.ErrNoBlocks) asks for a code, and errors.As
// gives the fields of a Shortage. A call that fails changes nothing unless it says otherwise.
// Counts and priorities that do not fit an int32 are refused.
//
// # While a step is open
//
// All questions are allowed, and all calls about sequences that are not in the step: Open, Fork,
// CloseSequence, Truncate, Pin, Evict, BeginLoad and so on. So are calls about earlier steps:
// Complete, Fail and SetTokens. A sequence that is in the step takes Undo, Preempt (which takes it
// out of the step first), SetPriority and questions; its other changes are
// ErrFailedPrecondition. It is in the step once: append all of its tokens in one call. An Append that
// is short of blocks (ErrNoBlocks) may preempt another sequence and be called again. Admit and
// AdmitPrompt count with what the appends of the step have taken.
//
// # Closing
//
// What has a Close method holds memory that the garbage collector does not see. A finalizer writes
// one line to standard error for each value that was never closed, with the place where it was
// made. It frees nothing: slices of a Plan and pointers into K and V may outlive the value that
// they came from, and a leak is better than memory that goes while it is read. Close may be called
// twice, and on nil. All other calls on a closed value, or on nil, return ErrFailedPrecondition, or
// zero.
//
// # Goroutines
//
// A value may be used by several goroutines in turn, on any thread. Methods of Cache that only ask
// (Info to CheckInvariants in the C header, Probe, AdmitPrompt, Utilization, NeedsEviction, and
// CopyTo for the cache that it reads) may run at the same time as each other, while no other method
// of that value runs; the owner serialises all others.
//
// # Memory
//
// Slices that are arguments are read or written during the call only. Slices that calls return are
// the library's unless the call says that they are copies; do not write to them.
package kvfolio

// #include <kvfolio/kvfolio.h>
import "C"

import (
	"fmt"
	"math"
	"os"
	"runtime"
)

// Version returns that of the library, such as "0.1.0".
func Version() string { return C.GoString(C.kvfolio_version()) }

// ABIVersion returns that of the library; it is 1 for this package.
func ABIVersion() uint32 { return uint32(C.kvfolio_abi_version()) }

// checkABI refuses a library whose structs and functions are others than those of the header.
func checkABI() error {
	if got := C.kvfolio_abi_version(); got != C.KVFOLIO_ABI_VERSION {
		return failf(ErrUnsupported, "the library has ABI version %d, this package was built for %d",
			got, C.KVFOLIO_ABI_VERSION)
	}
	return nil
}

// complain is what the finalizers say; a variable for tests.
var complain = func(line string) { fmt.Fprintln(os.Stderr, line) }

// birth says where a value was made. It is a field of all that must be closed.
type birth struct {
	file string
	line int
}

// bornOf names the caller of the exported function that calls this one.
func bornOf() birth {
	_, file, line, _ := runtime.Caller(2)
	return birth{file, line}
}

func (b birth) leaked(name string) {
	complain(fmt.Sprintf("kvfolio: a %s made at %s:%d was not closed", name, b.file, b.line))
}

// i32 keeps a count that does not fit on its side of zero; the library refuses it with its reason.
func i32(n int) C.int32_t {
	if n > math.MaxInt32 {
		return math.MaxInt32
	}
	if n < math.MinInt32 {
		return math.MinInt32
	}
	return C.int32_t(n)
}

// checkPriority refuses a priority that does not fit: every int32 is one, so the library would not.
func checkPriority(n int) error {
	if n < math.MinInt32 || n > math.MaxInt32 {
		return failf(ErrInvalidArgument, "the priority is %d, allowed: %d to %d", n, math.MinInt32,
			math.MaxInt32)
	}
	return nil
}

func b32(b bool) C.int32_t {
	if b {
		return 1
	}
	return 0
}

// first returns where an array begins, and null for an empty one. The pointer is of a type without
// pointers, so cgo does not look into the memory around it.
func first(s []int32) *C.int32_t {
	if len(s) == 0 {
		return nil
	}
	return (*C.int32_t)(&s[0])
}
