#include "common/engine/step_builder.h"

#include <algorithm>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "common/engine/active_request.h"
#include "common/engine/kv_choice.h"
#include "common/engine/sequence.h"
#include "common/engine/step.h"
#include "common/kv/codec/hidden/hidden_state.h"
#include "common/kv/codec/kv_format.h"
#include "common/kv/pool/page_copies.h"
#include "common/scheduling/step_planner.h"

namespace baton::engine {

StepBuilder::StepBuilder(uint64_t number, const kv::KvFormat& format)
    : format_(format), step_(std::make_unique<Step>()) {
  step_->number = number;
}

int32_t StepBuilder::AddRow(int32_t token, int64_t position, bool survives) {
  const auto row = static_cast<int32_t>(step_->token_ids.size());
  step_->token_ids.push_back(token);
  step_->positions.push_back(static_cast<int32_t>(position));
  if (survives) {
    step_->survivors.push_back(row);
  }
  return row;
}

void StepBuilder::AddDraw(ActiveRequest& request,
                          Sequence& sequence,
                          int32_t index,
                          int64_t position) {
  SampleJob job;
  job.request = &request;
  job.sequence = &sequence;
  job.logit_row = static_cast<int32_t>(step_->logit_rows.size()) - 1;
  job.input.params = &request.sampling;
  job.input.penalties = &sequence.penalties;
  job.input.generated_tokens = sequence.generated_tokens();
  job.input.key = {.seed = request.sampling.seed, .sequence_index = index, .position = position};
  step_->samples.push_back(std::move(job));
}

void StepBuilder::AddDecodeRow(ActiveRequest& request, Sequence& sequence) {
  const int64_t position = sequence.computed_tokens;
  const int32_t row = AddRow(sequence.next_token, position, true);
  step_->slices.push_back({.row_begin = row, .row_count = 1});
  step_->logit_rows.push_back(row);
  AddDraw(request, sequence, sequence.index, position + 1);
  step_->sequences.push_back({.request = &request,
                              .sequence = &sequence,
                              .token_begin = position,
                              .token_count = 1,
                              .prefill = false,
                              .completes_prompt = false,
                              .ship = {}});
  step_->requests.push_back(&request);
  ++step_->decode_tokens;
}

void StepBuilder::AddPrefillChunk(ActiveRequest& request, const scheduling::PrefillChunk& chunk) {
  Sequence& sequence = request.sequences.front();
  const int64_t first_survivor = request.prompt_tokens - ObservationWindow(request);
  const auto row_begin = static_cast<int32_t>(step_->token_ids.size());
  for (int64_t i = 0; i < chunk.token_count; ++i) {
    const int64_t position = chunk.token_begin + i;
    AddRow(request.prompt[static_cast<size_t>(position)], position, position >= first_survivor);
  }
  step_->slices.push_back({.row_begin = row_begin, .row_count = chunk.token_count});
  if (chunk.is_final) {
    step_->logit_rows.push_back(row_begin + chunk.token_count - 1);
    for (int32_t index = 0; index < request.sampling.n; ++index) {
      AddDraw(request, sequence, index, request.prompt_tokens);
    }
  }
  step_->sequences.push_back({.request = &request,
                              .sequence = &sequence,
                              .token_begin = chunk.token_begin,
                              .token_count = chunk.token_count,
                              .prefill = true,
                              .completes_prompt = chunk.is_final,
                              .ship = FinalPages(request, chunk)});
  step_->requests.push_back(&request);
  step_->prefill_tokens += chunk.token_count;
}

int32_t StepBuilder::ObservationWindow(const ActiveRequest& request) const {
  const KvChoice& kv = request.kv;
  return kv.encoded == nullptr ? format_.observation_window()
                               : kv.encoded->observation_window(kv.policy.resident);
}

ShipRange StepBuilder::FinalPages(const ActiveRequest& request,
                                  const scheduling::PrefillChunk& chunk) const {
  const int64_t computed = chunk.token_begin + chunk.token_count;
  ShipRange ship;
  ship.sink = request.sink.get();
  if (request.kv.encoded == nullptr) {  // else it ships when the whole prompt is encoded
    ship.page_begin = format_.FinalPages(chunk.token_begin, request.prompt_tokens);
    ship.page_end = format_.FinalPages(computed, request.prompt_tokens);
  }
  if (const kv::HiddenState* hidden = request.sequences.front().hidden.get()) {
    ship.hidden_begin = hidden->shape().FinalRowPages(chunk.token_begin);
    ship.hidden_end = hidden->shape().FinalRowPages(computed);
  }
  return ship;
}

void StepBuilder::AddExpansion(const StepExpansion& expansion) {
  step_->expansion = expansion;
  step_->requests.push_back(expansion.request);
}

void StepBuilder::AddCopies(ActiveRequest& request, std::span<const kv::PageCopies> copies) {
  for (const kv::PageCopies& added : copies) {
    auto pool = std::ranges::find(step_->copies, added.base, &kv::PageCopies::base);
    if (pool == step_->copies.end()) {
      pool = step_->copies.emplace(pool, added.base, added.stride_bytes);
    }
    pool->Add(added.sources, added.targets);
  }
  step_->requests.push_back(&request);
}

std::unique_ptr<Step> StepBuilder::Build() {
  std::vector<ActiveRequest*>& requests = step_->requests;
  std::sort(requests.begin(), requests.end(), [](const ActiveRequest* a, const ActiveRequest* b) {
    return a->serial < b->serial;
  });
  requests.erase(std::unique(requests.begin(), requests.end()), requests.end());
  for (ActiveRequest* request : requests) {
    ++request->steps_in_flight;
  }
  for (const StepSequence& rows : step_->sequences) {
    rows.request->copies_in_flight += ShipsBehind(rows) ? 1 : 0;
  }
  return std::move(step_);
}

}  // namespace baton::engine
