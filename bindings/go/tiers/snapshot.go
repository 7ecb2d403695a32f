// SPDX-License-Identifier: Apache-2.0

package tiers

// #include <stdlib.h>
// #include <string.h>
// #include <kvfolio/kvfolio_tiers.h>
//
// // A sink that collects, and a source over bytes of Go that live as long as the call.
// typedef struct kvfolio_go_bytes {
//   uint8_t* data;
//   int64_t size;
//   int64_t capacity;
// } kvfolio_go_bytes;
// static int32_t kvfolio_go_write(void* context, const void* from, int64_t n) {
//   kvfolio_go_bytes* const to = context;
//   if (n > INT64_MAX / 2 - to->size) return KVFOLIO_ERR_OUT_OF_MEMORY;
//   if (to->size + n > to->capacity) {
//     const int64_t capacity = 2 * (to->size + n);
//     uint8_t* const data = realloc(to->data, (size_t)capacity);
//     if (data == NULL) return KVFOLIO_ERR_OUT_OF_MEMORY;
//     to->data = data;
//     to->capacity = capacity;
//   }
//   memcpy(to->data + to->size, from, (size_t)n);
//   to->size += n;
//   return KVFOLIO_OK;
// }
// static int32_t kvfolio_go_save(kvfolio_manager* manager, kvfolio_identity* identity,
//                                const kvfolio_save_list* list, const kvfolio_save_options* options,
//                                kvfolio_go_bytes* out, kvfolio_save_stats* stats,
//                                kvfolio_error* error) {
//   const kvfolio_byte_sink sink = {
//       .struct_size = sizeof sink, .context = out, .write = kvfolio_go_write};
//   return kvfolio_save(manager, identity, &sink, list, options, stats, error);
// }
// typedef struct kvfolio_go_source {
//   const uint8_t* data;
// } kvfolio_go_source;
// static int32_t kvfolio_go_read_at(void* context, int64_t offset, void* out, int64_t n) {
//   memcpy(out, ((const kvfolio_go_source*)context)->data + offset, (size_t)n);
//   return KVFOLIO_OK;
// }
// static int32_t kvfolio_go_restore(kvfolio_manager* manager, kvfolio_identity* identity,
//                                   const uint8_t* data, int64_t size,
//                                   const kvfolio_restore_options* options, kvfolio_restored** out,
//                                   kvfolio_error* error) {
//   kvfolio_go_source bytes = {.data = data};
//   const kvfolio_byte_source source = {.struct_size = sizeof source,
//                                       .context = &bytes,
//                                       .size = size,
//                                       .read_at = kvfolio_go_read_at};
//   return kvfolio_restore_with(manager, identity, &source, options, out, error);
// }
import "C"

import (
	"runtime"
	"unsafe"

	kvfolio "github.com/kvfolio/kvfolio/bindings/go"
)

// SaveSequence is a sequence to save, with what the cache does not keep of it.
type SaveSequence struct {
	Sequence kvfolio.Sequence
	Tokens   []int32 // exactly its length
	Root     *kvfolio.Root
	Media    []kvfolio.MediaSpan
}

// SaveOptions: by default the prefix cache alone is saved.
type SaveOptions struct {
	NoPrefixCache bool // only the Sequences
	Sequences     []SaveSequence
	Key           *[32]byte // seals the records; nil: none
}

// SaveStats is what was saved.
type SaveStats struct {
	Records   int64
	Tokens    int64 // of all paths together; what paths share counts once
	Sequences int64
	Bytes     int64
}

// saving is the arguments of a save; end frees them.
type saving struct {
	list    *C.kvfolio_save_list
	options *C.kvfolio_save_options
	lent    lent
}

func (s *saving) end() {
	C.kvfolio_save_list_destroy(s.list)
	s.lent.free()
}

func savingOf(options *SaveOptions) (*saving, error) {
	s := &saving{}
	err := call(func(e *C.kvfolio_error) C.int32_t { return C.kvfolio_save_list_create(&s.list, e) })
	if err != nil || options == nil {
		return s, err
	}
	s.options = &C.kvfolio_save_options{
		struct_size:     C.sizeof_kvfolio_save_options,
		no_prefix_cache: b32(options.NoPrefixCache),
		record_key:      keyToC(options.Key, &s.lent),
	}
	for i := range options.Sequences {
		one := &options.Sequences[i]
		p, err := promptOf(&kvfolio.OpenOptions{Root: one.Root, Media: one.Media})
		if err == nil {
			err = call(func(e *C.kvfolio_error) C.int32_t {
				return C.kvfolio_save_list_add(s.list, C.kvfolio_sequence(one.Sequence), p.root,
					first(one.Tokens), C.int64_t(len(one.Tokens)), p.media, p.n, e)
			})
		}
		if err != nil {
			s.end()
			return nil, err
		}
	}
	runtime.KeepAlive(options)
	return s, nil
}

// handles refuses a cache or an identity that is nil or closed.
func handles(cache *kvfolio.Cache, identity *Identity) (*C.kvfolio_manager, *C.kvfolio_identity, error) {
	if err := checkABI(); err != nil {
		return nil, nil, err
	}
	m, n := manager(cache), identity.p()
	if m == nil {
		return nil, nil, closed("Cache")
	}
	if n == nil {
		return nil, nil, closed("Identity")
	}
	return m, n, nil
}

func statsOf(c *C.kvfolio_save_stats) SaveStats {
	return SaveStats{int64(c.records), int64(c.tokens), int64(c.sequences), int64(c.bytes)}
}

// Save writes the prefix cache, and sequences if asked, to a file of mode 0600, which appears whole or
// not at all, in place of one of that name (save() in snapshot.h, which says the errors). Keep it as
// you keep the prompts of those whose blocks it has. No step is open or in flight.
func Save(cache *kvfolio.Cache, identity *Identity, path string, options *SaveOptions) (SaveStats, error) {
	m, n, err := handles(cache, identity)
	if err != nil {
		return SaveStats{}, err
	}
	if err := noZeros("Save", [2]string{"path", path}); err != nil {
		return SaveStats{}, err
	}
	s, err := savingOf(options)
	if err != nil {
		return SaveStats{}, err
	}
	defer s.end()
	file := (*C.char)(s.lent.bytes([]byte(path)))
	stats := C.kvfolio_save_stats{struct_size: C.sizeof_kvfolio_save_stats}
	err = call(func(e *C.kvfolio_error) C.int32_t {
		return C.kvfolio_save_file(m, n, file, s.list, s.options, &stats, e)
	})
	return statsOf(&stats), err
}

// SaveBytes is Save that returns what the file would hold. There is none to an io.Writer: Functions says
// why.
func SaveBytes(cache *kvfolio.Cache, identity *Identity, options *SaveOptions) ([]byte, SaveStats, error) {
	m, n, err := handles(cache, identity)
	if err != nil {
		return nil, SaveStats{}, err
	}
	s, err := savingOf(options)
	if err != nil {
		return nil, SaveStats{}, err
	}
	defer s.end()
	// Of C, since C writes a pointer of its own to it.
	out := (*C.kvfolio_go_bytes)(C.calloc(1, C.sizeof_kvfolio_go_bytes))
	defer func() {
		C.free(unsafe.Pointer(out.data))
		C.free(unsafe.Pointer(out))
	}()
	stats := C.kvfolio_save_stats{struct_size: C.sizeof_kvfolio_save_stats}
	err = call(func(e *C.kvfolio_error) C.int32_t {
		return C.kvfolio_go_save(m, n, s.list, s.options, out, &stats, e)
	})
	if err != nil {
		return nil, SaveStats{}, err
	}
	bytes := append([]byte(nil), unsafe.Slice((*byte)(unsafe.Pointer(out.data)), int(out.size))...)
	return bytes, statsOf(&stats), nil
}

// RestoredSequence is one that came back, and is open.
type RestoredSequence struct {
	Sequence    kvfolio.Sequence
	HasCallerID bool
	CallerID    uint64
	Tokens      []int32 // as they were saved
	Length      int     // tokens that came back; compute the others again
}

// RestoreStats is what was found in a snapshot, and what was done.
type RestoreStats struct {
	Records         int64 // whole records in the file
	RecordsLoaded   int64 // blocks that were written
	RecordsRefused  int64 // that did not verify when they were read
	SectionsDamaged int64
	Paths           int64 // ends of prompts in the file
	PathsNoRoom     int64 // cut short by the size of the pool
	Tokens          int64 // of all loads
}

// Restored is what came back.
type Restored struct {
	Stats     RestoreStats
	Sequences []RestoredSequence
}

// Restore opens and fills the sequences of a snapshot under their caller ids, then what the prefix cache
// had, as long as there are free blocks: nothing is evicted (restore() in snapshot.h). With keys only
// records that one of them sealed are believed. The new sequences stay open.
//
// ErrCorrupt: not a snapshot. ErrInvalidArgument: another model, type, layout or block size, by the name
// of the field; a caller id that is open. Then nothing has changed. A record that is damaged ends its
// path and nothing else: see RestoreStats.
func Restore(cache *kvfolio.Cache, identity *Identity, path string, keys RecordKeys) (*Restored, error) {
	m, n, err := handles(cache, identity)
	if err != nil {
		return nil, err
	}
	if err := noZeros("Restore", [2]string{"path", path}); err != nil {
		return nil, err
	}
	var l lent
	defer l.free()
	file, options := (*C.char)(l.bytes([]byte(path))), restoreOptions(keys, &l)
	var out *C.kvfolio_restored
	err = call(func(e *C.kvfolio_error) C.int32_t {
		return C.kvfolio_restore_file_with(m, n, file, options, &out, e)
	})
	if err != nil {
		return nil, err
	}
	return takeRestored(out)
}

// RestoreBytes is Restore of what SaveBytes returned, or what a file holds.
func RestoreBytes(cache *kvfolio.Cache, identity *Identity, snapshot []byte,
	keys RecordKeys) (*Restored, error) {
	m, n, err := handles(cache, identity)
	if err != nil {
		return nil, err
	}
	var l lent
	defer l.free()
	options := restoreOptions(keys, &l)
	var out *C.kvfolio_restored
	err = call(func(e *C.kvfolio_error) C.int32_t {
		return C.kvfolio_go_restore(m, n, firstByte(snapshot), C.int64_t(len(snapshot)), options, &out,
			e)
	})
	if err != nil {
		return nil, err
	}
	return takeRestored(out)
}

func restoreOptions(keys RecordKeys, l *lent) *C.kvfolio_restore_options {
	return &C.kvfolio_restore_options{
		struct_size:         C.sizeof_kvfolio_restore_options,
		record_key:          keyToC(keys.Key, l),
		accepted_record_key: keyToC(keys.Accepted, l),
	}
}

// takeRestored copies what C has of it, and destroys that.
func takeRestored(c *C.kvfolio_restored) (*Restored, error) {
	defer C.kvfolio_restored_destroy(c)
	stats := C.kvfolio_restore_stats{struct_size: C.sizeof_kvfolio_restore_stats}
	err := call(func(e *C.kvfolio_error) C.int32_t { return C.kvfolio_restored_stats(c, &stats, e) })
	out := &Restored{Stats: RestoreStats{int64(stats.records), int64(stats.records_loaded),
		int64(stats.records_refused), int64(stats.sections_damaged), int64(stats.paths),
		int64(stats.paths_no_room), int64(stats.tokens)}}
	for i := C.int32_t(0); err == nil && i < C.kvfolio_restored_num_sequences(c); i++ {
		one := C.kvfolio_restored_sequence{struct_size: C.sizeof_kvfolio_restored_sequence}
		err = call(func(e *C.kvfolio_error) C.int32_t { return C.kvfolio_restored_get(c, i, &one, e) })
		sequence := RestoredSequence{kvfolio.Sequence(one.sequence), one.has_caller_id != 0,
			uint64(one.caller_id), nil, int(one.length)}
		for _, token := range unsafe.Slice(one.tokens.data, int(one.tokens.size)) {
			sequence.Tokens = append(sequence.Tokens, int32(token))
		}
		out.Sequences = append(out.Sequences, sequence)
	}
	if err != nil {
		return nil, err
	}
	return out, nil
}
