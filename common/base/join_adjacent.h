// Pieces of memory in as few pieces as they are.
#pragma once

#include <span>
#include <vector>

namespace baton {

// The same bytes in the same order, where neighbours of the list that lie one behind the other are
// one piece. Empty pieces are left out.
template <typename Byte>
std::vector<std::span<Byte>> JoinAdjacent(std::span<const std::span<Byte>> pieces) {
  std::vector<std::span<Byte>> joined;
  for (const std::span<Byte> piece : pieces) {
    if (piece.empty()) {
      continue;
    }
    if (!joined.empty() && joined.back().data() + joined.back().size() == piece.data()) {
      joined.back() = {joined.back().data(), joined.back().size() + piece.size()};
    } else {
      joined.push_back(piece);
    }
  }
  return joined;
}

}  // namespace baton
