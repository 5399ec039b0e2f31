// A safetensors file from outside: whatever the bytes, every accepted tensor lies inside the file,
// has the size that its shape and dtype say, and overlaps no other.
#include <cstddef>
#include <cstdint>
#include <span>

#include "common/base/check.h"
#include "common/checkpoint/safetensors_header.h"
#include "common/checkpoint/stored_dtype.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto entries = baton::checkpoint::ParseSafetensorsHeader(
      std::as_bytes(std::span<const uint8_t>(data, size)));
  if (!entries.ok()) {
    BATON_CHECK(!entries.status().message().empty());
    return 0;
  }
  uint64_t previous_end = 8;
  for (const baton::checkpoint::SafetensorsEntry& entry : *entries) {
    BATON_CHECK(entry.begin >= previous_end);
    BATON_CHECK(entry.end >= entry.begin);
    BATON_CHECK(entry.end <= size);
    BATON_CHECK(baton::checkpoint::StoredDTypeBits(entry.dtype_name).has_value());
    previous_end = entry.end;
  }
  return 0;
}
