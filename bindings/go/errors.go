// SPDX-License-Identifier: Apache-2.0

package kvfolio

// #include <kvfolio/kvfolio.h>
import "C"

import (
	"fmt"
	"sync"
	"unsafe"
)

// Code says what kind of error it is. The codes are errors themselves, for errors.Is.
type Code int32

// The codes of kvfolio.h.
const (
	// ErrInvalidArgument: the argument is wrong in every state.
	ErrInvalidArgument Code = C.KVFOLIO_ERR_INVALID_ARGUMENT
	// ErrNotFound: the id is unknown, closed or of another cache.
	ErrNotFound Code = C.KVFOLIO_ERR_NOT_FOUND
	// ErrFailedPrecondition: not allowed in this state.
	ErrFailedPrecondition Code = C.KVFOLIO_ERR_FAILED_PRECONDITION
	// ErrNoBlocks: a group lacks blocks, see Error.Shortage.
	ErrNoBlocks Code = C.KVFOLIO_ERR_NO_BLOCKS
	// ErrResourceExhausted: a fixed table is full.
	ErrResourceExhausted Code = C.KVFOLIO_ERR_RESOURCE_EXHAUSTED
	// ErrAborted: Fail closed this sequence.
	ErrAborted Code = C.KVFOLIO_ERR_ABORTED
	// ErrOutOfMemory: the system gave no memory.
	ErrOutOfMemory Code = C.KVFOLIO_ERR_OUT_OF_MEMORY
	// ErrUnsupported: valid, but this build or configuration cannot do it.
	ErrUnsupported Code = C.KVFOLIO_ERR_UNSUPPORTED
	// ErrUnavailable: a file or a medium cannot be reached, or fails.
	ErrUnavailable Code = C.KVFOLIO_ERR_UNAVAILABLE
	// ErrTimedOut: the deadline passed first.
	ErrTimedOut Code = C.KVFOLIO_ERR_TIMED_OUT
	// ErrCorrupt: the bytes are not what was written.
	ErrCorrupt Code = C.KVFOLIO_ERR_CORRUPT
)

// Error returns the name of the code, such as "not found".
func (c Code) Error() string { return C.GoString(C.kvfolio_code_name(C.int32_t(c))) }

// Shortage says why a group lacks blocks: Needed > Free + Evictable. In blocks, but for Sequences,
// Pins, Loads and Holds.
type Shortage struct {
	Group     int
	Needed    int
	Free      int
	Evictable int
	Pinned    int // held by sequences, pins, loads and holds
	Retiring  int // come back when the steps in flight are complete
	Sequences int // open ones
	Pins      int
	Reserved  int // of the pinned ones: kept by Reserve
	Loads     int // open ones: BeginLoad
	Holds     int // open ones: HoldBlocks
	NumBlocks int // of the group
	Kept      int // that the sequences of the call, or the hit of a prompt, hold beside the needed
	// The same call cannot succeed, whatever the others let go of.
	Never bool
}

// Error is what calls of this package return.
type Error struct {
	Code     Code
	Message  string
	Shortage *Shortage // nil unless Code is ErrNoBlocks
}

// Error returns the message with the name of its code.
func (e *Error) Error() string {
	if e == nil {
		return "kvfolio: no error"
	}
	return "kvfolio: " + e.Code.Error() + ": " + e.Message
}

// Is reports whether target is the code of the error.
func (e *Error) Is(target error) bool {
	code, ok := target.(Code)
	return ok && e != nil && code == e.Code
}

func failf(code Code, format string, arguments ...interface{}) error {
	return &Error{Code: code, Message: fmt.Sprintf(format, arguments...)}
}

// scratch is what calls write to, so that a call takes no heap memory. It has no pointers but those of
// plan, which are C's.
type scratch struct {
	err       C.kvfolio_error
	id        C.uint64_t
	i64       [2]C.int64_t
	i32       [2]C.int32_t
	found     C.kvfolio_found
	rows      [6]C.kvfolio_rows
	attention C.kvfolio_attention_options
	plan      C.kvfolio_plan_options
}

var scratches = sync.Pool{New: func() interface{} {
	s := new(scratch)
	s.err.struct_size = C.uint32_t(unsafe.Sizeof(s.err))
	s.err.shortage.struct_size = C.uint32_t(unsafe.Sizeof(s.err.shortage))
	return s
}}

// take returns a scratch whose outputs are 0, since a call that fails does not write them.
func take() *scratch {
	s := scratches.Get().(*scratch)
	s.id = 0
	s.i64 = [2]C.int64_t{}
	s.i32 = [2]C.int32_t{}
	s.found = C.kvfolio_found{struct_size: C.sizeof_kvfolio_found}
	return s
}

// give ends the use of a scratch and returns the error of the call. `closed`: the null pointer that
// the library refused was our own.
func (s *scratch) give(code C.int32_t, closed bool, name string) error {
	if code == C.KVFOLIO_OK {
		scratches.Put(s)
		return nil
	}
	if closed {
		scratches.Put(s)
		return failf(ErrFailedPrecondition, "the %s is closed", name)
	}
	e := errorOf(code, &s.err)
	scratches.Put(s)
	return e
}

// errorOf is what C wrote of a call that returned the code.
func errorOf(code C.int32_t, err *C.kvfolio_error) error {
	e := &Error{Code: Code(code), Message: C.GoString(&err.message[0])}
	if e.Code == ErrNoBlocks {
		from := &err.shortage
		e.Shortage = &Shortage{
			Group:     int(from.group),
			Needed:    int(from.needed),
			Free:      int(from.free),
			Evictable: int(from.evictable),
			Pinned:    int(from.pinned),
			Retiring:  int(from.retiring),
			Sequences: int(from.sequences),
			Pins:      int(from.pins),
			Reserved:  int(from.reserved),
			Loads:     int(from.loads),
			Holds:     int(from.holds),
			NumBlocks: int(from.num_blocks),
			Kept:      int(from.kept),
			Never:     from.never != 0,
		}
	}
	return e
}
