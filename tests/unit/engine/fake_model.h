// A model that is deterministic, fast and suspicious: it writes each token into its KV pages and
// computes logits from what it reads back, so a wrong page table, a missing copy or a page reused
// too early changes the tokens or fails the step.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

#include "common/engine/request.h"
#include "common/model/model.h"

namespace baton::engine {

// Rows of one Forward call.
struct FakeStep {
  int32_t rows = 0;
  int32_t sequences = 0;
  std::vector<int32_t> survivors;
  std::vector<int32_t> logit_rows;
};

// The test's hold on the model, which the engine owns. Thread-safe.
class FakeModelControl {
 public:
  // Forward calls stop before their first layer, and between layers, until Release.
  void Hold();
  void Release();
  // Lets a held call go on to where the next one stops. Await that with AwaitHeld.
  void PassOne();
  // Waits until a Forward call is held.
  void AwaitHeld();
  // The next Forward call fails with this.
  void FailNext(absl::Status status);
  // Every later Forward call makes `token` the most likely one by far.
  void Prefer(int32_t token);
  std::vector<FakeStep> steps() const;

 private:
  friend class FakeModel;
  void PassGate();
  bool open() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return !hold_ || pass_one_; }

  mutable absl::Mutex mutex_;
  bool hold_ ABSL_GUARDED_BY(mutex_) = false;
  bool held_ ABSL_GUARDED_BY(mutex_) = false;
  bool pass_one_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status fail_next_ ABSL_GUARDED_BY(mutex_);
  int32_t preferred_ ABSL_GUARDED_BY(mutex_) = -1;
  std::vector<FakeStep> steps_ ABSL_GUARDED_BY(mutex_);
};

// Three stored KV layers, reported as written like a SwiftKV model does: layer 0 alone, then the
// fan-out of layers 1 and 2 together. Pages must be fp32.
class FakeModel final : public model::Model {
 public:
  static constexpr int32_t kLayers = 3;
  static constexpr int32_t kHeads = 2;
  static constexpr int32_t kHeadDim = 4;
  static constexpr int32_t kVocab = 64;
  static constexpr int32_t kMaxPositions = 4096;

  explicit FakeModel(std::shared_ptr<FakeModelControl> control);

  const checkpoint::ModelConfig& config() const override { return config_; }
  model::KvShape kv_shape() const override {
    return {.layers = kLayers, .kv_heads = kHeads, .head_dim = kHeadDim};
  }
  uint64_t fingerprint() const override { return 0xfa4e; }
  absl::Status Forward(const model::ForwardBatch& batch, std::span<float> logits) override;

 private:
  std::shared_ptr<FakeModelControl> control_;
  checkpoint::ModelConfig config_;
};

// Element that FakeModel writes as key (the token) and value (where it is).
float FakeKey(int32_t token);
float FakeValue(int32_t layer, int64_t position);

// The tokens that an engine has to deliver for this request, stop token left out, computed without
// pages, batches or chunks.
std::vector<int32_t> ExpectedTokens(const std::vector<int32_t>& prompt,
                                    const SamplingParams& params,
                                    int32_t sequence_index = 0);

}  // namespace baton::engine
