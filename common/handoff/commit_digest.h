// The digest by which both sides of a hand-off hold its commit.
#pragma once

#include <cstdint>
#include <span>

#include "proto/baton/worker/v1/kv_transfer.pb.h"

namespace baton::handoff {

// xxh3-64 over the checksums of all segments in order, then over the commit as protobuf encodes it
// with its digest left out: fields by ascending number. So neither a segment nor first tokens,
// finishes, prompt bitmap and KV state can change unnoticed. Thread-safe.
uint64_t CommitDigest(std::span<const uint64_t> checksums, const worker::v1::Commit& commit);

}  // namespace baton::handoff
