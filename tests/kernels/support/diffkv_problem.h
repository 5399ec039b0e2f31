// One sequence in format `diffkv`: dense prompt pages, a page pool and what the ops are called
// with.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"

#include "kernels/core/buffer.h"
#include "kernels/kv_format/diffkv.h"
#include "kernels/ops/diffkv_params.h"
#include "kernels/ops/op_table.h"

namespace baton::kernels {

struct DiffKvShape {
  DiffKvGeometry geometry = {.kv_heads = 2, .head_dim = 64};
  int64_t group = 2;  // query heads per KV head
  int32_t sliding_window = 0;
};

// `policy` for a sequence whose prompt has this many tokens and was not extended.
DiffKvPolicy AfterPrompt(DiffKvPolicy policy, int32_t prompt_tokens);

// Normally distributed values times `scale` that bf16 holds exactly; `seed` picks them.
std::vector<float> SeededFloats(int64_t count, uint32_t seed, float scale);

// The key and the value that DiffKvCache::Append writes for a seed, [kv_heads][head_dim] each.
struct DiffKvToken {
  DiffKvToken(const DiffKvGeometry& geometry, uint32_t seed);

  std::vector<float> k;
  std::vector<float> v;
};

// The policy of tests in which high, low and pruned tokens all occur.
DiffKvPolicy MixedPolicy(int32_t prompt_tokens);

// Each head_dim, with pairs of tiers in which every tier is high and low where it
// can be.
std::vector<DiffKvGeometry> DiffKvGeometries(int32_t kv_heads = 2);

// For traces: tiers, head_dim, query heads and window.
std::string Describe(const DiffKvShape& shape);

// Random keys, values and score sums of a prompt in dense fp32 or bf16 pages.
struct DiffKvPrompt {
  DiffKvPrompt(const DiffKvGeometry& geometry, int32_t tokens, DType dtype = DType::kBF16);

  int32_t tokens;
  DensePageLayout layout;
  Buffer dense;
  std::vector<int32_t> dense_table;
  std::vector<float> scores;  // [kv_heads][tokens]
};

// One layer of one sequence with its own pool, poisoned with NaN bytes; ids are leased from the end
// of the pool down, so that page ids and columns differ. Copies are deep.
class DiffKvCache {
 public:
  DiffKvCache(const DiffKvShape& shape, int32_t max_tokens);

  // Classifies, assigns pages and encodes.
  void Load(const OpTable& ops,
            const ExecContext& context,
            const DiffKvPrompt& prompt,
            const DiffKvPolicy& policy);
  // Appends one token with random key and value; `seed` picks them.
  absl::Status Append(const OpTable& ops,
                      const ExecContext& context,
                      const DiffKvPolicy& policy,
                      int32_t position,
                      uint32_t seed,
                      bool sweep = true);
  // Attention of one query at `position` ([heads][head_dim]); returns the outputs. A cache that
  // several layers read is attended with first and last set apart.
  std::vector<float> Attend(const OpTable& ops,
                            const ExecContext& context,
                            int32_t position,
                            uint32_t seed,
                            bool first = true,
                            bool last = true);

  int32_t Count(int32_t head, int32_t tier) const;
  int32_t PagesHeld(int32_t head) const;
  std::byte* PageData(int32_t head, int32_t tier, int32_t page);
  DiffKvLayer layer();
  DiffKvPages pages();

  DiffKvShape shape;
  int32_t columns;
  std::vector<int32_t> table;
  std::vector<int32_t> counts;
  std::vector<int32_t> ids;
  DiffKvLease lease;
  std::vector<std::byte> pool;
  std::vector<float> probabilities;  // [kv_heads][max_tokens]
  std::vector<DiffKvClass> classes;
  std::vector<DiffKvAction> actions;
  int32_t max_tokens;
};

// Same page table, counts, lease and pool bytes.
void ExpectSameCache(const DiffKvCache& got, const DiffKvCache& want);

}  // namespace baton::kernels
