// What prefill hands over at commit, read from outside bytes.
#pragma once

#include "absl/status/statusor.h"

#include "common/engine/request.h"
#include "proto/baton/worker/v1/kv_transfer.pb.h"

namespace baton::handoff {

// kInvalidArgument when first tokens are not exactly one for each of sequences 0..n-1, a sequence
// finishes twice or without existing, or a value does not fit. kv_wire_bytes is left 0.
absl::StatusOr<engine::CommitInfo> ReadCommit(const worker::v1::Commit& commit);

}  // namespace baton::handoff
