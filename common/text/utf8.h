// UTF-8: validation, stepping over code points, and lossy repair of decoded bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace baton::text {

// What the bytes at the front of a buffer are.
enum class Utf8Kind {
  kChar,        // one whole code point
  kInvalid,     // bytes that no continuation can make valid
  kIncomplete,  // a valid start whose remaining bytes have not arrived yet
};

// The first item of a buffer. For kInvalid and kIncomplete `size` is the length of the "maximal
// subpart" (Unicode Standard, section 3.9, "U+FFFD Substitution of Maximal Subparts"), the run that
// one U+FFFD replaces.
struct Utf8Item {
  Utf8Kind kind = Utf8Kind::kInvalid;
  uint32_t code_point = 0;  // set for kChar
  size_t size = 0;          // bytes, at least 1
};

// Looks at the front of `bytes`, which must not be empty.
Utf8Item NextUtf8(std::string_view bytes);

// Byte offset of the first byte that is not part of valid UTF-8; npos when all of `text` is valid.
size_t FindInvalidUtf8(std::string_view text);

// Appends the UTF-8 bytes of `code_point` (a Unicode scalar value).
void AppendUtf8(uint32_t code_point, std::string* out);

// Replaces each maximal invalid subpart by U+FFFD, an unfinished character at the end included.
std::string RepairUtf8(std::string_view bytes);

// Start of the last code point of `text` (valid UTF-8, not empty).
size_t LastCodePointStart(std::string_view text);

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

}  // namespace baton::text
