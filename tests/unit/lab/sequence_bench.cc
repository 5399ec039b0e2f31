#include "tests/unit/lab/sequence_bench.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <set>
#include <span>
#include <vector>

#include "gtest/gtest.h"

#include "common/kv/codec/encoded_kv.h"
#include "common/kv/codec/packed_step_kv.h"
#include "common/kv/codec/step_kv.h"
#include "kernels/core/dtype.h"
#include "kernels/core/exec_context.h"
#include "kernels/core/memory.h"
#include "kernels/core/step_arrays.h"
#include "kernels/cpu/cpu_ops.h"
#include "services/lab/baselines/baseline.h"
#include "services/lab/table/observed_prefill_kv.h"
#include "tests/kernels/support/backends.h"

namespace baton::lab {
namespace {

BaselineSetup MakeSetup(const kernels::ExecContext& exec,
                        int64_t prompt_tokens,
                        int64_t max_tokens,
                        int32_t head_dim) {
  return {.ops = kernels::CpuOps(),
          .exec = exec,
          .dimensions = {.layers = SequenceBench::kLayers,
                         .kv_heads = SequenceBench::kKvHeads,
                         .head_dim = head_dim},
          .dtype = kernels::DType::kF32,
          .prompt_tokens = prompt_tokens,
          .max_tokens = max_tokens};
}

}  // namespace

SequenceBench::SequenceBench(int64_t prompt_tokens, int64_t max_tokens, int32_t head_dim)
    : context_(kernels::CpuOps(), /*threads=*/2),
      setup_(MakeSetup(*context_, prompt_tokens, max_tokens, head_dim)),
      pages_(setup_.dimensions, setup_.dtype, prompt_tokens, max_tokens) {
  const auto elements = static_cast<size_t>(max_tokens * head_dim);
  for (int32_t layer = 0; layer < kLayers; ++layer) {
    keys_.push_back(kernels::RandomFloats(elements * kKvHeads));
    values_.push_back(kernels::RandomFloats(elements * kKvHeads));
    queries_.push_back(kernels::RandomFloats(elements * kHeads));
  }
}

void SequenceBench::SetToken(LayerData& data,
                             int64_t token,
                             int32_t heads,
                             const std::vector<float>& vector) {
  for (std::vector<float>& layer : data) {
    for (int32_t head = 0; head < heads; ++head) {
      std::ranges::copy(vector, layer.begin() + (token * heads + head) * head_dim());
    }
  }
}

void SequenceBench::SetKey(int64_t token, const std::vector<float>& key) {
  SetToken(keys_, token, kKvHeads, key);
}

void SequenceBench::SetValue(int64_t token, const std::vector<float>& value) {
  SetToken(values_, token, kKvHeads, value);
}

void SequenceBench::SetQuery(int64_t token, const std::vector<float>& query) {
  SetToken(queries_, token, kHeads, query);
}

void SequenceBench::SetQueryHeads(int64_t token, const std::vector<float>& queries) {
  for (std::vector<float>& layer : queries_) {
    std::ranges::copy(queries, layer.begin() + token * kHeads * head_dim());
  }
}

void SequenceBench::SetAllKeys(float value) {
  for (std::vector<float>& layer : keys_) {
    std::ranges::fill(layer, value);
  }
}

void SequenceBench::SetAllQueries(float value) {
  for (std::vector<float>& layer : queries_) {
    std::ranges::fill(layer, value);
  }
}

void SequenceBench::MarkValues() {
  for (int64_t token = 0; token < setup_.max_tokens; ++token) {
    std::vector<float> value(static_cast<size_t>(head_dim()), 0.0f);
    value[static_cast<size_t>(token)] = 1.0f;
    SetValue(token, value);
  }
}

void SequenceBench::RunStep(
    kv::StepKv& kv, int64_t begin, int64_t count, float scale, std::vector<float>& out) {
  std::vector<int32_t> positions(static_cast<size_t>(count));
  std::iota(positions.begin(), positions.end(), static_cast<int32_t>(begin));
  const kv::RowRun run = {.sequence = 0, .row_begin = 0, .row_count = static_cast<int32_t>(count)};
  const kv::KvRows rows = {.rows = static_cast<int32_t>(count),
                           .runs = std::span(&run, 1),
                           .positions = positions.data(),
                           .op_positions = positions.data()};
  kernels::StepArrays arrays(kernels::HostMemory());
  ASSERT_TRUE(kv.Prepare(std::span(&rows, 1), arrays).ok());
  const int64_t kv_width = int64_t{kKvHeads} * head_dim();
  const int64_t width = int64_t{kHeads} * head_dim();
  out.resize(static_cast<size_t>(kLayers * count * width));
  for (int32_t layer = 0; layer < kLayers; ++layer) {
    const auto index = static_cast<size_t>(layer);
    const absl::Status written = kv.Write(rows,
                                          {.kv_layer = layer,
                                           .k = keys_[index].data() + begin * kv_width,
                                           .v = values_[index].data() + begin * kv_width,
                                           .stride = kv_width});
    ASSERT_TRUE(written.ok()) << written;
    ASSERT_TRUE(kv.LayersWritten(layer, layer + 1).ok());
    const absl::Status attended = kv.Attend(rows,
                                            {.kv_layer = layer,
                                             .q = queries_[index].data() + begin * width,
                                             .q_stride = width,
                                             .heads = kHeads,
                                             .scale = scale,
                                             .out = out.data() + layer * count * width,
                                             .out_stride = width});
    ASSERT_TRUE(attended.ok()) << attended;
    const absl::Status encoded = kv.LayerAttended(layer);
    ASSERT_TRUE(encoded.ok()) << encoded;
  }
}

void SequenceBench::Prefill(std::span<kv::EncodedKv* const> encodings, int64_t chunk, float scale) {
  const kv::WorkingKv working = {.pages = pages_.pages(), .table = pages_.prompt_table()};
  PrefillObservers observers;
  for (kv::EncodedKv* encoding : encodings) {
    observers.encodings.push_back({.kv = encoding, .layers = kLayers});
  }
  std::vector<float> out;
  for (int64_t begin = 0; begin < setup_.prompt_tokens; begin += chunk) {
    const int64_t count = std::min(chunk, setup_.prompt_tokens - begin);
    const bool last = begin + count == setup_.prompt_tokens;
    ObservedPrefillKv kv(setup_.ops, setup_.exec, working, observers, last);
    RunStep(kv, begin, count, scale, out);
  }
}

void SequenceBench::Prefill(kv::EncodedKv& encoding, float scale) {
  kv::EncodedKv* const one = &encoding;
  Prefill(std::span(&one, 1), setup_.prompt_tokens, scale);
}

std::vector<float> SequenceBench::Decode(kv::EncodedKv& encoding, int64_t token, float scale) {
  kv::StepSequenceKv sequence;
  sequence.encoded = &encoding;
  kv::PackedStepKv kv(setup_.ops, setup_.exec, pages_.pages(), {sequence});
  std::vector<float> out;
  RunStep(kv, token, 1, scale, out);
  return out;
}

std::vector<float> SequenceBench::DecodeDense(int64_t token, float scale) {
  if (token == setup_.prompt_tokens) {
    dense_run_ = pages_.StartRun();
  }
  kv::StepSequenceKv sequence;
  sequence.dense = dense_run_;
  kv::PackedStepKv kv(setup_.ops, setup_.exec, pages_.pages(), {sequence});
  std::vector<float> out;
  RunStep(kv, token, 1, scale, out);
  return out;
}

std::set<int32_t> SequenceBench::AttendedTokens(std::span<const float> output,
                                                int32_t layer,
                                                int32_t head) const {
  const auto dim = static_cast<size_t>(head_dim());
  const auto row = output.subspan(static_cast<size_t>(layer * kHeads + head) * dim, dim);
  std::set<int32_t> tokens;
  for (size_t token = 0; token < dim; ++token) {
    if (row[token] > 1e-4f) {
      tokens.insert(static_cast<int32_t>(token));
    }
  }
  return tokens;
}

}  // namespace baton::lab
