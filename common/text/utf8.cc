#include "common/text/utf8.h"

namespace baton::text {
namespace {

// Sequence shape by lead byte: Unicode Standard, table 3-7 "Well-Formed UTF-8 Byte Sequences".
struct LeadByte {
  size_t size;         // 0: not a lead byte
  uint8_t second_low;  // range of the second byte
  uint8_t second_high;
};

LeadByte Classify(uint8_t byte) {
  if (byte < 0xC2) return {0, 0, 0};
  if (byte < 0xE0) return {2, 0x80, 0xBF};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte < 0xF0) return {3, 0x80, 0xBF};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte < 0xF4) return {4, 0x80, 0xBF};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

}  // namespace

Utf8Item NextUtf8(std::string_view bytes) {
  const auto first = static_cast<uint8_t>(bytes[0]);
  if (first < 0x80) return {Utf8Kind::kChar, first, 1};
  const LeadByte lead = Classify(first);
  if (lead.size == 0) return {Utf8Kind::kInvalid, 0, 1};
  uint32_t code_point = first & (0x7Fu >> lead.size);
  for (size_t i = 1; i < lead.size; ++i) {
    if (i == bytes.size()) return {Utf8Kind::kIncomplete, 0, i};
    const auto byte = static_cast<uint8_t>(bytes[i]);
    const uint8_t low = i == 1 ? lead.second_low : 0x80;
    const uint8_t high = i == 1 ? lead.second_high : 0xBF;
    if (byte < low || byte > high) return {Utf8Kind::kInvalid, 0, i};
    code_point = (code_point << 6) | (byte & 0x3Fu);
  }
  return {Utf8Kind::kChar, code_point, lead.size};
}

size_t FindInvalidUtf8(std::string_view text) {
  size_t i = 0;
  while (i < text.size()) {
    if (static_cast<uint8_t>(text[i]) < 0x80) {
      ++i;
      continue;
    }
    const Utf8Item item = NextUtf8(text.substr(i));
    if (item.kind != Utf8Kind::kChar) return i;
    i += item.size;
  }
  return std::string_view::npos;
}

void AppendUtf8(uint32_t code_point, std::string* out) {
  const auto put = [out](uint32_t byte) { out->push_back(static_cast<char>(byte)); };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xC0 | (code_point >> 6));
    put(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    put(0xE0 | (code_point >> 12));
    put(0x80 | ((code_point >> 6) & 0x3F));
    put(0x80 | (code_point & 0x3F));
  } else {
    put(0xF0 | (code_point >> 18));
    put(0x80 | ((code_point >> 12) & 0x3F));
    put(0x80 | ((code_point >> 6) & 0x3F));
    put(0x80 | (code_point & 0x3F));
  }
}

std::string RepairUtf8(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  while (!bytes.empty()) {
    const Utf8Item item = NextUtf8(bytes);
    out += item.kind == Utf8Kind::kChar ? bytes.substr(0, item.size) : kReplacementCharacter;
    bytes.remove_prefix(item.size);
  }
  return out;
}

size_t LastCodePointStart(std::string_view text) {
  size_t start = text.size() - 1;
  while (start > 0 && (static_cast<uint8_t>(text[start]) & 0xC0) == 0x80) --start;
  return start;
}

}  // namespace baton::text
