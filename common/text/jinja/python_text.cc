#include "common/text/jinja/python_text.h"

#include <unicode/bytestream.h>
#include <unicode/casemap.h>
#include <unicode/uchar.h>

#include <algorithm>

#include "common/text/utf8.h"

namespace baton::text::jinja {
namespace {

using CaseFunction =
    void (*)(const char*, uint32_t, icu::StringPiece, icu::ByteSink&, icu::Edits*, UErrorCode&);

// Full Unicode case mapping without a language, as str.upper and str.lower do.
std::string MapCase(std::string_view text, CaseFunction map) {
  std::string out;
  icu::StringByteSink<std::string> sink(&out, static_cast<int32_t>(text.size()));
  UErrorCode error = U_ZERO_ERROR;
  map("",
      0,
      icu::StringPiece(text.data(), static_cast<int32_t>(text.size())),
      sink,
      nullptr,
      error);
  return U_FAILURE(error) ? std::string(text) : out;
}

// Bytes of the line break at the front, 0 when there is none: the breaks of str.splitlines.
size_t LineBreakSize(std::string_view text) {
  if (text.substr(0, 2) == "\r\n") return 2;
  const Utf8Item item = NextUtf8(text);
  const uint32_t c = item.code_point;
  const bool is_break = (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 ||
                        c == 0x2028 || c == 0x2029;
  return is_break ? item.size : 0;
}

}  // namespace

bool IsPythonSpace(uint32_t code_point) {
  return (code_point >= 0x1C && code_point <= 0x1F) ||
         u_isUWhiteSpace(static_cast<UChar32>(code_point)) != 0;
}

std::string_view StripLeft(std::string_view text) {
  while (!text.empty()) {
    const Utf8Item item = NextUtf8(text);
    if (!IsPythonSpace(item.code_point)) break;
    text.remove_prefix(item.size);
  }
  return text;
}

std::string_view StripRight(std::string_view text) {
  while (!text.empty()) {
    const size_t last = LastCodePointStart(text);
    if (!IsPythonSpace(NextUtf8(text.substr(last)).code_point)) break;
    text = text.substr(0, last);
  }
  return text;
}

std::string_view StripLeft(std::string_view text, std::string_view chars) {
  while (!text.empty()) {
    const size_t size = NextUtf8(text).size;
    if (chars.find(text.substr(0, size)) == std::string_view::npos) break;
    text.remove_prefix(size);
  }
  return text;
}

std::string_view StripRight(std::string_view text, std::string_view chars) {
  while (!text.empty()) {
    const size_t last = LastCodePointStart(text);
    if (chars.find(text.substr(last)) == std::string_view::npos) break;
    text = text.substr(0, last);
  }
  return text;
}

std::string Upper(std::string_view text) { return MapCase(text, icu::CaseMap::utf8ToUpper); }
std::string Lower(std::string_view text) { return MapCase(text, icu::CaseMap::utf8ToLower); }

std::string Capitalize(std::string_view text) {
  if (text.empty()) return {};
  const Utf8Item first = NextUtf8(text);
  std::string out;
  AppendUtf8(static_cast<uint32_t>(u_totitle(static_cast<UChar32>(first.code_point))), &out);
  return out + Lower(text.substr(first.size));
}

std::string Title(std::string_view text) {
  std::string out;
  bool after_cased = false;
  while (!text.empty()) {
    const Utf8Item item = NextUtf8(text);
    const auto c = static_cast<UChar32>(item.code_point);
    AppendUtf8(static_cast<uint32_t>(after_cased ? u_tolower(c) : u_totitle(c)), &out);
    after_cased = u_hasBinaryProperty(c, UCHAR_CASED) != 0;
    text.remove_prefix(item.size);
  }
  return out;
}

size_t CountCodePoints(std::string_view text) {
  return static_cast<size_t>(std::count_if(
      text.begin(), text.end(), [](char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; }));
}

std::vector<std::string_view> SplitCodePoints(std::string_view text) {
  std::vector<std::string_view> points;
  while (!text.empty()) {
    const size_t size = NextUtf8(text).size;
    points.push_back(text.substr(0, size));
    text.remove_prefix(size);
  }
  return points;
}

std::vector<std::string_view> SplitWhitespace(std::string_view text, int64_t limit) {
  std::vector<std::string_view> parts;
  text = StripLeft(text);
  while (!text.empty()) {
    if (limit >= 0 && static_cast<int64_t>(parts.size()) == limit) {
      parts.push_back(StripRight(text));
      break;
    }
    size_t end = 0;
    while (end < text.size()) {
      const Utf8Item item = NextUtf8(text.substr(end));
      if (IsPythonSpace(item.code_point)) break;
      end += item.size;
    }
    parts.push_back(text.substr(0, end));
    text = StripLeft(text.substr(end));
  }
  return parts;
}

std::vector<std::string_view> SplitOn(std::string_view text,
                                      std::string_view separator,
                                      int64_t limit) {
  std::vector<std::string_view> parts;
  while (limit < 0 || static_cast<int64_t>(parts.size()) < limit) {
    const size_t found = text.find(separator);
    if (found == std::string_view::npos) break;
    parts.push_back(text.substr(0, found));
    text.remove_prefix(found + separator.size());
  }
  parts.push_back(text);
  return parts;
}

std::vector<std::string_view> SplitOnFromRight(std::string_view text,
                                               std::string_view separator,
                                               int64_t limit) {
  std::vector<std::string_view> parts;
  while (limit < 0 || static_cast<int64_t>(parts.size()) < limit) {
    const size_t found = text.rfind(separator);
    if (found == std::string_view::npos) break;
    parts.push_back(text.substr(found + separator.size()));
    text = text.substr(0, found);
  }
  parts.push_back(text);
  std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<std::string_view> SplitLines(std::string_view text, bool keep_ends) {
  std::vector<std::string_view> lines;
  size_t i = 0;
  while (i < text.size()) {
    const size_t break_size = LineBreakSize(text.substr(i));
    if (break_size == 0) {
      i += NextUtf8(text.substr(i)).size;
      continue;
    }
    lines.push_back(text.substr(0, keep_ends ? i + break_size : i));
    text.remove_prefix(i + break_size);
    i = 0;
  }
  if (!text.empty()) lines.push_back(text);
  return lines;
}

std::string ReplaceAll(std::string_view text,
                       std::string_view from,
                       std::string_view to,
                       int64_t limit) {
  std::string out;
  int64_t count = 0;
  if (from.empty()) {
    for (const std::string_view c : SplitCodePoints(text)) {
      if (limit < 0 || count++ < limit) out += to;
      out += c;
    }
    if (limit < 0 || count < limit) out += to;
    return out;
  }
  while (limit < 0 || count++ < limit) {
    const size_t found = text.find(from);
    if (found == std::string_view::npos) break;
    out += text.substr(0, found);
    out += to;
    text.remove_prefix(found + from.size());
  }
  return out += text;
}

bool IsOfClass(std::string_view character, std::string_view method) {
  const uint32_t code_point = NextUtf8(character).code_point;
  const auto c = static_cast<UChar32>(code_point);
  if (method == "isspace") return IsPythonSpace(code_point);
  if (method == "isalpha") return (U_GET_GC_MASK(c) & U_GC_L_MASK) != 0;
  const int32_t numeric_type = u_getIntPropertyValue(c, UCHAR_NUMERIC_TYPE);
  return numeric_type == U_NT_DECIMAL || numeric_type == U_NT_DIGIT;
}

}  // namespace baton::text::jinja
