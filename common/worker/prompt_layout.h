// The layout in which one prompt's KV is handed over.
#pragma once

#include "common/engine/engine.h"
#include "proto/baton/kv/v1/manifest.pb.h"

namespace baton::worker {

// `worker` is the layout of the worker's dense pages; format, policy and pages are the prompt's.
kv::v1::KvLayout PromptLayout(const kv::v1::KvLayout& worker, const engine::HandoffShape& shape);

}  // namespace baton::worker
