// What the engine hands over at commit, as it travels on the control stream.
#pragma once

#include "common/engine/request.h"
#include "proto/baton/worker/v1/kv_transfer.pb.h"

namespace baton::handoff {

// Fills first_tokens, finished, prompt_token_bitmap and kv_state of `commit`; token i of `info`
// becomes sequence i's.
void FillCommit(const engine::CommitInfo& info, worker::v1::Commit& commit);

}  // namespace baton::handoff
