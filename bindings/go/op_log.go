// SPDX-License-Identifier: Apache-2.0

package kvfolio

// #include <kvfolio/kvfolio.h>
import "C"

import (
	"errors"
	"runtime"
	"strings"
	"syscall"
)

// OpLog is a file with every call that changed a Cache and what it answered (op_log.h), so that a
// failure becomes a file that repeats it: `kvfolio inspect --replay FILE` makes the calls again and
// names the first that answers otherwise. Two runs that make the same calls write the same bytes.
// The tokens of prompts are in it; bytes of K and V are not. Close it.
//
// There is no log to an io.Writer: each call of the cache would have to call Go from C, and a panic
// or a runtime.Goexit of the writer would unwind frames of C. A file has all that was given to it
// even if the program dies.
//
// The calls of the cache that records write to the log: the owner who serialises those (see Goroutines)
// serialises the methods of the log with them.
type OpLog struct {
	c *C.kvfolio_op_log
	birth
}

// p returns the handle, and nil of an OpLog that is nil or closed: the library refuses that.
func (l *OpLog) p() *C.kvfolio_op_log {
	if l == nil {
		return nil
	}
	return l.c
}

// NewOpLog makes a file of mode 0600, in place of what was there. flushEachCall: the arguments of a
// call are in the file before the call is made, so also those of a call in which the program dies;
// it costs a system call or two for each. ErrUnavailable: what the system says of the path, or that
// another log is being written to it.
func NewOpLog(path string, flushEachCall bool) (*OpLog, error) {
	if err := checkABI(); err != nil {
		return nil, err
	}
	if strings.IndexByte(path, 0) >= 0 {
		return nil, failf(ErrInvalidArgument, "NewOpLog: the path %q has a 0 in it", path)
	}
	fd, err := openLog(path)
	if err != nil {
		return nil, failf(ErrUnavailable, "NewOpLog: %s: %v", path, err)
	}
	s := take()
	var out *C.kvfolio_op_log
	code := C.kvfolio_op_log_create_fd(C.int32_t(fd), b32(flushEachCall), &out, &s.err)
	if err := s.give(code, false, ""); err != nil {
		syscall.Close(fd)
		return nil, err
	}
	l := &OpLog{c: out, birth: bornOf()}
	runtime.SetFinalizer(l, func(l *OpLog) { l.leaked("OpLog") })
	return l, nil
}

// openLog returns a file that is empty, has mode 0600, and is no pipe or device. A pipe without a
// reader does not keep us waiting. The file is locked while it is open: two logs that write one file
// at once would mix their calls. A file system without locks refuses no log.
func openLog(path string) (int, error) {
	const flags = syscall.O_WRONLY | syscall.O_CREAT | syscall.O_CLOEXEC | syscall.O_NONBLOCK
	fd, err := syscall.Open(path, flags, 0o600)
	if err != nil {
		return -1, err
	}
	var there syscall.Stat_t
	err = syscall.Fstat(fd, &there)
	if err == nil && there.Mode&syscall.S_IFMT != syscall.S_IFREG {
		err = errors.New("not a regular file")
	}
	if err == nil && syscall.Flock(fd, syscall.LOCK_EX|syscall.LOCK_NB) == syscall.EWOULDBLOCK {
		err = errors.New("another log is being written to it")
	}
	if err == nil {
		err = syscall.Ftruncate(fd, 0)
	}
	if err == nil {
		err = syscall.Fchmod(fd, 0o600)
	}
	if err != nil {
		syscall.Close(fd)
		return -1, err
	}
	return fd, nil
}

// Close ends the use of the log. A cache that records goes on, and the file is closed when that
// ends.
func (l *OpLog) Close() {
	if l.p() == nil {
		return
	}
	runtime.SetFinalizer(l, nil)
	C.kvfolio_op_log_destroy(l.c)
	l.c = nil
}

// Flush writes all that was recorded to the file. It returns what Status says then.
func (l *OpLog) Flush() error {
	s := take()
	return s.give(C.kvfolio_op_log_flush(l.p(), &s.err), l.p() == nil, "OpLog")
}

// Status returns nil, or why the log ended before the calls did, which changed no answer of the
// cache: ErrUnavailable, such as no space left; ErrFailedPrecondition: the cache had been used before
// Record, it was the target of CopyTo, or the log has calls of another recording.
func (l *OpLog) Status() error {
	s := take()
	return s.give(C.kvfolio_op_log_status(l.p(), &s.err), l.p() == nil, "OpLog")
}

// NumCalls returns the calls of the recording; after ErrUnavailable, also those that the file lacks.
func (l *OpLog) NumCalls() int { return int(C.kvfolio_op_log_num_calls(l.p())) }

// Record writes down each call that changes the cache from now on; call it before the first of them.
// Nil: no more, and the log is whole: it ends with the number of calls and the StateHash. The log of a
// cache that is closed while it records has all calls, without such an end.
func (c *Cache) Record(log *OpLog) error {
	if log != nil && log.c == nil {
		return failf(ErrFailedPrecondition, "the OpLog is closed")
	}
	s := take()
	return c.done(s, C.kvfolio_record(c.p(), log.p(), &s.err))
}
