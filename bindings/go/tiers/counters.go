// SPDX-License-Identifier: Apache-2.0

package tiers

// #include <kvfolio/kvfolio_tiers.h>
import "C"

import "time"

// OffloadCounters is what an Offload has counted (OffloadCounters in offload.h).
type OffloadCounters struct {
	Stores             uint64 // records that entered the arena from the cache
	StoresDropped      uint64 // no room in the arena, or the block could not be read
	Loads              uint64 // blocks that were written to the cache
	TokensLoaded       uint64
	ArenaCorrupt       uint64             // records of the arena that did not verify
	TierStores         uint64             // that tiers said are done
	TierStoresDropped  uint64             // all StoresFailed and StoresDropped of the tiers
	TierLoads          uint64             // records that came from tiers and verified
	TierMisses         [NumResults]uint64 // loads that failed, by Result
	TierCorrupt        uint64             // loads that met damage: came and did not verify, or TierMisses[Corrupt]
	Requests           uint64             // that were pending
	RequestsCanceled   uint64
	RequestsTimedOut   uint64
	UnknownCompletions uint64 // a faulty tier: it says that something is done that was not asked
	ManagerForgets     uint64 // the cache was told to forget, and everything went here
	StepsMax           uint64 // the most looks at a block, a question or an answer of one Poll
	CopiesFailed       uint64 // blocks that the cache's memory failed to give or to take
}

func u64s(c []C.uint64_t, to []uint64) {
	for i := range to {
		to[i] = uint64(c[i])
	}
}

// Counters returns what it has counted.
func (o *Offload) Counters() (OffloadCounters, error) {
	c := C.kvfolio_offload_counters{struct_size: C.sizeof_kvfolio_offload_counters}
	err := o.call(func(e *C.kvfolio_error) C.int32_t {
		return C.kvfolio_offload_get_counters(o.c, &c, e)
	})
	out := OffloadCounters{
		Stores:             uint64(c.stores),
		StoresDropped:      uint64(c.stores_dropped),
		Loads:              uint64(c.loads),
		TokensLoaded:       uint64(c.tokens_loaded),
		ArenaCorrupt:       uint64(c.arena_corrupt),
		TierStores:         uint64(c.tier_stores),
		TierStoresDropped:  uint64(c.tier_stores_dropped),
		TierLoads:          uint64(c.tier_loads),
		TierCorrupt:        uint64(c.tier_corrupt),
		Requests:           uint64(c.requests),
		RequestsCanceled:   uint64(c.requests_canceled),
		RequestsTimedOut:   uint64(c.requests_timed_out),
		UnknownCompletions: uint64(c.unknown_completions),
		ManagerForgets:     uint64(c.manager_forgets),
		StepsMax:           uint64(c.steps_max),
		CopiesFailed:       uint64(c.copies_failed),
	}
	u64s(c.tier_misses[:], out.TierMisses[:])
	return out, err
}

// NumLatencies is the number of intervals that latencies are counted in. Their upper ends are 100, 300,
// 1,000, 3,000, 10,000, 30,000, 100,000, 300,000 and 1,000,000 us; the last one has none.
const NumLatencies = C.KVFOLIO_NUM_LATENCIES

// TierCounters is what one tier of an Offload did (OffloadTierCounters in offload.h).
type TierCounters struct {
	Stores             uint64 // that the tier said are done
	StoresFailed       uint64 // that it did not keep, for good
	Loads              uint64 // that came and verified
	LoadsCorrupt       uint64 // that came and did not
	LoadsFailed        [NumResults]uint64
	BytesStored        uint64
	BytesLoaded        uint64 // of Loads
	StoreLatency       [NumLatencies]uint64
	LoadLatency        [NumLatencies]uint64
	StoreTime          time.Duration // of all together
	LoadTime           time.Duration // the same
	StoresFailedInARow uint64        // a tier may be silent about its trouble: watch this
	StoresDropped      uint64        // that it was never given
	StoresAgain        uint64        // tries of stores that ended late or busy, and were made again
	Pauses             uint64        // that began, since its answers only timed out
	BytesHeld          int64         // of host memory, when the last Poll ended
	PassedOver         bool          // the same: it is not asked or not given stores
}

// TierCounters returns those of a tier: 0 to NumTiers - 1.
func (o *Offload) TierCounters(tier int) (TierCounters, error) {
	c := C.kvfolio_offload_tier_counters{struct_size: C.sizeof_kvfolio_offload_tier_counters}
	err := o.call(func(e *C.kvfolio_error) C.int32_t {
		return C.kvfolio_offload_get_tier_counters(o.c, i32(tier), &c, e)
	})
	out := TierCounters{
		Stores:             uint64(c.stores),
		StoresFailed:       uint64(c.stores_failed),
		Loads:              uint64(c.loads),
		LoadsCorrupt:       uint64(c.loads_corrupt),
		BytesStored:        uint64(c.bytes_stored),
		BytesLoaded:        uint64(c.bytes_loaded),
		StoreTime:          time.Duration(c.store_us) * time.Microsecond,
		LoadTime:           time.Duration(c.load_us) * time.Microsecond,
		StoresFailedInARow: uint64(c.stores_failed_in_a_row),
		StoresDropped:      uint64(c.stores_dropped),
		StoresAgain:        uint64(c.stores_again),
		Pauses:             uint64(c.pauses),
		BytesHeld:          int64(c.bytes_held),
		PassedOver:         c.passed_over != 0,
	}
	u64s(c.loads_failed[:], out.LoadsFailed[:])
	u64s(c.store_latency[:], out.StoreLatency[:])
	u64s(c.load_latency[:], out.LoadLatency[:])
	return out, err
}

// ArenaStats is the host memory of an Offload (ArenaStats in host_arena.h).
type ArenaStats struct {
	Bytes          int64 // the budget
	BytesPublished int64 // of the records that are there
	Records        int64
	Pins           int64 // records that are read now
	Writing        int64 // records that are written now
	Quarantined    int64
	Evictions      uint64
	Refusals       uint64 // no room: all is read or written
}

// Arena returns what the host memory has.
func (o *Offload) Arena() (ArenaStats, error) {
	c := C.kvfolio_arena_stats{struct_size: C.sizeof_kvfolio_arena_stats}
	err := o.call(func(e *C.kvfolio_error) C.int32_t { return C.kvfolio_offload_arena(o.c, &c, e) })
	return ArenaStats{int64(c.bytes), int64(c.bytes_published), int64(c.records), int64(c.pins),
		int64(c.writing), int64(c.quarantined), uint64(c.evictions), uint64(c.refusals)}, err
}
