// Any bytes as a KV policy. What parses has one canonical spelling, which parses back to the same
// policy; what does not is refused with a short, printable message.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "common/kv/codec/kv_policy.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using baton::kv::kMaxKvPolicyBytes;
  using baton::kv::ParseKvPolicy;
  const auto policy = ParseKvPolicy({reinterpret_cast<const char*>(data), size});
  if (!policy.ok()) {
    const absl::string_view message = policy.status().message();
    const bool printable =
        std::all_of(message.begin(), message.end(), [](char c) { return c >= ' ' && c <= '~'; });
    if (!printable || message.size() >= 1024) {
      std::abort();
    }
    return 0;
  }
  const std::string text = policy->CanonicalString();
  const auto again = ParseKvPolicy(text);
  if (text.size() > kMaxKvPolicyBytes || !again.ok() || *again != *policy ||
      again->CanonicalString() != text) {
    std::abort();
  }
  return 0;
}
