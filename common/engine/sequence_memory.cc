#include "common/engine/sequence_memory.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "common/base/status_macros.h"
#include "common/engine/active_request.h"
#include "common/engine/kept_kv.h"
#include "common/engine/kv_choice.h"
#include "common/engine/page_plan.h"
#include "common/engine/sampling_params.h"
#include "common/engine/sequence.h"
#include "common/kv/codec/kv_format.h"
#include "common/kv/pool/page_pool.h"

namespace baton::engine {
namespace {

int32_t Sequences(const MemoryUse& use, const SamplingParams& sampling) {
  return use.generates ? sampling.n : 1;
}

int64_t GeneratedTokens(const MemoryUse& use, const SamplingParams& sampling) {
  return use.generates ? sampling.max_tokens : 0;
}

// Hidden states travel between workers only.
bool HoldsHidden(const MemoryUse& use, const KvChoice& kv) {
  return kv.hidden != nullptr && use.prefills != use.generates;
}

// Stored layers that need dense pages for a prompt that is encoded: all where it is computed, the
// upper ones where they are made from hidden states.
struct WorkingLayers {
  int32_t begin = 0;
  int32_t end = 0;
};

WorkingLayers WorkingLayersOf(const kv::KvFormat& dense, const MemoryUse& use, const KvChoice& kv) {
  if (use.prefills) {
    return {.begin = 0, .end = dense.page_tables()};
  }
  return HoldsHidden(use, kv)
             ? WorkingLayers{.begin = kv.hidden->full_layers(), .end = dense.page_tables()}
             : WorkingLayers{};
}

void MakeSequences(const MemoryUse& use, ActiveRequest& request) {
  // At once: sequences are referred to by address from now on.
  request.sequences = std::vector<Sequence>(static_cast<size_t>(Sequences(use, request.sampling)));
  for (size_t i = 0; i < request.sequences.size(); ++i) {
    request.sequences[i].index = static_cast<int32_t>(i);
    request.sequences[i].penalties = PenaltyState(request.prompt_bitmap);
  }
}

// Of sequence 0, which stands for the prompt.
bool AllocateWorking(const kv::KvFormat& dense,
                     const WorkingLayers& layers,
                     kv::PagePool& pool,
                     ActiveRequest& request) {
  const int32_t pages_per_table = dense.PagesPerTable(request.prompt_tokens);
  const int64_t count = int64_t{layers.end - layers.begin} * pages_per_table;
  const std::optional<std::vector<kv::PageId>> pages = pool.Allocate(count);
  if (!pages.has_value()) {
    return false;
  }
  request.pages_held = count;
  Sequence& first = request.sequences.front();
  first.pages = kv::PageTable(dense.page_tables(), pages_per_table);
  auto next = pages->begin();
  for (int32_t layer = layers.begin; layer < layers.end; ++layer) {
    for (int32_t page = 0; page < pages_per_table; ++page) {
      first.pages.Set(layer, page, *next++);
    }
  }
  return true;
}

bool AllocateHidden(const MemoryUse& use, ActiveRequest& request) {
  if (!HoldsHidden(use, request.kv)) {
    return true;
  }
  kv::HiddenPool& hidden = *request.kv.hidden;
  request.sequences.front().hidden =
      hidden.Allocate(hidden.Shape(request.kv.policy, request.prompt_tokens));
  return request.sequences.front().hidden != nullptr;
}

// One side of a hand-off observes the upper layers, the other encodes them.
void PlaceWindowScores(ActiveRequest& request) {
  const Sequence& first = request.sequences.front();
  if (first.hidden != nullptr && first.encoded != nullptr) {
    first.encoded->PlaceWindowScores(request.kv.hidden->full_layers(), first.hidden->scores());
  }
}

bool AllocateEncoded(const MemoryUse& use, ActiveRequest& request) {
  for (Sequence& sequence : request.sequences) {
    sequence.encoded = request.kv.encoded->Allocate(
        request.kv.policy.resident, request.prompt_tokens, GeneratedTokens(use, request.sampling));
    if (sequence.encoded == nullptr) {
      return false;
    }
  }
  return true;
}

bool AllocateDense(const kv::KvFormat& dense,
                   const MemoryUse& use,
                   kv::PagePool& pool,
                   ActiveRequest& request) {
  const PagePlan plan = PlanPages(
      dense, request.prompt_tokens, request.sampling.n, request.sampling.max_tokens, use.generates);
  return AllocateSequences(plan, pool, request);
}

// Places from `begin` on of every table, from the front of `pages`.
void FillTables(int32_t begin, std::span<const kv::PageId> pages, kv::PageTable& tables) {
  auto next = pages.begin();
  for (int32_t table = 0; table < tables.tables(); ++table) {
    for (int32_t page = begin; page < tables.stride(); ++page) {
      tables.Set(table, page, *next++);
    }
  }
}

void AdoptKept(KeptKv& kept, int64_t new_pages, ActiveRequest& request) {
  request.cached_tokens = static_cast<int64_t>(kept.token_ids.size());
  request.stats.cached_tokens = request.cached_tokens;
  request.pages_held = kept.pages_held + new_pages;
  request.sequences = std::vector<Sequence>(1);
  Sequence& sequence = request.sequences.front();
  sequence.pages = std::move(kept.sequence.pages);
  sequence.encoded = std::move(kept.sequence.encoded);
  sequence.computed_tokens = request.cached_tokens;
  sequence.penalties = PenaltyState(request.prompt_bitmap);
}

}  // namespace

bool AllocateMemory(const kv::KvFormat& dense,
                    const MemoryUse& use,
                    kv::PagePool& pool,
                    ActiveRequest& request) {
  bool enough = false;
  if (request.kv.encoded == nullptr) {
    enough = AllocateDense(dense, use, pool, request) && AllocateHidden(use, request);
  } else {
    MakeSequences(use, request);
    enough = AllocateWorking(dense, WorkingLayersOf(dense, use, request.kv), pool, request) &&
             AllocateHidden(use, request) && AllocateEncoded(use, request);
    PlaceWindowScores(request);
  }
  if (!enough) {
    ReleaseSequences(pool, request);
  }
  return enough;
}

absl::Status CheckMemory(const kv::KvFormat& dense,
                         const MemoryUse& use,
                         int64_t pages_total,
                         const KvChoice& kv,
                         int64_t prompt_tokens,
                         const SamplingParams& sampling) {
  int64_t pages = 0;
  if (kv.encoded == nullptr) {
    pages = PlanPages(dense, prompt_tokens, sampling.n, sampling.max_tokens, use.generates).pages();
  } else {
    BATON_RETURN_IF_ERROR(kv.encoded->Check(kv.policy.resident,
                                            prompt_tokens,
                                            GeneratedTokens(use, sampling),
                                            Sequences(use, sampling)));
    const WorkingLayers layers = WorkingLayersOf(dense, use, kv);
    pages = int64_t{layers.end - layers.begin} * dense.PagesPerTable(prompt_tokens);
  }
  if (HoldsHidden(use, kv) && !kv.hidden->Fits(kv.hidden->Shape(kv.policy, prompt_tokens))) {
    return absl::InvalidArgumentError(
        "EXCEEDS_CAPACITY: the prompt's hidden states are larger than the memory for them");
  }
  if (pages > pages_total) {
    return absl::InvalidArgumentError(absl::StrCat(
        "EXCEEDS_CAPACITY: the request needs ", pages, " KV pages; the pool has ", pages_total));
  }
  return absl::OkStatus();
}

bool ExtendMemory(const kv::KvFormat& dense,
                  kv::PagePool& pool,
                  KeptKv& kept,
                  ActiveRequest& request) {
  Sequence& sequence = kept.sequence;
  const bool encoded = sequence.encoded != nullptr;
  const auto cached_tokens = static_cast<int64_t>(kept.token_ids.size());
  // Dense: the pages behind those that are there. Encoded: working pages for the new tokens.
  const int32_t begin = encoded ? static_cast<int32_t>(cached_tokens / dense.tokens_per_page())
                                : dense.PagesPerTable(cached_tokens);
  const int32_t end =
      dense.PagesPerTable(request.prompt_tokens + (encoded ? 0 : request.sampling.max_tokens));
  const int64_t count = int64_t{dense.page_tables()} * (end - begin);
  std::optional<std::vector<kv::PageId>> pages = pool.Allocate(count);
  if (!pages.has_value()) {
    return false;
  }
  if (encoded && !request.kv.encoded->Extend(
                     *sequence.encoded, request.prompt_tokens, request.sampling.max_tokens)) {
    for (const kv::PageId page : *pages) {
      pool.Release(page);
    }
    return false;
  }
  if (encoded) {
    sequence.pages = kv::PageTable(dense.page_tables(), end);
  } else {
    sequence.pages.Resize(end, pool);
  }
  FillTables(begin, *pages, sequence.pages);
  AdoptKept(kept, count, request);
  return true;
}

void ReleaseWorkingPages(kv::PagePool& pool, ActiveRequest& request) {
  Sequence& first = request.sequences.front();
  request.pages_held -= first.pages.pages();
  first.pages.ReleaseAll(pool);
}

}  // namespace baton::engine
