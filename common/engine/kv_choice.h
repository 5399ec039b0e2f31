// What a request's KV policy comes to on this engine.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

#include "common/kv/codec/codec_set.h"
#include "common/kv/codec/encoded_format.h"
#include "common/kv/codec/hidden/hidden_pool.h"
#include "common/kv/codec/kv_format.h"
#include "common/kv/codec/kv_policy.h"
#include "common/kv/codec/staged_window.h"

namespace baton::engine {

// The format that a request gets. A pure function of policy and prompt length, so that prefill and
// decode come to the same.
struct KvChoice {
  kv::KvFormatPolicy policy;             // dense by default
  kv::EncodedFormat* encoded = nullptr;  // null: dense pages
  // Set: the upper layers travel as hidden states. Without a hand-off that changes nothing.
  kv::HiddenPool* hidden = nullptr;
  // A calibration replaces defaults, so what was chosen is spelled with every key.
  kv::KvSpelling spelling = kv::KvSpelling::kShort;

  std::string canonical() const { return policy.CanonicalString(spelling); }
};

// How full the dense pages are when somebody leaves the choice to the engine.
struct KvPressure {
  double free_share = 1.0;  // of the dense pool, in [0, 1]
};

// kInvalidArgument for text that is no policy, kFailedPrecondition (POLICY_NOT_SERVED) for one that
// this engine does not serve. A prompt so short that the format keeps all of it anyway gets
// `dense`.
//
// Keys that the policy leaves out are those of the model's calibration, or the grammar's defaults.
//
// A tier or `auto` becomes a policy here. `auto` keeps short prompts exact, takes the balanced tier
// for longer ones and the economy tier when dense pages run short. A tier whose format is not
// served becomes the next better one; `exact` always is. A hidden wire form for a model without
// upper SwiftKV layers is kInvalidArgument. With the default pressure this is a pure function.
absl::StatusOr<KvChoice> ChooseKv(const kv::CodecSet& codecs,
                                  std::string_view policy,
                                  int64_t prompt_tokens,
                                  const KvPressure& pressure = {});

// Stored layers that a hand-off ships as they are; the others, if any, leave as hidden states.
// `dense`: the format in which prompts are computed.
int32_t ShippedLayers(const kv::KvFormat& dense, const KvChoice& kv);
// The pages of each of them.
kv::WindowShape PromptWindow(const kv::KvFormat& dense, const KvChoice& kv, int64_t prompt_tokens);
// All that a hand-off ships.
kv::StagedShape PromptShape(const kv::KvFormat& dense, const KvChoice& kv, int64_t prompt_tokens);

}  // namespace baton::engine
