#include "services/lab/baselines/baseline.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status_macros.h"
#include "common/kv/codec/encoded_kv.h"
#include "common/kv/codec/host_codec.h"
#include "common/kv/codec/policy_params.h"
#include "common/kv/codec/step_kv.h"
#include "common/kv/pool/page_copies.h"
#include "kernels/core/dtype.h"
#include "kernels/core/half.h"
#include "kernels/ops/activations.h"
#include "services/lab/baselines/token_store.h"

namespace baton::lab {
namespace {

absl::Status StaysHere() {
  return absl::UnimplementedError("a baseline's KV stays in the process that computed it");
}

// Every sequence brings its own class, so one codec serves them all.
class BaselineCodec : public kv::HostCodec {
 public:
  absl::Status Append(std::span<const kv::DecodeRow> rows, const kv::KvEntries& entries) override {
    for (const kv::DecodeRow& row : rows) {
      static_cast<Baseline*>(row.kv)->AppendToken(entries, row.row, row.position);
    }
    return absl::OkStatus();
  }
  absl::Status Attend(std::span<const kv::DecodeRow> rows, const kv::KvQueries& queries) override {
    for (const kv::DecodeRow& row : rows) {
      BATON_RETURN_IF_ERROR(static_cast<Baseline*>(row.kv)->AttendToken(queries, row.row));
    }
    return absl::OkStatus();
  }
};

// A vector as dense pages of `dtype` would hold it.
std::vector<float> Rounded(const float* x, int32_t count, kernels::DType dtype) {
  std::vector<float> rounded(x, x + count);
  if (dtype == kernels::DType::kBF16) {
    for (float& value : rounded) {
      value = kernels::BF16ToF32(kernels::F32ToBF16(value));
    }
  }
  return rounded;
}

}  // namespace

Baseline::Baseline(const BaselineSetup& setup, int64_t capacity)
    : setup_(setup), sizes_(heads(), 0), slots_(static_cast<size_t>(setup.dimensions.kv_heads)) {
  for (int32_t layer = 0; layer < setup.dimensions.layers; ++layer) {
    stores_.emplace_back(setup.dimensions, capacity);
  }
}

kv::KvCodec& Baseline::codec() const {
  static auto& codec = *new BaselineCodec();
  return codec;
}

size_t Baseline::heads() const {
  return static_cast<size_t>(setup_.dimensions.layers) *
         static_cast<size_t>(setup_.dimensions.kv_heads);
}

size_t Baseline::Index(HeadId at) const {
  return static_cast<size_t>(at.kv_layer) * static_cast<size_t>(setup_.dimensions.kv_heads) +
         static_cast<size_t>(at.kv_head);
}

void Baseline::ForHeads(const std::function<void(int32_t kv_head)>& body) {
  setup_.exec.pool->ParallelFor(setup_.dimensions.kv_heads, [&](int64_t head, int /*thread*/) {
    body(static_cast<int32_t>(head));
  });
}

absl::Status Baseline::Observe(const kv::WorkingKv& /*working*/,
                               const kv::PromptRows& /*rows*/,
                               const kv::KvQueries& /*queries*/) {
  return absl::OkStatus();
}

absl::Status Baseline::EncodeLayer(const kv::WorkingKv& working, int32_t kv_layer) {
  const size_t elements =
      static_cast<size_t>(setup_.prompt_tokens) * static_cast<size_t>(head_dim());
  ForHeads([&](int32_t kv_head) {
    std::vector<float> keys(elements);
    std::vector<float> values(elements);
    ReadTokens(working, kv_layer, kv_head, setup_.prompt_tokens, keys, values);
    EncodeHead({.kv_layer = kv_layer, .kv_head = kv_head}, keys, values);
  });
  tokens_ = setup_.prompt_tokens;
  return absl::OkStatus();
}

kv::EncodedLayer Baseline::LayerPages(int32_t /*kv_layer*/) const { return {}; }

std::string Baseline::State() const { return ""; }

std::vector<std::span<std::byte>> Baseline::Window(int32_t /*kv_layer*/, int32_t /*pages*/) {
  return {};
}

absl::Status Baseline::Adopt(std::string_view /*state*/, int32_t /*layers*/) { return StaysHere(); }

absl::StatusOr<std::vector<int32_t>> Baseline::SentPages(std::string_view /*state*/,
                                                         int32_t /*layers*/) const {
  return StaysHere();
}

absl::Status Baseline::CopyTo(kv::EncodedKv& /*other*/,
                              std::vector<kv::PageCopies>& /*copies*/) const {
  return StaysHere();
}

int64_t Baseline::ResidentBytes() const {
  int64_t bytes = 0;
  for (int32_t layer = 0; layer < setup_.dimensions.layers; ++layer) {
    for (int32_t head = 0; head < setup_.dimensions.kv_heads; ++head) {
      bytes += HeadBytes({.kv_layer = layer, .kv_head = head});
    }
  }
  return bytes;
}

void Baseline::AppendToken(const kv::KvEntries& entries, int32_t row, int32_t position) {
  ForHeads([&](int32_t kv_head) {
    const int64_t element = row * entries.stride + int64_t{kv_head} * head_dim();
    AppendHead({.kv_layer = entries.kv_layer, .kv_head = kv_head},
               Rounded(kernels::Floats(entries.k) + element, head_dim(), setup_.dtype).data(),
               Rounded(kernels::Floats(entries.v) + element, head_dim(), setup_.dtype).data(),
               position);
  });
  tokens_ = int64_t{position} + 1;
}

absl::Status Baseline::AttendToken(const kv::KvQueries& queries, int32_t row) {
  if (queries.sliding_window != 0) {
    return absl::UnimplementedError("the lab's baselines have no sliding windows");
  }
  kv::KvQueries one = queries;
  one.q = kernels::Floats(queries.q) + row * queries.q_stride;
  one.out = kernels::Floats(queries.out) + row * queries.out_stride;
  const int32_t group = queries.heads / setup_.dimensions.kv_heads;
  const auto head_query = [&](int32_t kv_head) {
    return HeadQuery{.at = {.kv_layer = queries.kv_layer, .kv_head = kv_head},
                     .q = kernels::Floats(one.q) + int64_t{kv_head} * group * head_dim(),
                     .group = group,
                     .scale = queries.scale};
  };
  ForHeads([&](int32_t kv_head) {
    std::vector<int32_t>& slots = slots_[static_cast<size_t>(kv_head)];
    slots.clear();
    Select(head_query(kv_head), slots);
  });
  for (const std::vector<int32_t>& slots : slots_) {
    counters_.attended_tokens += static_cast<int64_t>(slots.size());
    ++counters_.heads;
  }
  std::vector<std::vector<int32_t>> pages = slots_;
  BATON_RETURN_IF_ERROR(store(queries.kv_layer).Attend(setup_.ops, setup_.exec, pages, one));
  ForHeads([&](int32_t kv_head) {
    Attended(head_query(kv_head), slots_[static_cast<size_t>(kv_head)]);
  });
  return absl::OkStatus();
}

void Baseline::Select(const HeadQuery& query, std::vector<int32_t>& slots) {
  slots.resize(static_cast<size_t>(size(query.at)));
  std::iota(slots.begin(), slots.end(), 0);
}

void Baseline::Add(HeadId at, const float* key, const float* value) {
  store(at.kv_layer).Put(at.kv_head, sizes_[Index(at)]++, key, value);
}

void Baseline::AddAll(HeadId at, std::span<const float> keys, std::span<const float> values) {
  const auto dim = static_cast<size_t>(head_dim());
  for (size_t element = 0; element < keys.size(); element += dim) {
    Add(at, &keys[element], &values[element]);
  }
}

int64_t Baseline::TokenBytes() const {
  return int64_t{2} * head_dim() * static_cast<int64_t>(kernels::DTypeBytes(setup_.dtype));
}

int64_t BudgetTokens(const kv::KvBudget& budget, int64_t prompt_tokens) {
  const int64_t tokens = budget.tokens > 0
                             ? int64_t{budget.tokens}
                             : std::llround(budget.fraction * static_cast<double>(prompt_tokens));
  return std::max<int64_t>(tokens, 1);
}

}  // namespace baton::lab
