// SPDX-License-Identifier: Apache-2.0
#pragma once

// Save and restore: a snapshot is a tier in a file. It has the records of the prefix cache (and of
// sequences, if asked), the tokens that lead to them, and the identity of the model and layout. It
// goes into a pool of any size and any free blocks: restoring is opening each path and loading what
// the snapshot has of it.
//
//   auto sink = FileSink::create("cache.kv");
//   save(manager, identity, *sink);  sink->commit();
//   ... another process, another pool size ...
//   auto source = FileSource::open("cache.kv");
//   Result<RestoreStats> stats = restore(manager, identity, *source);
//
// The file is a row of sections, each with a header of 64 bytes that has the section's own place, a
// type, a length and checksums; numbers are little-endian. Sections are found by their headers, one
// behind the other, and behind damage by looking for the next one. So there is no index to trust. A
// record that is damaged ends its path there, and takes nothing else with it.
//
// With a key each record is sealed with a MAC: a writer of the file who does not have the key can
// remove records, but not add any. Only records are sealed: such a writer can also change which
// sequences there are and their caller ids, but never the bytes of their tokens.
//
// Another model, type, layout or block size is refused by the name of the field. A snapshot holds
// the text of all tenants whose blocks it has: keep it as you keep their prompts. It has the bytes
// of tokens and no others: the part of a block behind its last token is saved as zeros.
//
// save() and restore() have a second thread while they run, which computes checksums; media are
// called from the caller's thread. Thread safety: none.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kvfolio/byte_stream.h"
#include "kvfolio/export.h"
#include "kvfolio/identity.h"
#include "kvfolio/ids.h"
#include "kvfolio/manager_types.h"
#include "kvfolio/record.h"
#include "kvfolio/root_key.h"
#include "kvfolio/status.h"

namespace kvfolio {

class KVCacheManager;  // manager.h

// A sequence to save, with what the manager does not keep of it. A promise of reserve() is not
// saved: it is one of this pool, and restore() may fill another. reserve() again there.
struct SnapshotSequence {
  SequenceId sequence{};
  std::span<const std::int32_t> tokens{};  // exactly its length
  RootKey root{};
  std::span<const MediaSpan> media{};
  Publish publish = Publish::kAll;  // as it was opened; kNothing is refused
};

struct SaveOptions {
  bool prefix_cache = true;
  std::span<const SnapshotSequence> sequences{};
  RecordKeyOptions keys{};  // seals the records with `key`
};

struct RestoreOptions {
  // With a key records are believed only if they were sealed with it, and without one only if they
  // were sealed without.
  RecordKeyOptions keys{};
};

struct SaveStats {
  std::int64_t records = 0;
  std::int64_t tokens = 0;  // of all paths together; what paths share counts once
  std::int64_t sequences = 0;
  std::int64_t bytes = 0;  // of the file
};

struct RestoredSequence {
  SequenceId sequence{};
  std::optional<std::uint64_t> caller_id{};
  std::vector<std::int32_t> tokens{};  // as they were saved
  std::int32_t length = 0;             // that came back; compute the others again
};

struct RestoreStats {
  std::int64_t records = 0;         // whole records in the file
  std::int64_t records_loaded = 0;  // blocks that were written
  // That did not verify, or were sealed with another key, or with none although one is given.
  std::int64_t records_refused = 0;
  std::int64_t sections_damaged = 0;
  std::int64_t paths = 0;          // ends of prompts in the file
  std::int64_t paths_no_room = 0;  // and sequences: cut short, or left out, by the size of the pool
  std::int64_t tokens = 0;         // of all loads
  std::vector<RestoredSequence> sequences{};
};

// Writes what the manager's own storage has. kFailedPrecondition: a step is open or in flight; a
// sequence has draft or unnamed tokens, a trim, or another number of tokens than given (names it).
// kUnsupported: no storage, or memory that cannot be copied to the CPU. kNotFound: a sequence.
// kInvalidArgument: `identity` is of another spec; keys, as RecordKeys::create(). kUnavailable: the
// cache's memory failed. Errors of the sink are returned as they are; it has a part of a snapshot
// then, which a FileSink does not commit. The same cache and sequences give the same bytes.
KVFOLIO_API Result<SaveStats> save(KVCacheManager& manager, const Identity& identity,
                                   ByteSink& sink, const SaveOptions& options = {});

// Opens and fills sequences first, under their caller ids, then what the prefix cache had, as long
// as there are free blocks: nothing is evicted. The new sequences stay open. Where one finds no
// place in the pool (max_sequences, table entries, media), it is left out with those behind it, and
// the one before it is closed again: the prefix cache needs a free place to come back. Tokens that
// were not findable when they were saved (the tail of an open sequence) are not findable now.
// kUnsupported: no storage; another version of the format. kCorrupt: not a snapshot, or its first
// section is damaged. kInvalidArgument: another identity, by the name of the field; `identity` is
// of another spec; keys, as RecordKeys::create(); a caller id of the snapshot that is open. Then
// nothing has changed. kUnavailable: the cache's memory failed; no new sequence is open, and of the
// load that failed nothing is findable. Damage behind the first section is no error: see the stats.
// Any file takes bounded memory (512 MiB for tokens, those of RestoredSequence among them, and half
// the bytes of the headers of its records) and time: behind 1 GiB of damage it is not read further.
KVFOLIO_API Result<RestoreStats> restore(KVCacheManager& manager, const Identity& identity,
                                         ByteSource& source, const RestoreOptions& options = {});

}  // namespace kvfolio
