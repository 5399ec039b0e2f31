// Byte-pair merging over a vocabulary of byte strings.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"

namespace baton::text {

// The model part of a byte-level BPE tokenizer.json. Spellings are in the byte alphabet
// (byte_alphabet.h).
struct BpeParts {
  std::vector<std::pair<std::string, int32_t>> vocab;       // spelling -> id, ids unique and >= 0
  std::vector<std::pair<std::string, std::string>> merges;  // in order of rank
  bool ignore_merges = false;  // a piece that is a whole token is taken without merging
};

// Turns one pre-tokenised piece into token ids: Sennrich et al. 2016, lowest rank first and
// leftmost among equals. O(n log n) in the bytes of the piece. Immutable and thread-safe after
// Create.
class Bpe {
 public:
  // InvalidArgument when a merge names a token that is not in the vocabulary, or when a byte of
  // UTF-8 has no token.
  static absl::StatusOr<Bpe> Create(const BpeParts& parts);

  // Working memory of Encode, reusable over pieces; one per thread.
  class Scratch {
   private:
    friend class Bpe;
    struct Symbol {
      int32_t id;  // -1 once merged into its left neighbour
      int32_t previous;
      int32_t next;
    };
    struct Candidate {
      uint32_t rank;
      int32_t position;  // of the left symbol
    };
    std::vector<Symbol> symbols_;
    std::vector<Candidate> heap_;
  };

  // Appends the ids of `piece` (raw bytes, at most 2^31 - 1) to `ids`.
  void Encode(std::string_view piece, Scratch* scratch, std::vector<int32_t>* ids) const;

 private:
  struct Merge {
    uint32_t rank;
    int32_t id;  // of the merged token
  };

  static uint64_t PairKey(int32_t left, int32_t right) {
    return (static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32) |
           static_cast<uint32_t>(right);
  }
  void PushCandidate(int32_t position, Scratch* scratch) const;
  void MergeAll(Scratch* scratch) const;

  std::array<int32_t, 256> byte_ids_{};  // -1: no token
  absl::flat_hash_map<uint64_t, Merge> merges_;
  absl::flat_hash_map<std::string, int32_t> whole_tokens_;  // raw bytes; empty unless ignore_merges
};

}  // namespace baton::text
