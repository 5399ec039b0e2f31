// The byte-to-unicode alphabet in which byte-level BPE vocabularies are written.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace baton::text {

// The code point that spells `byte`: printable Latin-1 bytes spell themselves, the other 68 take
// U+0100 and up in byte order (GPT-2's byte encoder; HuggingFace "ByteLevel").
uint32_t ByteToAlphabet(uint8_t byte);

// The bytes that `spelling` (UTF-8) stands for; nullopt when a character is outside the alphabet.
std::optional<std::string> BytesFromSpelling(std::string_view spelling);

// The spelling of `bytes`.
std::string SpellBytes(std::string_view bytes);

}  // namespace baton::text
