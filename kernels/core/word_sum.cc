#include "kernels/core/word_sum.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace baton::kernels {

absl::Status CheckWords(std::span<const std::span<const std::byte>> pieces) {
  for (const std::span<const std::byte> piece : pieces) {
    if (reinterpret_cast<uintptr_t>(piece.data()) % kSummedWordBytes != 0 ||
        piece.size() % kSummedWordBytes != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("a sum of words over ",
                       piece.size(),
                       " bytes that begin ",
                       reinterpret_cast<uintptr_t>(piece.data()) % kSummedWordBytes,
                       " bytes behind a word's place"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> AddWords(std::span<const std::span<const std::byte>> pieces) {
  if (absl::Status status = CheckWords(pieces); !status.ok()) {
    return status;
  }
  uint64_t sum = 0;
  uint64_t index = 0;
  for (const std::span<const std::byte> piece : pieces) {
    for (size_t begin = 0; begin < piece.size(); begin += kSummedWordBytes) {
      uint64_t word = 0;
      std::memcpy(&word, piece.data() + begin, sizeof(word));
      sum += SummedWord(word, index++);
    }
  }
  return sum;
}

}  // namespace baton::kernels
