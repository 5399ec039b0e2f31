// A model for the table: one prefill of a prompt, then a greedy answer per KV policy.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

#include "common/kv/calibration/calibration_file.h"
#include "common/kv/codec/encoded_kv.h"
#include "common/kv/codec/hidden/hidden_state.h"
#include "common/kv/codec/kv_calibration.h"
#include "common/kv/codec/kv_format.h"
#include "common/worker/compute.h"
#include "common/worker/worker_options.h"
#include "services/lab/table/observed_prefill_kv.h"
#include "services/lab/table/working_pages.h"

namespace baton::lab {

// When an answer ends.
struct AnswerLimits {
  int32_t max_new_tokens = 0;
  std::vector<int32_t> stop_token_ids;
};

struct GreedyAnswer {
  std::vector<int32_t> token_ids;  // the stop token left out
  int64_t completion_tokens = 0;   // the stop token included
  int64_t decode_steps = 0;
};

// Owns weights and compute threads; one case at a time. Not thread-safe.
class TableModel {
 public:
  static absl::StatusOr<std::unique_ptr<TableModel>> Create(worker::WorkerOptions options);

  // Computes `prompt` into `pages` while `observers` watch and encode it; the first token. The
  // rows that a SwiftKV model takes through its upper layers are those that an encoding observes,
  // the last one at least.
  absl::StatusOr<int32_t> Prefill(std::span<const int32_t> prompt,
                                  WorkingPages& pages,
                                  const PrefillObservers& observers);

  // Makes the upper layers' keys and values of a prompt from its hidden states, into `pages`.
  absl::Status Expand(const kv::HiddenState& hidden, WorkingPages& pages);

  // Goes on greedily behind `prompt_tokens` tokens and `first`, from `encoded`, or from dense pages
  // when it is null.
  absl::StatusOr<GreedyAnswer> Decode(int64_t prompt_tokens,
                                      int32_t first,
                                      const AnswerLimits& limits,
                                      WorkingPages& pages,
                                      kv::EncodedKv* encoded);

  kv::KvDimensions dimensions() const;
  // Stored layers that are not made from hidden states: all of a plain model.
  int32_t full_layers() const;
  kernels::DType dtype() const { return options_.compute; }
  const model::Model& model() const { return *compute_->model; }
  // What a calibration of the model is bound to.
  const kv::CalibratedModel& identity() const { return compute_->identity; }
  // Null without one.
  const std::shared_ptr<const kv::KvCalibration>& calibration() const {
    return compute_->calibration;
  }
  const checkpoint::ModelConfig& config() const { return model().config(); }
  const kernels::OpTable& ops() const { return compute_->backend->ops(); }
  const kernels::ExecContext& exec() const { return compute_->backend->exec(); }

 private:
  TableModel(worker::WorkerOptions options, std::unique_ptr<worker::Compute> compute);

  // One forward step of one sequence from position `begin`. Rows from `first_survivor` on, a
  // position, run through all layers; with `wants_token`, the most likely token after the last row.
  absl::StatusOr<int32_t> Step(std::span<const int32_t> token_ids,
                               int64_t begin,
                               int64_t first_survivor,
                               bool wants_token,
                               kv::StepKv& kv);

  const worker::WorkerOptions options_;
  const std::unique_ptr<worker::Compute> compute_;
  std::vector<float> logits_;
};

}  // namespace baton::lab
