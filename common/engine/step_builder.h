// Packs the rows of a step.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "common/engine/active_request.h"
#include "common/engine/step.h"
#include "common/kv/codec/kv_format.h"
#include "common/scheduling/step_planner.h"

namespace baton::engine {

// Engine thread. Rows are appended in the order of the calls, without padding. Survivors are decode
// rows and prompt tokens at positions >= prompt_tokens - W of their format, in whichever chunk they
// fall (swiftkv.md 1.3); logits are wanted for decode rows and the last prompt token.
class StepBuilder {
 public:
  // `format`: dense, in which every prompt is computed.
  StepBuilder(uint64_t number, const kv::KvFormat& format);

  // One row for the newest token of a sequence, and the draw of the next.
  void AddDecodeRow(ActiveRequest& request, Sequence& sequence);
  // A slice of the request's prompt; with the last token, the draw of n first tokens. Pages that
  // become final go to the request's sink. The unused slots of the last prompt page are zeroed
  // before anything is written, so that shipped bytes are a function of the tokens alone.
  void AddPrefillChunk(ActiveRequest& request, const scheduling::PrefillChunk& chunk);
  // Of a request. Once per step.
  void AddExpansion(const StepExpansion& expansion);
  void AddCopies(ActiveRequest& request, std::span<const kv::PageCopies> copies);

  // Every request in the step has it counted in steps_in_flight from now on.
  std::unique_ptr<Step> Build();

 private:
  int32_t AddRow(int32_t token, int64_t position, bool survives);
  void AddDraw(ActiveRequest& request, Sequence& sequence, int32_t index, int64_t position);
  int32_t ObservationWindow(const ActiveRequest& request) const;
  ShipRange FinalPages(const ActiveRequest& request, const scheduling::PrefillChunk& chunk) const;

  const kv::KvFormat& format_;
  std::unique_ptr<Step> step_;
};

}  // namespace baton::engine
