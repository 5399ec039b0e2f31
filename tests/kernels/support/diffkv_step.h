// New tokens of a generation step in format `diffkv`, of several layers and sequences, on the host:
// what their page manager reads and writes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"

#include "kernels/core/exec_context.h"
#include "kernels/kv_format/diffkv.h"
#include "kernels/ops/diffkv_params.h"
#include "kernels/ops/op_table.h"

namespace baton::kernels {

struct DiffKvStepShape {
  DiffKvGeometry geometry;
  int32_t layers = 1;
  int32_t sequences = 1;
  int32_t columns = 1;

  int64_t heads() const { return int64_t{layers} * sequences * geometry.kv_heads; }
};

struct DiffKvStepHead {
  int32_t layer;
  int32_t sequence;
  int32_t head;
};

// A value type: a copy has memory of its own. Heads hold nothing until they are set; bytes of the
// pool are all 0xa5.
struct DiffKvStep {
  // Each sequence's lease has `spare` ids, scattered over the pool.
  DiffKvStep(const DiffKvStepShape& shape, int32_t spare);

  // Gives a head its tokens, with pages that are nobody else's, and its decision.
  void SetHead(const DiffKvStepHead& head,
               const std::vector<int32_t>& token_counts,
               const DiffKvAction& action);
  // Sets all heads: as many tokens as leave room for one more, often a full page, and a decision
  // that these allow. One row in four does not sweep.
  void SetRandom(uint32_t seed);

  // The op, on this object.
  absl::Status TakePages(const OpTable& ops, const ExecContext& context);

  // Rows that name memory of this object.
  std::vector<DiffKvAppendRow> Rows();
  DiffKvPages Pages() { return {.base = pool.data(), .geometry = shape.geometry}; }

  size_t Index(const DiffKvStepHead& head) const;
  int32_t PageOf(const DiffKvStepHead& head, int32_t tier, int32_t page) const;
  std::vector<int32_t> CountsOf(const DiffKvStepHead& head) const;
  std::vector<int32_t> PagesOfAction(const DiffKvStepHead& head) const;
  // Ids of pages that are all zeros; the others must be as they were made.
  std::vector<int32_t> ZeroPages() const;
  // Tables, counts, leases and pages are those of `want`; actions too `with_actions`.
  void ExpectSameState(const DiffKvStep& want, bool with_actions) const;

  DiffKvStepShape shape;
  std::vector<int32_t> tables;            // [layers][sequences][kv_heads][columns]
  std::vector<int32_t> counts;            // [layers][sequences][kv_heads][kDiffKvTiers]
  std::vector<DiffKvAction> actions;      // [layers][sequences][kv_heads]
  std::vector<bool> sweeps;               // [layers][sequences]
  std::vector<std::vector<int32_t>> ids;  // of leases
  std::vector<DiffKvLease> leases;        // `ids` of them is set by Rows
  std::vector<std::byte> pool;

 private:
  int32_t next_page_ = 0;  // that no head holds and no lease has
};

}  // namespace baton::kernels
