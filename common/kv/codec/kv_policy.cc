#include "common/kv/codec/kv_policy.h"

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace baton::kv {
namespace {

// Longest part of an unknown policy that a message repeats.
constexpr size_t kMaxQuotedBytes = 64;

}  // namespace

std::string_view KvFormatName(KvFormatId id) {
  switch (id) {
    case KvFormatId::kDense:
      return "dense";
  }
  return "unknown";
}

std::string KvPolicy::CanonicalString() const { return std::string(KvFormatName(format)); }

absl::StatusOr<KvPolicy> ParseKvPolicy(std::string_view text) {
  if (text == KvFormatName(KvFormatId::kDense)) {
    return KvPolicy{.format = KvFormatId::kDense};
  }
  const std::string_view shown = text.substr(0, kMaxQuotedBytes);
  return absl::InvalidArgumentError(
      absl::StrCat("kv_policy: unknown policy \"",
                   absl::CHexEscape(absl::string_view(shown.data(), shown.size())),
                   text.size() > shown.size() ? "..." : "",
                   "\"; known: dense"));
}

}  // namespace baton::kv
