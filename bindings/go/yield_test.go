// SPDX-License-Identifier: Apache-2.0

package kvfolio

import (
	"runtime"
	"sync/atomic"
	"testing"
)

// A goroutine that makes step after step is nearly always in C.
func TestStepsLetOtherGoroutinesHaveATurn(t *testing.T) {
	c := newTestCache(t, small(4), nil)
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	// Go's scheduler looks at the goroutine that yielded first once in 61 times.
	var ran int32
	for try := 0; try < 10 && atomic.LoadInt32(&ran) == 0; try++ {
		c.yielded = -2 * yieldAfter // the last turn was long ago
		go atomic.StoreInt32(&ran, 1)
		ticket, err := c.BeginStep(0)
		must(t, err)
		must(t, c.Drop(ticket))
		if c.yielded < 0 {
			t.Fatal("the turn is not noted")
		}
	}
	equal(t, "another one ran", atomic.LoadInt32(&ran), int32(1))
}
