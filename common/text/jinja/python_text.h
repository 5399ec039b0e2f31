// Text operations with the semantics of Python's str, which chat templates rely on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace baton::text::jinja {

// All arguments are valid UTF-8, and so are all results.

// str.isspace of one character.
bool IsPythonSpace(uint32_t code_point);

// Without leading, trailing or both kinds of white space.
std::string_view StripLeft(std::string_view text);
std::string_view StripRight(std::string_view text);

// The same for any character of `chars`.
std::string_view StripLeft(std::string_view text, std::string_view chars);
std::string_view StripRight(std::string_view text, std::string_view chars);

std::string Upper(std::string_view text);
std::string Lower(std::string_view text);
// First character in upper case, the rest in lower case.
std::string Capitalize(std::string_view text);
// str.title: every run of letters starts in title case.
std::string Title(std::string_view text);

// Code points in `text`.
size_t CountCodePoints(std::string_view text);
// Each code point as a view into `text`.
std::vector<std::string_view> SplitCodePoints(std::string_view text);

// str.split() without a separator: runs of white space separate. `limit` < 0: no limit on the
// number of cuts.
std::vector<std::string_view> SplitWhitespace(std::string_view text, int64_t limit);
// str.split(separator, limit) and str.rsplit; the separator is not empty.
std::vector<std::string_view> SplitOn(std::string_view text,
                                      std::string_view separator,
                                      int64_t limit);
std::vector<std::string_view> SplitOnFromRight(std::string_view text,
                                               std::string_view separator,
                                               int64_t limit);
// str.splitlines(keep_ends).
std::vector<std::string_view> SplitLines(std::string_view text, bool keep_ends);

// str.replace; `limit` < 0 replaces all. An empty `from` puts `to` before each character and at the
// end.
std::string ReplaceAll(std::string_view text,
                       std::string_view from,
                       std::string_view to,
                       int64_t limit);

// One character: str.isdigit, str.isalpha or str.isspace, chosen by that name.
bool IsOfClass(std::string_view character, std::string_view method);

}  // namespace baton::text::jinja
