// SPDX-License-Identifier: Apache-2.0

package tiers

// #include <stdlib.h>
// #include <kvfolio/kvfolio_tiers.h>
import "C"

import (
	"errors"
	"os"
	"runtime"
	"sync"
	"syscall"
	"time"
	"unsafe"

	kvfolio "github.com/kvfolio/kvfolio/bindings/go"
	"github.com/kvfolio/kvfolio/bindings/go/internal/bridge"
)

// Op is what a tier is asked to do.
type Op int32

// Operations.
const (
	Exists Op = C.KVFOLIO_TIER_EXISTS // needs no Buffer; OK or Miss
	Load   Op = C.KVFOLIO_TIER_LOAD   // fills the Buffer; a record of another size is Corrupt
	Store  Op = C.KVFOLIO_TIER_STORE  // a key that is there already is OK and keeps its bytes
	Erase  Op = C.KVFOLIO_TIER_ERASE  // needs no Buffer; OK also if there was nothing
)

// String returns the name of the operation.
func (o Op) String() string {
	if o < Exists || o > Erase {
		return "invalid"
	}
	return [...]string{"exists", "load", "store", "erase"}[o]
}

// Result says how an item ended.
type Result int32

// Results.
const (
	OK          Result = C.KVFOLIO_TIER_OK
	Miss        Result = C.KVFOLIO_TIER_MISS        // there is no such record
	Corrupt     Result = C.KVFOLIO_TIER_CORRUPT     // there is one, and it is not what was stored
	Busy        Result = C.KVFOLIO_TIER_BUSY        // try again later
	Timeout     Result = C.KVFOLIO_TIER_TIMEOUT     // the deadline passed first
	IOError     Result = C.KVFOLIO_TIER_IO_ERROR    // the medium failed
	Unavailable Result = C.KVFOLIO_TIER_UNAVAILABLE // the medium cannot be reached now
	Closed      Result = C.KVFOLIO_TIER_CLOSED      // the tier was closed first
)

// NumResults is how many there are.
const NumResults = C.KVFOLIO_NUM_TIER_RESULTS

// String returns the name of the result, such as "miss".
func (r Result) String() string { return C.GoString(C.kvfolio_tier_result_name(C.int32_t(r))) }

// Ticket is the number of an item that a tier accepted: 1, 2, 3, ...
type Ticket uint64

// Item is a record to ask for.
type Item struct {
	Key    Key
	Buffer *Buffer // of a Load or a Store; the tier's until Poll says that it is done
}

// Done says how an item ended. Its Buffer, if it had one, is the caller's again.
type Done struct {
	Ticket Ticket
	Result Result
	Buffer *Buffer
}

// Health is what a tier says of itself.
type Health struct {
	Usable   bool // false: it accepts nothing now, so it should not be waited for
	StoresOK uint64
	LoadsOK  uint64
	Failures uint64 // results other than OK and Miss
	// Damaged records that it found by itself: no load was answered Corrupt for them.
	CorruptUnasked uint64
	// Loads that met a record which another key sealed, or none, and were answered Miss.
	OfAnotherKey uint64
}

// Tier is a medium below the cache that keeps records under keys (tier.h). It is given to an Offload,
// or used alone by an engine that hashes its blocks by itself. Close it.
type Tier struct {
	mutex  sync.Mutex
	c      *C.kvfolio_tier
	name   string
	flying map[Ticket]*Buffer // accepted and not done
	last   Ticket
	owner  *life    // of the Offload that uses it, or nil
	closed bool     // it is, or will be when its owner is
	events *os.File // a copy of the descriptor, that Go's poller watches
	birth
}

func newTier(c *C.kvfolio_tier, born birth) *Tier {
	t := &Tier{c: c, name: C.GoString(C.kvfolio_tier_name(c)), flying: map[Ticket]*Buffer{},
		birth: born}
	runtime.SetFinalizer(t, func(t *Tier) { t.leaked("Tier") })
	return t
}

// p is null once the tier is closed.
func (t *Tier) p() *C.kvfolio_tier {
	if t == nil || t.closed {
		return nil
	}
	return t.c
}

// alone refuses a tier that is closed, or an Offload's: its items are that one's.
func (t *Tier) alone() error {
	if t.p() == nil {
		return closed("Tier")
	}
	if t.owner != nil {
		return failf(kvfolio.ErrFailedPrecondition, "the Tier is used by an Offload")
	}
	return nil
}

// lock is for calls that may be made on nil.
func (t *Tier) lock() func() {
	if t == nil {
		return func() {}
	}
	t.mutex.Lock()
	return t.mutex.Unlock
}

// NewMemoryTier makes a tier in host memory of at most `bytes`, for records of this cache, which has a
// Storage (arena_tier.h). A nil resource is memory of the process.
func NewMemoryTier(cache *kvfolio.Cache, bytes int64, resource *kvfolio.MemoryResource) (*Tier, error) {
	if err := checkABI(); err != nil {
		return nil, err
	}
	m := manager(cache)
	if m == nil {
		return nil, closed("Cache")
	}
	r := (*C.kvfolio_memory_resource)(bridge.Resource(resource))
	var out *C.kvfolio_tier
	err := call(func(e *C.kvfolio_error) C.int32_t {
		return C.kvfolio_tier_create_memory(m, C.int64_t(bytes), r, &out, e)
	})
	if err != nil {
		return nil, err
	}
	return newTier(out, bornOf()), nil
}

// Share makes another tier over the records of one in memory, for another cache: each finds what the
// others computed. The records last as long as one of these tiers. Each may be in a goroutine of its
// own. ErrUnsupported: a tier of another kind.
func (t *Tier) Share() (*Tier, error) {
	defer t.lock()()
	if t.p() == nil {
		return nil, closed("Tier")
	}
	var out *C.kvfolio_tier
	err := call(func(e *C.kvfolio_error) C.int32_t { return C.kvfolio_tier_share(t.c, &out, e) })
	if err != nil {
		return nil, err
	}
	return newTier(out, bornOf()), nil
}

// Functions is a tier of the caller's own: a table of C functions (kvfolio_tier_functions, which says
// the rules; tier.h has those that each tier keeps). All pointers are of C. The functions are used
// until Close has called Destroy. Submit and Poll are needed, the others may be nil. There is none in
// Go: the library would have to call Go from C in each poll, and a panic or a runtime.Goexit there
// would unwind frames of C.
type Functions struct {
	Name           string // for people; empty: "caller"
	DataAlignment  int    // of the items' memory: a power of two, at most 4096; 0: 64
	RecordBytesMax int64  // larger records are not offered; 0: no limit of its own
	Context        unsafe.Pointer
	Submit         unsafe.Pointer
	Poll           unsafe.Pointer
	EventFD        unsafe.Pointer
	Health         unsafe.Pointer
	Close          unsafe.Pointer
	Destroy        unsafe.Pointer
}

// NewTier makes a tier of functions of C.
func NewTier(functions *Functions) (*Tier, error) {
	if err := checkABI(); err != nil {
		return nil, err
	}
	if functions == nil {
		return nil, failf(kvfolio.ErrInvalidArgument, "NewTier: the functions are nil")
	}
	if err := noZeros("NewTier", [2]string{"name", functions.Name}); err != nil {
		return nil, err
	}
	var l lent
	defer l.free()
	table := &C.kvfolio_tier_functions{
		struct_size:      C.sizeof_kvfolio_tier_functions,
		data_alignment:   i32(functions.DataAlignment),
		record_bytes_max: C.int64_t(functions.RecordBytesMax),
		name:             l.word(functions.Name),
		context:          functions.Context,
		submit:           (*[0]byte)(functions.Submit),
		poll:             (*[0]byte)(functions.Poll),
		event_fd:         (*[0]byte)(functions.EventFD),
		health:           (*[0]byte)(functions.Health),
		close:            (*[0]byte)(functions.Close),
		destroy:          (*[0]byte)(functions.Destroy),
	}
	var out *C.kvfolio_tier
	err := call(func(e *C.kvfolio_error) C.int32_t { return C.kvfolio_tier_create(table, &out, e) })
	if err != nil {
		return nil, err
	}
	return newTier(out, bornOf()), nil
}

// Close ends the tier. One on a disk waits for what is in flight and seals what was stored. Buffers
// come back without a Done. A tier that an Offload uses ends with the Offload; its own calls are
// refused from now on.
func (t *Tier) Close() {
	unlock := t.lock()
	if t.p() == nil {
		unlock()
		return
	}
	runtime.SetFinalizer(t, nil)
	t.closed = true
	events := t.endWithoutOwner()
	unlock()
	closeEvents(events)
}

// endWithoutOwner is under the lock. It returns what is to be closed without the lock, since that waits
// for those who Wait, and they take it.
func (t *Tier) endWithoutOwner() *os.File {
	if t.owner != nil || t.c == nil {
		return nil
	}
	C.kvfolio_tier_destroy(t.c)
	t.c = nil
	for _, buffer := range t.flying {
		if buffer != nil {
			buffer.giveBack()
		}
	}
	t.flying = nil
	events := t.events
	t.events = nil
	return events
}

// closeEvents ends each Wait.
func closeEvents(events *os.File) {
	if events != nil && events != noEvents {
		events.Close()
	}
}

// disown is of an Offload that has ended.
func (t *Tier) disown() {
	unlock := t.lock()
	t.owner = nil
	var events *os.File
	if t.closed {
		events = t.endWithoutOwner()
	}
	unlock()
	closeEvents(events)
}

// Name is for people, such as "disk"; of a closed tier, too.
func (t *Tier) Name() string {
	if t == nil {
		return ""
	}
	return t.name
}

// Describe is for people: the directory and sizes of a tier on a disk, a line for each node of one in
// Redis.
func (t *Tier) Describe() string {
	defer t.lock()()
	if t.p() == nil {
		return ""
	}
	return describe(func(out *C.char, capacity C.int64_t) C.int64_t {
		return C.kvfolio_tier_describe(t.c, out, capacity)
	})
}

// Limits are what a tier asks of items. They do not change.
type Limits struct {
	RecordBytesMax int64 // 0: no limit
	DataAlignment  int   // of the memory of a Buffer; NewBuffer's is enough for all
}

// Limits returns those of the tier.
func (t *Tier) Limits() (Limits, error) {
	defer t.lock()()
	if t.p() == nil {
		return Limits{}, closed("Tier")
	}
	var bytes, alignment C.int64_t
	err := call(func(e *C.kvfolio_error) C.int32_t {
		return C.kvfolio_tier_limits(t.c, &bytes, &alignment, e)
	})
	return Limits{int64(bytes), int(alignment)}, err
}

// Health returns what the tier says of itself.
func (t *Tier) Health() (Health, error) {
	defer t.lock()()
	if t.p() == nil {
		return Health{}, closed("Tier")
	}
	out := C.kvfolio_tier_health{struct_size: C.sizeof_kvfolio_tier_health}
	err := call(func(e *C.kvfolio_error) C.int32_t { return C.kvfolio_tier_get_health(t.c, &out, e) })
	return Health{err == nil && out.unusable == 0, uint64(out.stores_ok), uint64(out.loads_ok),
		uint64(out.failures), uint64(out.corrupt_unasked), uint64(out.of_another_key)}, err
}

// Submit asks for records, and does not wait. It returns a ticket for each item that was accepted: the
// first ones. Those behind them are not touched: the tier is behind, or not usable. An item that is not
// done by the deadline is Timeout, and its Buffer the tier's until Poll says so. A Buffer may be in
// several stores at once, and in one load alone.
func (t *Tier) Submit(op Op, items []Item, deadline time.Time) ([]Ticket, error) {
	defer t.lock()()
	if err := t.alone(); err != nil {
		return nil, err
	}
	if len(items) == 0 {
		return nil, nil
	}
	list := make([]C.kvfolio_tier_item, len(items))
	lentTo := 0
	takeBack := func(from int) {
		for i := from; i < lentTo; i++ {
			items[i].Buffer.giveBack()
		}
	}
	for i := range items {
		list[i].key = items[i].Key.toC()
		list[i].tag = C.uint64_t(t.last) + C.uint64_t(i) + 1
		if op != Load && op != Store {
			continue
		}
		data, err := items[i].Buffer.lend(op)
		if err != nil {
			takeBack(0)
			return nil, err
		}
		lentTo++
		list[i].data, list[i].bytes = data, C.int64_t(items[i].Buffer.bytes)
	}
	var accepted C.int64_t
	err := call(func(e *C.kvfolio_error) C.int32_t {
		return C.kvfolio_tier_submit(t.c, C.int32_t(op), &list[0], C.int64_t(len(list)),
			deadlineOf(deadline), &accepted, e)
	})
	if err != nil {
		takeBack(0)
		return nil, err
	}
	takeBack(int(accepted))
	tickets := make([]Ticket, accepted)
	for i := range tickets {
		t.last++
		tickets[i] = t.last
		t.flying[t.last] = nil
		if i < lentTo {
			t.flying[t.last] = items[i].Buffer
		}
	}
	return tickets, nil
}

// Poll returns the items that are done, each once, and does not wait.
func (t *Tier) Poll() ([]Done, error) {
	defer t.lock()()
	if err := t.alone(); err != nil {
		return nil, err
	}
	return t.poll(), nil
}

// poll is under the lock, and the tier is there.
func (t *Tier) poll() []Done {
	var out []Done
	var some [64]C.kvfolio_tier_done
	for {
		n := int(C.kvfolio_tier_poll(t.c, microseconds(now()), &some[0], C.int64_t(len(some))))
		for _, one := range some[:n] {
			ticket := Ticket(one.tag)
			buffer, known := t.flying[ticket]
			if !known {
				continue // of a faulty tier: it was not asked
			}
			delete(t.flying, ticket)
			if buffer != nil {
				buffer.giveBack()
			}
			out = append(out, Done{ticket, Result(one.result), buffer})
		}
		if n < len(some) {
			return out
		}
	}
}

// InFlight returns how many items were accepted and are not done.
func (t *Tier) InFlight() int {
	defer t.lock()()
	if t == nil {
		return 0
	}
	return len(t.flying)
}

// Items that are late, and tiers without a descriptor, wake no waiter: who waits looks as often.
const lookEvery = 20 * time.Millisecond

// Wait is Poll that waits for the first item which is done, or until the time `until`. The goroutine
// is parked meanwhile, and holds no thread: Go's poller watches the tier's descriptor. It returns
// nothing at once if nothing is in flight.
func (t *Tier) Wait(until time.Time) ([]Done, error) {
	for {
		done, events, err := t.pollOrEvents()
		if err != nil || len(done) > 0 || events == nil && t.InFlight() == 0 {
			return done, err
		}
		look := time.Now().Add(lookEvery)
		if !until.IsZero() && !look.Before(until) {
			if !time.Now().Before(until) {
				return nil, nil
			}
			look = until
		}
		if events == noEvents {
			time.Sleep(time.Millisecond)
			continue
		}
		if done, err = t.waitForEvent(events, look); err != nil || len(done) > 0 {
			return done, err
		}
	}
}

// noEvents stands for a tier without a descriptor.
var noEvents = new(os.File)

// pollOrEvents polls, and if nothing is done and something is in flight returns what to wait for.
func (t *Tier) pollOrEvents() ([]Done, *os.File, error) {
	defer t.lock()()
	if err := t.alone(); err != nil {
		return nil, nil, err
	}
	done := t.poll()
	if len(done) > 0 || len(t.flying) == 0 {
		return done, nil, nil
	}
	if t.events == nil {
		t.events = watch(int(C.kvfolio_tier_event_fd(t.c)))
	}
	return nil, t.events, nil
}

// watch returns a file of a copy of the descriptor: closing it leaves the tier's own open.
func watch(fd int) *os.File {
	if fd < 0 {
		return noEvents
	}
	syscall.ForkLock.RLock()
	copied, err := syscall.Dup(fd)
	if err == nil {
		syscall.CloseOnExec(copied)
	}
	syscall.ForkLock.RUnlock()
	if err != nil || syscall.SetNonblock(copied, true) != nil {
		return noEvents
	}
	return os.NewFile(uintptr(copied), "events of a tier")
}

// waitForEvent parks until the descriptor is readable. The tier is polled before that, too: so nothing
// is missed that came since the last poll.
func (t *Tier) waitForEvent(events *os.File, look time.Time) ([]Done, error) {
	if events.SetReadDeadline(look) != nil { // Go's poller does not take it, or it is closed
		time.Sleep(time.Millisecond)
		return nil, nil
	}
	conn, err := events.SyscallConn()
	if err != nil {
		return nil, nil // closed: the caller says so
	}
	var done []Done
	var refused error
	err = conn.Read(func(uintptr) bool {
		done, refused = t.Poll()
		return len(done) > 0 || refused != nil
	})
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		return nil, nil
	}
	return done, refused
}

// EventFD returns a descriptor that is readable when Poll has something to return, for a loop of the
// caller's own; -1: there is none. It is the tier's: os.NewFile, which would close it, takes a copy
// (syscall.Dup). Items that are late wake no waiter.
func (t *Tier) EventFD() int {
	defer t.lock()()
	return int(C.kvfolio_tier_event_fd(t.p()))
}

// Stop ends submissions: from now on none is accepted. What is not done by the deadline is Closed;
// Poll still returns every item. A zero deadline ends all at once.
func (t *Tier) Stop(deadline time.Time) error {
	defer t.lock()()
	if err := t.alone(); err != nil {
		return err
	}
	at := C.uint64_t(0)
	if !deadline.IsZero() {
		at = microseconds(deadline)
	}
	return call(func(e *C.kvfolio_error) C.int32_t { return C.kvfolio_tier_close(t.c, at, e) })
}

// WaitUntilReady is for the start only: it waits until the servers of a tier in Redis have answered.
// ErrTimedOut says what each said or did not say; the tier goes on trying. Other tiers are ready.
func (t *Tier) WaitUntilReady(timeout time.Duration) error {
	defer t.lock()()
	if t.p() == nil {
		return closed("Tier")
	}
	return call(func(e *C.kvfolio_error) C.int32_t {
		return C.kvfolio_tier_wait_until_ready(t.c, microseconds(now()), durationToC(timeout), e)
	})
}

// duration is one of options, where 0 is the default.
type duration struct {
	name  string
	value time.Duration
}

// checkDurations refuses what would become 0 in microseconds, and so the default.
func checkDurations(call string, all ...duration) error {
	for _, one := range all {
		if one.value < 0 || one.value > 0 && one.value < time.Microsecond {
			return failf(kvfolio.ErrInvalidArgument,
				"%s: %s is %v, allowed: 0, and from a microsecond on", call, one.name, one.value)
		}
	}
	return nil
}

// durationToC: what is below 0 is 0.
func durationToC(d time.Duration) C.uint64_t {
	if d < 0 {
		return 0
	}
	return C.uint64_t(d.Microseconds())
}
