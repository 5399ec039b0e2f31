#include "tests/unit/engine/fake_model.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"

#include "common/base/status_macros.h"
#include "common/engine/sampling/penalty_state.h"
#include "common/engine/sampling/sampler.h"
#include "common/engine/sampling_params.h"
#include "common/engine/sequence.h"
#include "common/engine/step_kv.h"
#include "common/model/forward.h"
#include "kernels/kv_format/dense.h"
#include "kernels/kv_format/zero_slots.h"

namespace baton::engine {
namespace {

uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// Logits in [-4, 4) that depend on every token of the history.
void FakeLogits(std::span<const int32_t> history, std::span<float> logits) {
  uint64_t hash = 0;
  for (const int32_t token : history) {
    hash = Mix(hash + static_cast<uint64_t>(token) + 0x9e3779b97f4a7c15);
  }
  for (size_t i = 0; i < logits.size(); ++i) {
    const uint64_t bits = Mix(hash ^ (i * 0x9e3779b97f4a7c15));
    logits[i] = static_cast<float>(bits >> 40) * 0x1p-21f - 4.0f;
  }
}

// The dense pages of one sequence of a step.
class Pages {
 public:
  Pages(const model::ForwardBatch& batch, size_t sequence)
      : dense_(dynamic_cast<const EngineStepKv&>(*batch.kv).dense()),
        table_(dense_.table(static_cast<int32_t>(sequence))) {}

  const kernels::DensePageLayout& layout() const { return dense_.pages().layout; }
  // The page of the token at `position`.
  std::byte* Page(int32_t layer, int64_t position) const {
    const int32_t page = table_.data[layer * table_.stride + position / layout().page_tokens];
    return dense_.pages().base + static_cast<size_t>(page) * layout().stride_bytes();
  }
  float* Slot(int32_t layer, int64_t position, size_t offset) const {
    return reinterpret_cast<float*>(Page(layer, position) + offset);
  }

 private:
  const kv::DenseStepKv& dense_;
  const kv::DenseTable& table_;
};

void WriteToken(const model::ForwardBatch& batch, const Pages& pages, int32_t layer, int32_t row) {
  const kernels::DensePageLayout& layout = pages.layout();
  const int32_t position = batch.positions[static_cast<size_t>(row)];
  const int32_t slot = position % layout.page_tokens;
  if (slot == 0) {  // as kv_write leaves a page that it begins
    kernels::ZeroSlots(layout, 0, pages.Page(layer, position));
  }
  for (int32_t head = 0; head < layout.kv_heads; ++head) {
    float* key = pages.Slot(layer, position, layout.key_offset(head, slot));
    float* value = pages.Slot(layer, position, layout.value_offset(head, slot));
    std::fill_n(key, layout.head_dim, FakeKey(batch.token_ids[static_cast<size_t>(row)]));
    std::fill_n(value, layout.head_dim, FakeValue(layer, position));
  }
}

void WriteLayer(const model::ForwardBatch& batch, int32_t layer) {
  for (size_t i = 0; i < batch.sequences.size(); ++i) {
    const model::SequenceSlice& slice = batch.sequences[i];
    for (int32_t row = slice.row_begin; row < slice.row_begin + slice.row_count; ++row) {
      WriteToken(batch, Pages(batch, i), layer, row);
    }
  }
}

// Reads the token at `position` back and checks every layer and head.
absl::Status ReadToken(const Pages& pages, int64_t position, int32_t& token) {
  const kernels::DensePageLayout& layout = pages.layout();
  const auto slot = static_cast<int32_t>(position % layout.page_tokens);
  const float first = *pages.Slot(0, position, layout.key_offset(0, slot));
  for (int32_t layer = 0; layer < FakeModel::kLayers; ++layer) {
    for (int32_t head = 0; head < layout.kv_heads; ++head) {
      const float key = *pages.Slot(layer, position, layout.key_offset(head, slot));
      const float value = *pages.Slot(layer, position, layout.value_offset(head, slot));
      if (key != first || value != FakeValue(layer, position)) {
        return absl::DataLossError(
            absl::StrCat("wrong KV at layer ", layer, " head ", head, " position ", position));
      }
    }
  }
  token = static_cast<int32_t>(first) - 1;
  return absl::OkStatus();
}

absl::Status RowLogits(const model::ForwardBatch& batch, int32_t row, std::span<float> logits) {
  for (size_t i = 0; i < batch.sequences.size(); ++i) {
    const model::SequenceSlice& slice = batch.sequences[i];
    if (row < slice.row_begin || row >= slice.row_begin + slice.row_count) {
      continue;
    }
    std::vector<int32_t> history(static_cast<size_t>(batch.positions[static_cast<size_t>(row)]) +
                                 1);
    for (size_t p = 0; p < history.size(); ++p) {
      BATON_RETURN_IF_ERROR(ReadToken(Pages(batch, i), static_cast<int64_t>(p), history[p]));
    }
    FakeLogits(history, logits);
    return absl::OkStatus();
  }
  return absl::InternalError("a logit row belongs to no sequence");
}

absl::Status CheckBatch(const model::ForwardBatch& batch) {
  if (!std::is_sorted(batch.survivors.begin(), batch.survivors.end()) ||
      !std::includes(batch.survivors.begin(),
                     batch.survivors.end(),
                     batch.logit_rows.begin(),
                     batch.logit_rows.end())) {
    return absl::InvalidArgumentError("survivors or logit rows are out of order");
  }
  int32_t row = 0;
  for (const model::SequenceSlice& slice : batch.sequences) {
    if (slice.row_begin != row || slice.row_count < 1) {
      return absl::InvalidArgumentError("rows are not packed");
    }
    row += slice.row_count;
  }
  return static_cast<size_t>(row) == batch.token_ids.size()
             ? absl::OkStatus()
             : absl::InvalidArgumentError("rows belong to no sequence");
}

}  // namespace

float FakeKey(int32_t token) { return static_cast<float>(token + 1); }

float FakeValue(int32_t layer, int64_t position) {
  return static_cast<float>(position * 4 + layer + 1);
}

void FakeModelControl::Hold() {
  absl::MutexLock lock(&mutex_);
  hold_ = true;
}

void FakeModelControl::Release() {
  absl::MutexLock lock(&mutex_);
  hold_ = false;
}

void FakeModelControl::PassOne() {
  absl::MutexLock lock(&mutex_);
  pass_one_ = true;
  held_ = false;
}

void FakeModelControl::AwaitHeld() {
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(&held_));
}

void FakeModelControl::FailNext(absl::Status status) {
  absl::MutexLock lock(&mutex_);
  fail_next_ = std::move(status);
}

void FakeModelControl::Prefer(int32_t token) {
  absl::MutexLock lock(&mutex_);
  preferred_ = token;
}

std::vector<FakeStep> FakeModelControl::steps() const {
  absl::MutexLock lock(&mutex_);
  return steps_;
}

void FakeModelControl::PassGate() {
  absl::MutexLock lock(&mutex_);
  held_ = hold_;
  mutex_.Await(absl::Condition(this, &FakeModelControl::open));
  pass_one_ = false;
  held_ = false;
}

FakeModel::FakeModel(std::shared_ptr<FakeModelControl> control) : control_(std::move(control)) {
  config_.num_layers = kLayers;
  config_.num_kv_heads = kHeads;
  config_.num_heads = kHeads;
  config_.head_dim = kHeadDim;
  config_.vocab_size = kVocab;
  config_.max_position_embeddings = kMaxPositions;
  config_.num_key_value_layers = kLayers;
}

absl::Status FakeModel::Forward(const model::ForwardBatch& batch, std::span<float> logits) {
  BATON_RETURN_IF_ERROR(CheckBatch(batch));
  int32_t preferred = -1;
  {
    absl::MutexLock lock(&control_->mutex_);
    control_->steps_.push_back({.rows = static_cast<int32_t>(batch.token_ids.size()),
                                .sequences = static_cast<int32_t>(batch.sequences.size()),
                                .survivors = {batch.survivors.begin(), batch.survivors.end()},
                                .logit_rows = {batch.logit_rows.begin(), batch.logit_rows.end()}});
    preferred = control_->preferred_;
    BATON_RETURN_IF_ERROR(std::exchange(control_->fail_next_, absl::OkStatus()));
  }
  control_->PassGate();
  WriteLayer(batch, 0);
  BATON_RETURN_IF_ERROR(batch.kv->LayersWritten(0, 1));
  control_->PassGate();
  WriteLayer(batch, 1);
  WriteLayer(batch, 2);
  BATON_RETURN_IF_ERROR(batch.kv->LayersWritten(1, kLayers));
  for (size_t i = 0; i < batch.logit_rows.size(); ++i) {
    const std::span<float> row = logits.subspan(i * kVocab, kVocab);
    BATON_RETURN_IF_ERROR(RowLogits(batch, batch.logit_rows[i], row));
    if (preferred >= 0) {
      row[static_cast<size_t>(preferred)] = 100.0f;
    }
  }
  return absl::OkStatus();
}

std::vector<int32_t> ExpectedTokens(const std::vector<int32_t>& prompt,
                                    const SamplingParams& params,
                                    int32_t sequence_index) {
  std::vector<int32_t> history = prompt;
  std::vector<int32_t> tokens;
  std::vector<float> logits(FakeModel::kVocab);
  Sequence sequence;
  sequence.penalties =
      PenaltyState(std::make_shared<const TokenBitmap>(MakeTokenBitmap(prompt, FakeModel::kVocab)));
  SamplerScratch scratch;
  while (!sequence.finished) {
    FakeLogits(history, logits);
    const auto output = SampleToken({.logits = logits,
                                     .params = &params,
                                     .penalties = &sequence.penalties,
                                     .generated_tokens = sequence.generated_tokens(),
                                     .key = {.seed = params.seed,
                                             .sequence_index = sequence_index,
                                             .position = static_cast<int64_t>(history.size())}},
                                    scratch);
    const auto finish = AcceptToken(params, output->token_id, sequence);
    history.push_back(output->token_id);
    if (!finish.has_value() || !finish->stop_token_id.has_value()) {
      tokens.push_back(output->token_id);
    }
  }
  return tokens;
}

}  // namespace baton::engine
