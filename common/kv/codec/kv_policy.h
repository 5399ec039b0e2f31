// The KV policy of a request: which format, with which parameters, as a short string.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace baton::kv {

// Numbers are those of the wire (common/kv/manifest/segment_header.h, WireFormat).
enum class KvFormatId : uint16_t { kDense = 1 };

// "dense", ...; the word in policies, metrics labels and manifests.
std::string_view KvFormatName(KvFormatId id);

// A parsed policy. Formats with parameters add a member each; the canonical string lists every
// parameter that differs from its default.
struct KvPolicy {
  KvFormatId format = KvFormatId::kDense;

  // The one spelling of this policy; ParseKvPolicy(CanonicalString()) gives it back.
  std::string CanonicalString() const;
  bool operator==(const KvPolicy&) const = default;
};

// Accepts exactly the canonical spellings: "dense". kInvalidArgument names what was given and what
// there is; a parameter after a format that has none is refused too.
absl::StatusOr<KvPolicy> ParseKvPolicy(std::string_view text);

}  // namespace baton::kv
