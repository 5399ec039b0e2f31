// The digest of a commit.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace baton::kv {

// xxh3-64 over the checksums as u64 little-endian, in order of segment index, and then the other
// bytes of the commit.
uint64_t DigestOfCommit(std::span<const uint64_t> checksums, std::string_view commit);

}  // namespace baton::kv
