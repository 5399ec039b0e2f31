// The header of a safetensors file: which tensors it holds and where.
//
// File bytes (swiftkv.md 3.5): u64 little-endian header size N, then N bytes of JSON
// {name: {dtype, shape, data_offsets: [begin, end)}} with an optional "__metadata__" string map,
// then the data; offsets are relative to byte 8 + N.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace baton::checkpoint {

// The format's own limit on the header.
inline constexpr uint64_t kMaxSafetensorsHeaderBytes = 100'000'000;

struct SafetensorsEntry {
  std::string name;
  std::string dtype_name;  // as written; see stored_dtype.h
  std::vector<int64_t> shape;
  // Byte range in the file (not relative to the data section).
  uint64_t begin = 0;
  uint64_t end = 0;
};

// Reads and checks the header of a whole file: header inside the file, no name twice, every dtype
// known, shape x dtype equal to the byte range, ranges that cover the data section without overlap
// or hole and end where the file ends. Entries come in order of `begin`. kDataLoss says what is
// wrong and names the tensor; it does not name the file.
absl::StatusOr<std::vector<SafetensorsEntry>> ParseSafetensorsHeader(
    std::span<const std::byte> file);

}  // namespace baton::checkpoint
