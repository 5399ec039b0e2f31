// The memory of a request's sequences, whatever its format.
#pragma once

#include "absl/status/status.h"

#include "common/engine/active_request.h"
#include "common/engine/kept_kv.h"
#include "common/engine/kv_choice.h"
#include "common/engine/sampling_params.h"
#include "common/kv/codec/kv_format.h"
#include "common/kv/pool/page_pool.h"

namespace baton::engine {

// What an engine does with a request decides what it has to hold.
struct MemoryUse {
  bool prefills = true;   // computes the prompt, which needs dense pages whatever the format
  bool generates = true;  // holds what is generated, n times
};

// Gives `request` its sequences with everything that they may ever need, or nothing (false) when
// too little is free now.
bool AllocateMemory(const kv::KvFormat& dense,
                    const MemoryUse& use,
                    kv::PagePool& pool,
                    ActiveRequest& request);

// Gives `request` the kept sequence, with the memory for the rest of its prompt and for what it may
// generate, or changes nothing (false) when too little is free now.
bool ExtendMemory(const kv::KvFormat& dense,
                  kv::PagePool& pool,
                  KeptKv& kept,
                  ActiveRequest& request);

// Whether AllocateMemory can ever succeed in an empty engine of `pages_total` dense pages:
// kInvalidArgument with EXCEEDS_CAPACITY if not.
absl::Status CheckMemory(const kv::KvFormat& dense,
                         const MemoryUse& use,
                         int64_t pages_total,
                         const KvChoice& kv,
                         int64_t prompt_tokens,
                         const SamplingParams& sampling);

// Gives back the dense pages in which an encoded prompt was computed.
void ReleaseWorkingPages(kv::PagePool& pool, ActiveRequest& request);

}  // namespace baton::engine
