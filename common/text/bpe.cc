#include "common/text/bpe.h"

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/str_format.h"

#include "common/text/byte_alphabet.h"
#include "common/text/concat.h"

namespace baton::text {
namespace {

using VocabView = absl::flat_hash_map<absl::string_view, int32_t>;

// Bytes that no valid UTF-8 text holds; a vocabulary may lack them.
bool NeverInUtf8(int byte) { return byte == 0xC0 || byte == 0xC1 || byte >= 0xF5; }

std::optional<int32_t> Find(const VocabView& vocab, std::string_view spelling) {
  const auto found = vocab.find(ToAbsl(spelling));
  if (found == vocab.end()) return std::nullopt;
  return found->second;
}

}  // namespace

absl::StatusOr<Bpe> Bpe::Create(const BpeParts& parts) {
  VocabView vocab;
  vocab.reserve(parts.vocab.size());
  for (const auto& [spelling, id] : parts.vocab) vocab.emplace(spelling, id);
  Bpe bpe;
  for (int byte = 0; byte < 256; ++byte) {
    const char raw = static_cast<char>(byte);
    const std::optional<int32_t> id = Find(vocab, SpellBytes({&raw, 1}));
    if (!id.has_value() && !NeverInUtf8(byte)) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "model.vocab has no token for byte 0x%02X; a byte-level vocabulary needs all of them",
          byte));
    }
    bpe.byte_ids_[static_cast<size_t>(byte)] = id.value_or(-1);
  }
  bpe.merges_.reserve(parts.merges.size());
  uint32_t rank = 0;
  for (const auto& [left, right] : parts.merges) {
    const std::optional<int32_t> left_id = Find(vocab, left);
    const std::optional<int32_t> right_id = Find(vocab, right);
    const std::optional<int32_t> merged = Find(vocab, Concat(left, right));
    if (!left_id.has_value() || !right_id.has_value() || !merged.has_value()) {
      return absl::InvalidArgumentError(Concat("model.merges[",
                                               rank,
                                               "] \"",
                                               left,
                                               " ",
                                               right,
                                               "\" names a token that is not in model.vocab"));
    }
    bpe.merges_.insert_or_assign(PairKey(*left_id, *right_id), Merge{rank++, *merged});
  }
  if (parts.ignore_merges) {
    for (const auto& [spelling, id] : parts.vocab) {
      std::optional<std::string> bytes = BytesFromSpelling(spelling);
      if (bytes.has_value()) bpe.whole_tokens_.emplace(*std::move(bytes), id);
    }
  }
  return bpe;
}

void Bpe::PushCandidate(int32_t position, Scratch* scratch) const {
  const Scratch::Symbol& left = scratch->symbols_[static_cast<size_t>(position)];
  if (left.next < 0) return;
  const int32_t right_id = scratch->symbols_[static_cast<size_t>(left.next)].id;
  const auto merge = merges_.find(PairKey(left.id, right_id));
  if (merge == merges_.end()) return;
  scratch->heap_.push_back({merge->second.rank, position});
}

void Bpe::MergeAll(Scratch* scratch) const {
  // A max-heap by std's convention, so "greater" first: lowest rank, then leftmost.
  const auto later = [](const Scratch::Candidate& a, const Scratch::Candidate& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.position > b.position;
  };
  std::vector<Scratch::Symbol>& symbols = scratch->symbols_;
  std::vector<Scratch::Candidate>& heap = scratch->heap_;
  heap.clear();
  for (int32_t i = 0; i + 1 < static_cast<int32_t>(symbols.size()); ++i) PushCandidate(i, scratch);
  std::make_heap(heap.begin(), heap.end(), later);
  const auto push = [&](int32_t position) {
    const size_t before = heap.size();
    PushCandidate(position, scratch);
    if (heap.size() != before) std::push_heap(heap.begin(), heap.end(), later);
  };
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), later);
    const Scratch::Candidate top = heap.back();
    heap.pop_back();
    Scratch::Symbol& left = symbols[static_cast<size_t>(top.position)];
    if (left.id < 0 || left.next < 0) continue;
    Scratch::Symbol& right = symbols[static_cast<size_t>(left.next)];
    // The pair may have changed since it was queued.
    const auto merge = merges_.find(PairKey(left.id, right.id));
    if (merge == merges_.end() || merge->second.rank != top.rank) continue;
    left.id = merge->second.id;
    left.next = right.next;
    right.id = -1;
    if (left.next >= 0) symbols[static_cast<size_t>(left.next)].previous = top.position;
    push(top.position);
    if (left.previous >= 0) push(left.previous);
  }
}

void Bpe::Encode(std::string_view piece, Scratch* scratch, std::vector<int32_t>* ids) const {
  if (!whole_tokens_.empty()) {
    const auto whole = whole_tokens_.find(ToAbsl(piece));
    if (whole != whole_tokens_.end()) {
      ids->push_back(whole->second);
      return;
    }
  }
  std::vector<Scratch::Symbol>& symbols = scratch->symbols_;
  symbols.clear();
  const auto size = static_cast<int32_t>(piece.size());
  for (int32_t i = 0; i < size; ++i) {
    const auto byte = static_cast<uint8_t>(piece[static_cast<size_t>(i)]);
    symbols.push_back({byte_ids_[byte], i - 1, i + 1 == size ? -1 : i + 1});
  }
  MergeAll(scratch);
  for (const Scratch::Symbol& symbol : symbols) {
    if (symbol.id >= 0) ids->push_back(symbol.id);
  }
}

}  // namespace baton::text
