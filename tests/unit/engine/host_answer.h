// What a request gets on the host, which is what devices are held against.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/checkpoint/checkpoint.h"
#include "common/engine/engine.h"
#include "common/engine/request.h"
#include "tests/unit/engine/placed_engine.h"
#include "tests/unit/engine/split_run.h"

namespace baton::engine {

struct HostAnswer {
  std::vector<int32_t> tokens;
  int64_t resident_bytes = 0;  // where it was decoded
};

// Whether KV is rounded on its way, which only two engines do.
inline bool SendsHidden(std::string_view policy) { return policy.starts_with("hidden"); }

// Answers to MakeRequest(policy, salt) for the salts from 0 on, one after the other: by one engine,
// or, with hidden states, by two.
inline std::vector<HostAnswer> AnswersOfTheHost(const checkpoint::Checkpoint& checkpoint,
                                                const std::string& policy,
                                                int32_t count) {
  const Role role = SendsHidden(policy) ? Role::kDecode : Role::kBoth;
  const PlacedEngine decode(checkpoint, role, Place::kHost, /*chunk=*/300);
  const PlacedEngine prefill(checkpoint, Role::kPrefill, Place::kHost, /*chunk=*/300);
  std::vector<HostAnswer> answers;
  for (int32_t salt = 0; salt < count; ++salt) {
    GenerateRequest request = MakeRequest(policy, salt);
    if (SendsHidden(policy)) {
      const SplitRun run = Split(prefill.engine(), decode.engine(), std::move(request));
      run.Await();
      answers.push_back({run.tokens(), run.decode->stats().kv_resident_bytes});
    } else {
      const auto alone = Alone(decode.engine(), std::move(request));
      answers.push_back({alone->tokens(), alone->stats().kv_resident_bytes});
    }
  }
  return answers;
}

}  // namespace baton::engine
