// SPDX-License-Identifier: Apache-2.0

// Package tiers keeps the blocks of a kvfolio.Cache in host memory, on a disk, in Redis and in files,
// and brings them back: what comes back is verified, and what does not verify is a miss. It binds
// include/kvfolio/kvfolio_tiers.h and links libkvfolio_tiers, which a program that does not import
// it does not need. docs/tiers.md says what is kept, and what is lost when.
//
//	disk, err := tiers.NewDiskTier(directory, &tiers.DiskOptions{Bytes: 64 << 30})
//	offload, err := tiers.NewOffload(cache, model, &tiers.OffloadOptions{ArenaBytes: 1 << 30},
//		[]tiers.OffloadTier{{Tier: disk}})
//	opened, err := offload.Open(prompt, nil)          // what the cache has, at once
//	for opened.Pending {                              // or serve others meanwhile
//		ready, err := offload.Poll()                  // each pending sequence comes once
//		...
//	}
//
// Errors, defaults, Close and slices are as package kvfolio says.
//
// # Time
//
// Deadlines are of time.Time, and none is the zero Time. Polls take the time from Go's monotonic
// clock.
//
// # Memory of a record
//
// A tier reads and writes the memory of what it was given until Poll says that it is done, long
// after the call that gave it. Go's rules let C keep no memory of Go for so long, and Go 1.19 cannot
// pin any. So records lie in a Buffer, whose memory is C's: the tier keeps the Buffer, and its Bytes
// are nil while it has it.
//
// # Goroutines
//
// A Tier without an Offload, and a Buffer, may be used by any number of goroutines at the same time:
// one may Wait while others Submit. An Offload, its cache, its identity and its tiers count as one
// value: the owner serialises the calls of all of them. A Sealer and a ForeignIdentity change nothing,
// so they may be used at the same time, but not closed.
package tiers

// #include <stdlib.h>
// #include <kvfolio/kvfolio_tiers.h>
import "C"

import (
	"fmt"
	"math"
	"runtime"
	"strings"
	"sync"
	"time"
	"unsafe"

	kvfolio "github.com/kvfolio/kvfolio/bindings/go"
	"github.com/kvfolio/kvfolio/bindings/go/internal/bridge"
)

// ABIVersion returns that of libkvfolio_tiers; it is 1 for this package.
func ABIVersion() uint32 { return uint32(C.kvfolio_tiers_abi_version()) }

// checkABI refuses a library whose structs and functions are others than those of the header.
func checkABI() error {
	if got := C.kvfolio_tiers_abi_version(); got != C.KVFOLIO_TIERS_ABI_VERSION {
		return failf(kvfolio.ErrUnsupported,
			"libkvfolio_tiers has ABI version %d, this package was built for %d", got,
			C.KVFOLIO_TIERS_ABI_VERSION)
	}
	return nil
}

func failf(code kvfolio.Code, format string, arguments ...interface{}) error {
	return &kvfolio.Error{Code: code, Message: fmt.Sprintf(format, arguments...)}
}

func closed(what string) error {
	return failf(kvfolio.ErrFailedPrecondition, "the %s is closed", what)
}

// life is what a Tier and an Identity know of their Offload. Not the Offload itself, which knows them: the
// collector does not run the finalizers of a circle.
type life struct{ ended bool }

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
	bridge.Complain(fmt.Sprintf("kvfolio: a %s made at %s:%d was not closed", name, b.file, b.line))
}

var callErrors = sync.Pool{New: func() interface{} {
	e := new(C.kvfolio_error)
	e.struct_size = C.sizeof_kvfolio_error
	e.shortage.struct_size = C.sizeof_kvfolio_shortage
	return e
}}

// call makes a call that may fail.
func call(f func(e *C.kvfolio_error) C.int32_t) error {
	e := callErrors.Get().(*C.kvfolio_error)
	defer callErrors.Put(e)
	if code := f(e); code != C.KVFOLIO_OK {
		return bridge.Error(int32(code), unsafe.Pointer(e))
	}
	return nil
}

func manager(cache *kvfolio.Cache) *C.kvfolio_manager {
	return (*C.kvfolio_manager)(bridge.Manager(cache))
}

// prompt is what the calls about a prompt take besides the tokens.
type prompt struct {
	root    *C.kvfolio_root
	media   *C.kvfolio_media_span
	n       C.int64_t
	options *C.kvfolio_open_options
}

func promptOf(options *kvfolio.OpenOptions) (prompt, error) {
	p, err := bridge.PromptOf(options)
	return prompt{(*C.kvfolio_root)(p.Root), (*C.kvfolio_media_span)(p.Media), C.int64_t(p.NumMedia),
		(*C.kvfolio_open_options)(p.Options)}, err
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

func b32(b bool) C.int32_t {
	if b {
		return 1
	}
	return 0
}

// first returns where an array begins, and null for an empty one.
func first(s []int32) *C.int32_t {
	if len(s) == 0 {
		return nil
	}
	return (*C.int32_t)(&s[0])
}

// firstByte is first for bytes, of a type without pointers: cgo looks at nothing around them.
func firstByte(s []byte) *C.uint8_t {
	if len(s) == 0 {
		return nil
	}
	return (*C.uint8_t)(&s[0])
}

// began is when the clock of all tiers began: a year before the program, so that no deadline of it
// lies in front of the beginning.
var began = time.Now().Add(-365 * 24 * time.Hour)

// now is the clock; a variable for tests.
var now = time.Now

func microseconds(at time.Time) C.uint64_t {
	if us := at.Sub(began).Microseconds(); us > 0 {
		return C.uint64_t(us)
	}
	return 0
}

// deadlineOf: no time is a thousand years, which the library can add to without an overflow.
func deadlineOf(at time.Time) C.uint64_t {
	if at.IsZero() {
		return 1000 * 365 * 24 * 3600 * 1000000
	}
	return microseconds(at)
}

// lent is copies in memory of C, for structs that point to what they hold: cgo gives C no struct of Go
// that points to memory of Go.
type lent struct{ all []memory }

type memory struct {
	at    unsafe.Pointer
	bytes int
}

func (l *lent) bytes(b []byte) unsafe.Pointer {
	p := C.malloc(C.size_t(len(b) + 1)) // of Go, which ends the program where there is no memory
	to := unsafe.Slice((*byte)(p), len(b)+1)
	copy(to, b)
	to[len(b)] = 0
	l.all = append(l.all, memory{p, len(b)})
	return p
}

// text is the bytes of a string; they may hold a 0.
func (l *lent) text(s string) C.kvfolio_text {
	return C.kvfolio_text{data: (*C.char)(l.bytes([]byte(s))), size: C.int64_t(len(s))}
}

// word is null for no text.
func (l *lent) word(s string) *C.char {
	if s == "" {
		return nil
	}
	return (*C.char)(l.bytes([]byte(s)))
}

// free writes zeros over the copies: some are keys and passwords.
func (l *lent) free() {
	for _, one := range l.all {
		b := unsafe.Slice((*byte)(one.at), one.bytes+1)
		for i := range b {
			b[i] = 0
		}
		C.free(one.at)
	}
	l.all = nil
}

// noZeros refuses texts that C would cut off.
func noZeros(call string, texts ...[2]string) error {
	for _, text := range texts {
		if strings.IndexByte(text[1], 0) >= 0 {
			return failf(kvfolio.ErrInvalidArgument, "%s: the %s has a 0 in it", call, text[0])
		}
	}
	return nil
}

// describe asks twice: how long the text is, and for the text.
func describe(write func(out *C.char, capacity C.int64_t) C.int64_t) string {
	for room := 256; ; {
		out := make([]byte, room)
		n := int(write((*C.char)(unsafe.Pointer(&out[0])), C.int64_t(room)))
		if n < room {
			if n < 0 {
				n = 0
			}
			return string(out[:n])
		}
		room = n + 1
	}
}
