// SPDX-License-Identifier: Apache-2.0

package tiers

// #include <kvfolio/kvfolio_tiers.h>
import "C"

import (
	"time"

	kvfolio "github.com/kvfolio/kvfolio/bindings/go"
)

// Engine says how a tier on a disk reads and writes.
type Engine int32

// Engines.
const (
	EngineAuto    Engine = C.KVFOLIO_DISK_AUTO // io_uring, or threads where that does not work
	EngineIOUring Engine = C.KVFOLIO_DISK_IO_URING
	EngineThreads Engine = C.KVFOLIO_DISK_THREADS
)

// DiskOptions of a tier on a disk (DiskTierOptions in disk_tier.h, which says the limits).
type DiskOptions struct {
	Bytes          int64 // that all files together may take; needed
	SegmentBytes   int64 // 0: derived
	Engine         Engine
	NumThreads     int   // 0: 8
	QueueDepth     int   // 0: 32
	NoDirect       bool  // through the page cache
	QueuedBytesMax int64 // 0: 512 MiB
	ScrubBytesPerS int64 // 0: records are not read again
	ItemsMax       int   // accepted and not done; 0: 4,096
	OpenFilesMax   int   // 0: a quarter of RLIMIT_NOFILE, 8 to 256
	Keys           RecordKeys
}

// NewDiskTier opens a tier in a directory of the local disk, which is made if it is not there, and of
// which it is the only writer (disk_tier.h, which says the errors).
func NewDiskTier(directory string, options *DiskOptions) (*Tier, error) {
	if err := checkABI(); err != nil {
		return nil, err
	}
	if err := noZeros("NewDiskTier", [2]string{"directory", directory}); err != nil {
		return nil, err
	}
	var l lent
	defer l.free()
	var o *C.kvfolio_disk_options
	if options != nil {
		o = &C.kvfolio_disk_options{
			struct_size:         C.sizeof_kvfolio_disk_options,
			engine:              C.int32_t(options.Engine),
			bytes:               C.int64_t(options.Bytes),
			segment_bytes:       C.int64_t(options.SegmentBytes),
			num_threads:         i32(options.NumThreads),
			queue_depth:         i32(options.QueueDepth),
			no_direct:           b32(options.NoDirect),
			queued_bytes_max:    C.int64_t(options.QueuedBytesMax),
			scrub_bytes_per_s:   C.int64_t(options.ScrubBytesPerS),
			items_max:           i32(options.ItemsMax),
			open_files_max:      i32(options.OpenFilesMax),
			record_key:          keyToC(options.Keys.Key, &l),
			accepted_record_key: keyToC(options.Keys.Accepted, &l),
		}
	}
	path := (*C.char)(l.bytes([]byte(directory)))
	var out *C.kvfolio_tier
	err := call(func(e *C.kvfolio_error) C.int32_t {
		return C.kvfolio_tier_open_disk(path, o, &out, e)
	})
	if err != nil {
		return nil, err
	}
	return newTier(out, bornOf()), nil
}

// DiskStats are of a tier on a disk: what is there, and what was counted since it was opened.
type DiskStats struct {
	Bytes             int64 // that the files take, at most the budget
	Records           int64
	Segments          int64
	Recovered         uint64 // records that were there when it was opened
	RecoveredByFooter uint64 // of these, without a look at their headers
	Stored            uint64
	StoredBytes       uint64
	Loaded            uint64
	LoadedBytes       uint64
	Corrupt           uint64 // records that were not what was stored
	IOErrors          uint64
	NoSpace           uint64
	Dropped           uint64 // stores that were accepted and found no room
	Evicted           uint64 // records that went with their segment
	Reinserted        uint64 // records that were written again instead
	ScrubbedBytes     uint64
	OfAnotherKey      uint64 // loads that met a record of another key, or of none: misses
}

// DiskStats returns those of a tier on a disk; ErrUnsupported: a tier of another kind.
func (t *Tier) DiskStats() (DiskStats, error) {
	defer t.lock()()
	if t.p() == nil {
		return DiskStats{}, closed("Tier")
	}
	c := C.kvfolio_disk_stats{struct_size: C.sizeof_kvfolio_disk_stats}
	err := call(func(e *C.kvfolio_error) C.int32_t { return C.kvfolio_tier_disk_stats(t.c, &c, e) })
	return DiskStats{
		Bytes:             int64(c.bytes),
		Records:           int64(c.records),
		Segments:          int64(c.segments),
		Recovered:         uint64(c.recovered),
		RecoveredByFooter: uint64(c.recovered_by_footer),
		Stored:            uint64(c.stored),
		StoredBytes:       uint64(c.stored_bytes),
		Loaded:            uint64(c.loaded),
		LoadedBytes:       uint64(c.loaded_bytes),
		Corrupt:           uint64(c.corrupt),
		IOErrors:          uint64(c.io_errors),
		NoSpace:           uint64(c.no_space),
		Dropped:           uint64(c.dropped),
		Evicted:           uint64(c.evicted),
		Reinserted:        uint64(c.reinserted),
		ScrubbedBytes:     uint64(c.scrubbed_bytes),
		OfAnotherKey:      uint64(c.of_another_key),
	}, err
}

// RedisTLS encrypts the connections. Paths are of PEM files.
type RedisTLS struct {
	CAFile     string // empty: the system's
	CertFile   string // of this client; empty: none
	KeyFile    string // the same
	ServerName string // that every certificate must have; empty: the host of the node
}

// RedisOptions of a tier in Redis (RedisOptions in redis_tier.h, which says the limits).
type RedisOptions struct {
	Servers          string // "HOST:PORT,HOST:PORT": nodes of one cluster, or one server
	User             string // of an ACL; empty: the default user
	Password         string
	KeyPrefix        string        // empty: "kvfolio:"
	TLS              *RedisTLS     // nil: none
	TTL              time.Duration // of a record; 0: the server's policy decides
	ItemsMax         int           // accepted and not done; 0: 4,096
	RecordBytesMax   int64         // 0: 64 MiB
	BytesInFlightMax int64         // on a connection; 0: 8 MiB
	BytesPerPoll     int64         // 0: 512 KiB
	ConnectTimeout   time.Duration // until a connection is greeted; 0: 200 ms
	StallTimeout     time.Duration // without a byte, while a reply is due; 0: 500 ms
	BreakerMin       time.Duration // a node that fails is left alone as long; 0: 500 ms
	BreakerMax       time.Duration // and longer each time, up to this; 0: 5 s
	Keys             RecordKeys    // all who share a KeyPrefix have the same
}

// String leaves the password out.
func (o RedisOptions) String() string { return "Redis at " + o.Servers }

// GoString is String.
func (o RedisOptions) GoString() string { return o.String() }

// NewRedisTier makes a tier in a Redis Cluster, or in one server (redis_tier.h, which says the errors).
// It resolves the names, which may wait for a name server, and connects in polls. ErrUnsupported: the
// library was built without hiredis.
func NewRedisTier(options *RedisOptions) (*Tier, error) {
	if err := checkABI(); err != nil {
		return nil, err
	}
	if options == nil {
		return nil, failf(kvfolio.ErrInvalidArgument, "NewRedisTier: the options are nil")
	}
	tls := options.TLS
	if tls == nil {
		tls = &RedisTLS{}
	}
	err := noZeros("NewRedisTier", [2]string{"Servers", options.Servers}, [2]string{"User", options.User},
		[2]string{"Password", options.Password}, [2]string{"KeyPrefix", options.KeyPrefix},
		[2]string{"CAFile", tls.CAFile}, [2]string{"CertFile", tls.CertFile},
		[2]string{"KeyFile", tls.KeyFile}, [2]string{"ServerName", tls.ServerName})
	if err != nil {
		return nil, err
	}
	if ttl := options.TTL; ttl < 0 || ttl%time.Millisecond != 0 {
		return nil, failf(kvfolio.ErrInvalidArgument,
			"NewRedisTier: TTL is %v, allowed: whole milliseconds", ttl)
	}
	err = checkDurations("NewRedisTier", duration{"ConnectTimeout", options.ConnectTimeout},
		duration{"StallTimeout", options.StallTimeout}, duration{"BreakerMin", options.BreakerMin},
		duration{"BreakerMax", options.BreakerMax})
	if err != nil {
		return nil, err
	}
	var l lent
	defer l.free()
	o := &C.kvfolio_redis_tier_options{
		struct_size:         C.sizeof_kvfolio_redis_tier_options,
		items_max:           i32(options.ItemsMax),
		servers:             (*C.char)(l.bytes([]byte(options.Servers))),
		user:                l.word(options.User),
		password:            l.word(options.Password),
		key_prefix:          l.word(options.KeyPrefix),
		tls_ca_file:         l.word(tls.CAFile),
		tls_cert_file:       l.word(tls.CertFile),
		tls_key_file:        l.word(tls.KeyFile),
		tls_server_name:     l.word(tls.ServerName),
		tls:                 b32(options.TLS != nil),
		ttl_ms:              C.uint64_t(options.TTL.Milliseconds()),
		record_bytes_max:    C.int64_t(options.RecordBytesMax),
		bytes_in_flight_max: C.int64_t(options.BytesInFlightMax),
		bytes_per_poll:      C.int64_t(options.BytesPerPoll),
		connect_timeout_us:  durationToC(options.ConnectTimeout),
		stall_timeout_us:    durationToC(options.StallTimeout),
		breaker_us_min:      durationToC(options.BreakerMin),
		breaker_us_max:      durationToC(options.BreakerMax),
		record_key:          keyToC(options.Keys.Key, &l),
		accepted_record_key: keyToC(options.Keys.Accepted, &l),
	}
	var out *C.kvfolio_tier
	err = call(func(e *C.kvfolio_error) C.int32_t { return C.kvfolio_tier_create_redis(o, &out, e) })
	if err != nil {
		return nil, err
	}
	return newTier(out, bornOf()), nil
}

// RedisCounters are of a tier in Redis.
type RedisCounters struct {
	StoresRefused   uint64 // by the server: full, read only, or not allowed
	Redirects       uint64 // MOVED and ASK
	Retries         uint64 // items that were sent again
	Connections     uint64 // that were greeted
	ConnectionsLost uint64
	RepliesRefused  uint64 // that did not fit the question
	BytesSent       uint64
	BytesReceived   uint64
	OfAnotherKey    uint64 // loads that met a record of another key, or of none: misses
}

// RedisCounters returns those of a tier in Redis; ErrUnsupported: a tier of another kind.
func (t *Tier) RedisCounters() (RedisCounters, error) {
	defer t.lock()()
	if t.p() == nil {
		return RedisCounters{}, closed("Tier")
	}
	c := C.kvfolio_redis_tier_counters{struct_size: C.sizeof_kvfolio_redis_tier_counters}
	err := call(func(e *C.kvfolio_error) C.int32_t { return C.kvfolio_tier_redis_counters(t.c, &c, e) })
	return RedisCounters{uint64(c.stores_refused), uint64(c.redirects), uint64(c.retries),
		uint64(c.connections), uint64(c.connections_lost), uint64(c.replies_refused),
		uint64(c.bytes_sent), uint64(c.bytes_received), uint64(c.of_another_key)}, err
}
