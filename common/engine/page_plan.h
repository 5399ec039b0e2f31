// How many pages a request needs, and how its sequences share them.
#pragma once

#include <cstdint>

#include "absl/status/status.h"

#include "common/engine/active_request.h"
#include "common/kv/codec/kv_format.h"
#include "common/kv/pool/page_pool.h"

namespace baton::engine {

// Per page table. Pages [0, shared) hold only prompt tokens and are shared by all sequences;
// [shared, prompt) is the partly filled last prompt page, of which every further sequence gets its
// own copy; [prompt, total) are private.
struct PagePlan {
  int32_t shared = 0;
  int32_t prompt = 0;
  int32_t total = 0;
  int32_t sequences = 1;
  int32_t tables = 0;

  bool copies_last_prompt_page() const { return shared < prompt; }
  // Over all sequences and tables; shared pages count once.
  int64_t pages() const {
    return tables * (int64_t{total} + int64_t{sequences - 1} * (total - shared));
  }
};

// With `generates`, room for prompt_tokens + n x max_tokens; without (role prefill), for the
// prompt.
PagePlan PlanPages(const kv::KvFormat& format,
                   int64_t prompt_tokens,
                   int32_t n,
                   int32_t max_tokens,
                   bool generates);

// Gives `request` its sequences with their page tables, or nothing (false) when too few pages are
// free now.
bool AllocateSequences(const PagePlan& plan, kv::PagePool& pool, ActiveRequest& request);

// Returns every page and forgets the sequences.
void ReleaseSequences(kv::PagePool& pool, ActiveRequest& request);

}  // namespace baton::engine
