// A model with its threads and KV pages, driven step by step by a test.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "common/checkpoint/checkpoint.h"
#include "common/model/model.h"
#include "kernels/core/memory.h"
#include "kernels/core/thread_pool.h"
#include "kernels/ops/op_table.h"

namespace baton::model {

struct HarnessOptions {
  kernels::DType dtype = kernels::DType::kF32;  // weights and pages
  int threads = 2;
  int32_t max_sequences = 1;
  int64_t max_tokens = 512;  // of one sequence
  int32_t max_step_rows = 2048;
  int32_t page_tokens = 16;
  kernels::MemorySpace* memory = &kernels::HostMemory();  // of the back end
  kernels::cuda::DeviceQueue* queue = nullptr;            // of the CUDA back end
};

// What one sequence adds in a step. Offsets count from the first of `tokens`.
struct StepPart {
  int32_t sequence = 0;
  std::vector<int32_t> tokens;
  std::vector<int32_t> survivors;
  std::vector<int32_t> logits;
};

// Fails the running test on any error.
class ModelHarness {
 public:
  ModelHarness(const checkpoint::Checkpoint& checkpoint,
               const kernels::OpTable& ops,
               const HarnessOptions& options);

  // Runs one packed step; the logits of the parts' rows one after another, [rows][vocab].
  std::vector<float> Step(const std::vector<StepPart>& parts);

  // Feeds `tokens` to `sequence` in steps of `chunk`; logits of the last one. Only it survives.
  std::vector<float> Prefill(int32_t sequence, std::span<const int32_t> tokens, int32_t chunk);

  // Appends `count` tokens, each the most likely one, starting from `logits`; their ids.
  std::vector<int32_t> Greedy(int32_t sequence, std::vector<float> logits, int32_t count);

  // Keys (or values) in the pages of one KV layer as f32: [tokens][kv_heads][head_dim].
  std::vector<float> Cached(int32_t sequence, int32_t kv_layer, bool values) const;
  // Keys and values of all layers.
  std::vector<float> AllCached(int32_t sequence) const;

  Model& model() { return *model_; }
  // Given to every later step.
  std::function<void(int32_t, int32_t)> on_kv_layers_written;
  std::function<void(int32_t, std::span<const float>, int64_t)> on_hidden;

 private:
  kernels::ThreadPool pool_;
  kernels::Buffer workspace_;
  const kernels::ExecContext exec_;
  const kernels::OpTable& ops_;
  std::unique_ptr<Model> model_;
  int64_t max_tokens_;
  kernels::Memory page_memory_;
  kernels::DensePages pages_;
  std::vector<std::vector<int32_t>> page_tables_;  // per sequence [layers][stride]
  std::vector<int32_t> lengths_;
};

int32_t MostLikely(std::span<const float> logits);

// `count` token ids below `vocab`, a pure function of the seed.
std::vector<int32_t> RandomTokens(uint32_t seed, size_t count, int32_t vocab);

}  // namespace baton::model
