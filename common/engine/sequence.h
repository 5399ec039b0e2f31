// One token stream being generated.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/time/time.h"

#include "common/engine/request.h"
#include "common/engine/sampling/penalty_state.h"
#include "common/engine/sampling_params.h"
#include "common/kv/codec/encoded_kv.h"
#include "common/kv/codec/hidden/hidden_state.h"
#include "common/kv/codec/staged_window.h"
#include "common/kv/pool/page_table.h"

namespace baton::engine {

// Owned by its request. The engine thread writes it; while a step that contains the sequence is in
// flight the executor reads pages, penalties and counts, and the engine thread leaves those alone.
struct Sequence {
  int32_t index = 0;    // 0 .. n - 1
  kv::PageTable pages;  // dense; of an encoded format only while the prompt is computed
  std::unique_ptr<kv::HiddenState> hidden;  // of the prompt, in transfer; sequence 0 only
  std::unique_ptr<kv::EncodedKv> encoded;   // null: dense
  // Where a device's pages of the prompt are handed off from or land; sequence 0 only.
  std::unique_ptr<kv::StagedWindow> staged;
  bool ships_in_place = false;     // instead: the sink reads the device's pages where they are
  int64_t computed_tokens = 0;     // tokens whose KV is in the pages
  int32_t next_token = 0;          // newest token, not yet in the pages
  std::vector<int32_t> generated;  // token ids, a stop token included
  PenaltyState penalties;
  absl::Duration encode_time;  // of the prompt so far; the executor adds to it
  bool finished = false;

  int32_t generated_tokens() const { return static_cast<int32_t>(generated.size()); }
};

// Whether `token`, the `generated_tokens`-th of its sequence (from 1), ends it: a stop id does, and
// so does the last of max_tokens. The one rule of both roles.
std::optional<SequenceFinish> FinishedBy(const SamplingParams& params,
                                         int32_t generated_tokens,
                                         int32_t token);

// Takes a drawn token into the sequence: counts, penalties, next token, `finished`.
std::optional<SequenceFinish> AcceptToken(const SamplingParams& params,
                                          int32_t token,
                                          Sequence& sequence);

}  // namespace baton::engine
