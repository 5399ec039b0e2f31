#include "services/lab/table/table_model.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"

#include "common/base/status_macros.h"
#include "common/engine/expand_hidden.h"
#include "common/kv/codec/dense_step_kv.h"
#include "common/kv/codec/encoded_kv.h"
#include "common/kv/codec/hidden/hidden_state.h"
#include "common/kv/codec/kv_format.h"
#include "common/kv/codec/packed_step_kv.h"
#include "common/kv/codec/step_kv.h"
#include "common/model/forward.h"
#include "common/worker/compute.h"
#include "common/worker/worker_options.h"
#include "services/lab/table/observed_prefill_kv.h"
#include "services/lab/table/working_pages.h"

namespace baton::lab {

absl::StatusOr<std::unique_ptr<TableModel>> TableModel::Create(worker::WorkerOptions options) {
  BATON_ASSIGN_OR_RETURN(auto compute, worker::LoadCompute(options));
  return std::unique_ptr<TableModel>(new TableModel(std::move(options), std::move(compute)));
}

TableModel::TableModel(worker::WorkerOptions options, std::unique_ptr<worker::Compute> compute)
    : options_(std::move(options)),
      compute_(std::move(compute)),
      logits_(static_cast<size_t>(config().vocab_size)) {}

kv::KvDimensions TableModel::dimensions() const {
  const model::KvShape shape = compute_->model->kv_shape();
  return {.layers = shape.layers, .kv_heads = shape.kv_heads, .head_dim = shape.head_dim};
}

int32_t TableModel::full_layers() const {
  return std::min(config().num_key_value_layers, dimensions().layers);
}

absl::StatusOr<int32_t> TableModel::Prefill(std::span<const int32_t> prompt,
                                            WorkingPages& pages,
                                            const PrefillObservers& observers) {
  const auto tokens = static_cast<int64_t>(prompt.size());
  int64_t first_survivor = tokens - 1;
  for (const auto& encoding : observers.encodings) {
    first_survivor = std::min(first_survivor, encoding.kv->first_observed());
  }
  const kv::WorkingKv working = {.pages = pages.pages(), .table = pages.prompt_table()};
  const int64_t chunk = options_.engine.prefill_chunk_tokens;
  for (int64_t begin = 0;; begin += chunk) {
    const int64_t count = std::min(chunk, tokens - begin);
    const bool last = begin + count == tokens;
    ObservedPrefillKv kv(ops(), exec(), working, observers, last);
    BATON_ASSIGN_OR_RETURN(
        const int32_t token,
        Step(prompt.subspan(static_cast<size_t>(begin), static_cast<size_t>(count)),
             begin,
             first_survivor,
             last,
             kv));
    if (last) {
      return token;
    }
  }
}

absl::Status TableModel::Expand(const kv::HiddenState& hidden, WorkingPages& pages) {
  const int64_t tokens = hidden.shape().prompt_tokens;
  const int64_t chunk = options_.engine.prefill_chunk_tokens;
  const kv::DenseTable table = pages.prompt_table();
  kv::DenseStepKv kv(ops(), exec(), pages.pages(), std::span(&table, 1));
  for (int64_t begin = 0; begin < tokens; begin += chunk) {
    const auto count = static_cast<int32_t>(std::min(chunk, tokens - begin));
    BATON_RETURN_IF_ERROR(engine::ExpandHidden(*compute_->model, hidden, begin, count, kv));
  }
  return absl::OkStatus();
}

absl::StatusOr<GreedyAnswer> TableModel::Decode(int64_t prompt_tokens,
                                                int32_t first,
                                                const AnswerLimits& limits,
                                                WorkingPages& pages,
                                                kv::EncodedKv* encoded) {
  kv::StepSequenceKv sequence;
  sequence.encoded = encoded;
  if (encoded == nullptr) {
    sequence.dense = pages.StartRun();
  }
  kv::PackedStepKv kv(ops(), exec(), pages.pages(), {sequence});
  GreedyAnswer answer;
  int32_t token = first;
  while (answer.completion_tokens < limits.max_new_tokens) {
    ++answer.completion_tokens;
    if (std::ranges::count(limits.stop_token_ids, token) > 0) {
      break;
    }
    answer.token_ids.push_back(token);
    if (answer.completion_tokens == limits.max_new_tokens) {
      break;
    }
    const int64_t position = prompt_tokens + answer.decode_steps++;
    BATON_ASSIGN_OR_RETURN(token, Step(std::span(&token, 1), position, position, true, kv));
  }
  return answer;
}

absl::StatusOr<int32_t> TableModel::Step(std::span<const int32_t> token_ids,
                                         int64_t begin,
                                         int64_t first_survivor,
                                         bool wants_token,
                                         kv::StepKv& kv) {
  const auto rows = static_cast<int32_t>(token_ids.size());
  std::vector<int32_t> positions(token_ids.size());
  std::iota(positions.begin(), positions.end(), static_cast<int32_t>(begin));
  const auto skipped = static_cast<int32_t>(std::clamp<int64_t>(first_survivor - begin, 0, rows));
  std::vector<int32_t> survivors(static_cast<size_t>(rows - skipped));
  std::iota(survivors.begin(), survivors.end(), skipped);
  const model::SequenceSlice slice = {.row_begin = 0, .row_count = rows};
  const int32_t last_row = rows - 1;
  const auto logit_rows = std::span(&last_row, wants_token ? 1 : 0);
  model::ForwardBatch batch;
  batch.token_ids = token_ids;
  batch.positions = positions;
  batch.sequences = std::span(&slice, 1);
  batch.survivors = survivors;
  batch.logit_rows = logit_rows;
  batch.kv = &kv;
  BATON_RETURN_IF_ERROR(
      compute_->model->Forward(batch, std::span(logits_).first(wants_token ? logits_.size() : 0)));
  return static_cast<int32_t>(std::max_element(logits_.begin(), logits_.end()) - logits_.begin());
}

}  // namespace baton::lab
