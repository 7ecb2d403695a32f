// SPDX-License-Identifier: Apache-2.0

// Package ctier is a tier in C for the tests of package tiers: tests cannot have C of their own.
package ctier

// #include <stdlib.h>
// #include <string.h>
// #include <kvfolio/kvfolio_tiers.h>
//
// enum { kRecords = 64, kQueue = 256 };
// typedef struct map_tier {
//   kvfolio_tier_key keys[kRecords];
//   void* records[kRecords];
//   int64_t bytes[kRecords];
//   int num_records;
//   kvfolio_tier_item queue[kQueue];
//   int32_t ops[kQueue];
//   int num_queued;
//   int holds;  // finish nothing
//   int lies;   // say that something else is done, too
//   int stopped;
//   int destroyed;
//   uint64_t ended;
// } map_tier;
//
// static int64_t map_submit(void* context, int32_t op, const kvfolio_tier_item* items, int64_t n,
//                           uint64_t deadline_us) {
//   map_tier* const t = context;
//   (void)deadline_us;
//   int64_t i = 0;
//   for (; !t->stopped && i < n && t->num_queued < kQueue; ++i, ++t->num_queued) {
//     t->queue[t->num_queued] = items[i];
//     t->ops[t->num_queued] = op;
//   }
//   return i;
// }
// static int32_t map_do(map_tier* t, int32_t op, const kvfolio_tier_item* item) {
//   int i = 0;
//   while (i < t->num_records && memcmp(&t->keys[i], &item->key, sizeof item->key) != 0) ++i;
//   const int found = i < t->num_records;
//   if (op == KVFOLIO_TIER_STORE) {
//     if (found) return KVFOLIO_TIER_OK;
//     if (i == kRecords) return KVFOLIO_TIER_BUSY;
//     t->keys[i] = item->key;
//     t->records[i] = malloc((size_t)item->bytes);
//     memcpy(t->records[i], item->data, (size_t)item->bytes);
//     t->bytes[i] = item->bytes;
//     t->num_records = i + 1;
//     return KVFOLIO_TIER_OK;
//   }
//   if (!found) return op == KVFOLIO_TIER_ERASE ? KVFOLIO_TIER_OK : KVFOLIO_TIER_MISS;
//   if (op == KVFOLIO_TIER_LOAD) {
//     if (t->bytes[i] != item->bytes) return KVFOLIO_TIER_CORRUPT;
//     memcpy(item->data, t->records[i], (size_t)item->bytes);
//   } else if (op == KVFOLIO_TIER_ERASE) {
//     free(t->records[i]);
//     --t->num_records;
//     t->keys[i] = t->keys[t->num_records];
//     t->records[i] = t->records[t->num_records];
//     t->bytes[i] = t->bytes[t->num_records];
//   }
//   return KVFOLIO_TIER_OK;
// }
// static int64_t map_poll(void* context, uint64_t now_us, kvfolio_tier_done* done, int64_t capacity) {
//   map_tier* const t = context;
//   (void)now_us;
//   int64_t n = 0;
//   if (t->holds) return 0;
//   if (t->lies && n < capacity) done[n++] = (kvfolio_tier_done){.tag = 1u << 30};
//   int first = 0;
//   for (; first < t->num_queued && n < capacity; ++first, ++t->ended) {
//     done[n++] = (kvfolio_tier_done){.tag = t->queue[first].tag,
//                                     .result = map_do(t, t->ops[first], &t->queue[first])};
//   }
//   t->num_queued -= first;
//   memmove(t->queue, t->queue + first, (size_t)t->num_queued * sizeof t->queue[0]);
//   memmove(t->ops, t->ops + first, (size_t)t->num_queued * sizeof t->ops[0]);
//   return n;
// }
// static int32_t map_event_fd(void* context) { return (void)context, -1; }
// static void map_health(void* context, kvfolio_tier_health* out) {
//   out->unusable = ((map_tier*)context)->stopped;
//   out->loads_ok = ((map_tier*)context)->ended;
// }
// static int32_t map_close(void* context, uint64_t deadline_us) {
//   (void)deadline_us;
//   ((map_tier*)context)->stopped = 1;
//   return 0;
// }
// static void map_destroy(void* context) { ((map_tier*)context)->destroyed = 1; }
// // Addresses, for Go.
// static void* map_function(int which) {
//   switch (which) {
//     case 0: return (void*)map_submit;
//     case 1: return (void*)map_poll;
//     case 2: return (void*)map_event_fd;
//     case 3: return (void*)map_health;
//     case 4: return (void*)map_close;
//     default: return (void*)map_destroy;
//   }
// }
import "C"

import "unsafe"

// Functions of the tier, in the order of kvfolio_tier_functions.
var (
	Submit  = C.map_function(0)
	Poll    = C.map_function(1)
	EventFD = C.map_function(2)
	Health  = C.map_function(3)
	Close   = C.map_function(4)
	Destroy = C.map_function(5)
)

// Map is a tier over records in memory, whose context it is.
type Map struct{ c *C.map_tier }

// New makes an empty one. It is never freed.
func New() Map { return Map{(*C.map_tier)(C.calloc(1, C.sizeof_map_tier))} }

// Context is that of the functions.
func (m Map) Context() unsafe.Pointer { return unsafe.Pointer(m.c) }

// Hold makes it finish nothing, or go on.
func (m Map) Hold(holds bool) {
	m.c.holds = 0
	if holds {
		m.c.holds = 1
	}
}

// Lie makes it say that something is done that was not asked.
func (m Map) Lie() { m.c.lies = 1 }

// Len returns how many records there are.
func (m Map) Len() int { return int(m.c.num_records) }

// Flip changes one bit of each record.
func (m Map) Flip() {
	for i := 0; i < m.Len(); i++ {
		*(*byte)(unsafe.Add(m.c.records[i], int(m.c.bytes[i])/2)) ^= 1
	}
}

// Destroyed says whether the tier has ended.
func (m Map) Destroyed() bool { return m.c.destroyed != 0 }
