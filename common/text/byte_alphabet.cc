#include "common/text/byte_alphabet.h"

#include <array>

#include "common/text/utf8.h"

namespace baton::text {
namespace {

constexpr uint32_t kFirstSubstitute = 0x100;
constexpr size_t kAlphabetEnd = 0x100 + 68;

constexpr bool SpellsItself(uint32_t byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

constexpr std::array<uint16_t, 256> MakeForward() {
  std::array<uint16_t, 256> table{};
  uint32_t substitute = kFirstSubstitute;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    table[byte] = static_cast<uint16_t>(SpellsItself(byte) ? byte : substitute++);
  }
  return table;
}

constexpr std::array<uint16_t, 256> kForward = MakeForward();

// Inverse; 0xFFFF where a code point is not in the alphabet.
constexpr std::array<uint16_t, kAlphabetEnd> MakeInverse() {
  std::array<uint16_t, kAlphabetEnd> table{};
  for (uint16_t& entry : table) entry = 0xFFFF;
  for (uint16_t byte = 0; byte < 256; ++byte) table[kForward[byte]] = byte;
  return table;
}

constexpr std::array<uint16_t, kAlphabetEnd> kInverse = MakeInverse();

}  // namespace

uint32_t ByteToAlphabet(uint8_t byte) { return kForward[byte]; }

std::optional<std::string> BytesFromSpelling(std::string_view spelling) {
  std::string bytes;
  bytes.reserve(spelling.size());
  while (!spelling.empty()) {
    const Utf8Item item = NextUtf8(spelling);
    if (item.kind != Utf8Kind::kChar || item.code_point >= kAlphabetEnd) return std::nullopt;
    const uint16_t byte = kInverse[item.code_point];
    if (byte == 0xFFFF) return std::nullopt;
    bytes.push_back(static_cast<char>(byte));
    spelling.remove_prefix(item.size);
  }
  return bytes;
}

std::string SpellBytes(std::string_view bytes) {
  std::string spelling;
  for (const char c : bytes) AppendUtf8(ByteToAlphabet(static_cast<uint8_t>(c)), &spelling);
  return spelling;
}

}  // namespace baton::text
