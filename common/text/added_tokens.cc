#include "common/text/added_tokens.h"

#include <unicode/uchar.h>

#include <algorithm>

#include "common/base/status_macros.h"
#include "common/text/utf8.h"

namespace baton::text {
namespace {

uint32_t FirstCodePoint(std::string_view text) { return NextUtf8(text).code_point; }

uint32_t LastCodePoint(std::string_view text) {
  return NextUtf8(text.substr(LastCodePointStart(text))).code_point;
}

bool IsSpace(uint32_t code_point) { return u_isUWhiteSpace(static_cast<UChar32>(code_point)) != 0; }

// \w of Unicode Technical Standard 18, annex C: letters, marks, decimal numbers, connectors,
// joiners.
bool IsWord(uint32_t code_point) {
  const auto c = static_cast<UChar32>(code_point);
  return u_hasBinaryProperty(c, UCHAR_ALPHABETIC) != 0 ||
         u_hasBinaryProperty(c, UCHAR_JOIN_CONTROL) != 0 ||
         (U_GET_GC_MASK(c) & (U_GC_M_MASK | U_GC_ND_MASK | U_GC_PC_MASK)) != 0;
}

// Start of the white space that ends `text`, not before `floor`.
size_t SpacesAtEnd(std::string_view text, size_t floor) {
  while (text.size() > floor && IsSpace(LastCodePoint(text))) {
    text = text.substr(0, LastCodePointStart(text));
  }
  return std::max(text.size(), floor);
}

size_t CountSpacesAtStart(std::string_view text) {
  size_t i = 0;
  while (i < text.size()) {
    const Utf8Item item = NextUtf8(text.substr(i));
    if (!IsSpace(item.code_point)) break;
    i += item.size;
  }
  return i;
}

bool StandsAlone(std::string_view text, size_t start, size_t stop) {
  const bool left = start == 0 || !IsWord(LastCodePoint(text.substr(0, start)));
  const bool right = stop == text.size() || !IsWord(FirstCodePoint(text.substr(stop)));
  return left && right;
}

}  // namespace

void AddedTokenMatcher::Add(const AddedToken& token, std::string_view content) {
  if (content.empty()) return;
  uint64_t node = 0;
  for (const char c : content) {
    const auto next = static_cast<uint32_t>(token_at_node_.size());
    const auto [edge, is_new] = edges_.try_emplace((node << 8) | static_cast<uint8_t>(c), next);
    if (is_new) token_at_node_.push_back(-1);
    node = edge->second;
  }
  token_at_node_[node] = static_cast<int32_t>(tokens_.size());
  starts_token_[static_cast<uint8_t>(content[0])] = true;
  tokens_.push_back(token);
  tokens_.back().content = std::string(content);
}

int32_t AddedTokenMatcher::LongestAt(std::string_view text) const {
  uint64_t node = 0;
  int32_t found = -1;
  for (const char c : text) {
    const auto edge = edges_.find((node << 8) | static_cast<uint8_t>(c));
    if (edge == edges_.end()) break;
    node = edge->second;
    if (token_at_node_[node] >= 0) found = token_at_node_[node];
  }
  return found;
}

absl::Status AddedTokenMatcher::Split(std::string_view text,
                                      absl::FunctionRef<absl::Status(const Section&)> visit) const {
  size_t plain_start = 0;
  size_t i = 0;
  while (i < text.size() && !tokens_.empty()) {
    const int32_t index =
        starts_token_[static_cast<uint8_t>(text[i])] ? LongestAt(text.substr(i)) : -1;
    if (index < 0) {
      ++i;
      continue;
    }
    const AddedToken& token = tokens_[static_cast<size_t>(index)];
    size_t start = i;
    i += token.content.size();
    size_t stop = i;
    if (token.single_word && !StandsAlone(text, start, stop)) continue;
    if (token.lstrip) start = SpacesAtEnd(text.substr(0, start), std::min(start, plain_start));
    if (token.rstrip) stop += CountSpacesAtStart(text.substr(stop));
    if (plain_start < start) {
      BATON_RETURN_IF_ERROR(visit({-1, text.substr(plain_start, start - plain_start)}));
    }
    BATON_RETURN_IF_ERROR(visit({token.id, text.substr(start, stop - start)}));
    plain_start = stop;
  }
  if (plain_start < text.size()) return visit({-1, text.substr(plain_start)});
  return absl::OkStatus();
}

}  // namespace baton::text
