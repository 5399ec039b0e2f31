#include "common/engine/page_plan.h"

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "common/engine/active_request.h"
#include "common/engine/sequence.h"
#include "common/kv/codec/kv_format.h"
#include "common/kv/pool/page_pool.h"

namespace baton::engine {
namespace {

// Fills one table of the sequence from the front of `free_pages`, in order: pages that lie one
// behind the other in the pool do so in a layer, and are copied in one piece. `first` is sequence
// 0.
void FillTable(const PagePlan& plan,
               int32_t table,
               const Sequence& first,
               kv::PagePool& pool,
               std::span<const kv::PageId>& free_pages,
               Sequence& sequence) {
  for (int32_t page = 0; page < plan.total; ++page) {
    if (sequence.index > 0 && page < plan.shared) {
      const kv::PageId shared = first.pages.at(table, page);
      pool.AddReference(shared);
      sequence.pages.Set(table, page, shared);
    } else {
      sequence.pages.Set(table, page, free_pages.front());
      free_pages = free_pages.subspan(1);
    }
  }
}

}  // namespace

PagePlan PlanPages(const kv::KvFormat& format,
                   int64_t prompt_tokens,
                   int32_t n,
                   int32_t max_tokens,
                   bool generates) {
  const int32_t prompt = format.PagesPerTable(prompt_tokens);
  return {.shared = static_cast<int32_t>(prompt_tokens / format.tokens_per_page()),
          .prompt = prompt,
          .total = generates ? format.PagesPerTable(prompt_tokens + max_tokens) : prompt,
          .sequences = generates ? n : 1,
          .tables = format.page_tables()};
}

bool AllocateSequences(const PagePlan& plan, kv::PagePool& pool, ActiveRequest& request) {
  std::optional<std::vector<kv::PageId>> pages = pool.Allocate(plan.pages());
  if (!pages.has_value()) {
    return false;
  }
  std::span<const kv::PageId> free_pages = *pages;
  request.pages_held = plan.pages();
  // Reserved at once: sequences are referred to by address from now on.
  request.sequences = std::vector<Sequence>(static_cast<size_t>(plan.sequences));
  for (int32_t i = 0; i < plan.sequences; ++i) {
    Sequence& sequence = request.sequences[static_cast<size_t>(i)];
    sequence.index = i;
    sequence.pages = kv::PageTable(plan.tables, plan.total);
    sequence.penalties = PenaltyState(request.prompt_bitmap);
    for (int32_t table = 0; table < plan.tables; ++table) {
      FillTable(plan, table, request.sequences.front(), pool, free_pages, sequence);
    }
  }
  return true;
}

void ReleaseSequences(kv::PagePool& pool, ActiveRequest& request) {
  for (Sequence& sequence : request.sequences) {
    sequence.pages.ReleaseAll(pool);
  }
  request.sequences.clear();
  request.pages_held = 0;
}

}  // namespace baton::engine
