// Memory in pieces: lists of spans that together are one run of bytes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

namespace baton {

// Adds `piece` behind the others: as part of the last where it lies behind it, and not at all if it
// is empty.
template <typename Byte>
void AddAdjacent(std::span<Byte> piece, std::vector<std::span<Byte>>& pieces) {
  if (piece.empty()) {
    return;
  }
  if (!pieces.empty() && pieces.back().data() + pieces.back().size() == piece.data()) {
    pieces.back() = {pieces.back().data(), pieces.back().size() + piece.size()};
  } else {
    pieces.push_back(piece);
  }
}

// The same bytes in the same order, in as few pieces as they lie.
template <typename Byte>
std::vector<std::span<Byte>> JoinAdjacent(std::span<const std::span<Byte>> pieces) {
  std::vector<std::span<Byte>> joined;
  for (const std::span<Byte> piece : pieces) {
    AddAdjacent(piece, joined);
  }
  return joined;
}

// The pieces without their first bytes, of which there are as many.
template <typename Byte>
std::vector<std::span<Byte>> Behind(size_t bytes, const std::vector<std::span<Byte>>& pieces) {
  std::vector<std::span<Byte>> behind;
  for (const std::span<Byte> piece : pieces) {
    const size_t skipped = std::min(bytes, piece.size());
    bytes -= skipped;
    AddAdjacent(piece.subspan(skipped), behind);
  }
  return behind;
}

// Bytes of all pieces.
template <typename Byte>
size_t BytesOf(const std::vector<std::span<Byte>>& pieces) {
  size_t bytes = 0;
  for (const std::span<Byte> piece : pieces) {
    bytes += piece.size();
  }
  return bytes;
}

// Hands the bytes of pieces out in order. Not thread-safe.
template <typename Byte>
class PieceReader {
 public:
  // `pieces` is borrowed.
  explicit PieceReader(const std::vector<std::span<Byte>>& pieces) : pieces_(pieces) {}

  // The next bytes that lie in one piece, `most` at most; empty when none are left.
  std::span<Byte> Next(size_t most) {
    while (index_ < pieces_.size() && used_ == pieces_[index_].size()) {
      ++index_;
      used_ = 0;
    }
    if (index_ == pieces_.size()) {
      return {};
    }
    const std::span<Byte> piece = pieces_[index_].subspan(used_);
    const size_t bytes = std::min(most, piece.size());
    used_ += bytes;
    return piece.first(bytes);
  }

 private:
  const std::vector<std::span<Byte>>& pieces_;
  size_t index_ = 0;
  size_t used_ = 0;  // bytes of that piece that were handed out
};

}  // namespace baton
