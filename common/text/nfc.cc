#include "common/text/nfc.h"

#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>
#include <unicode/stringpiece.h>
#include <unicode/uchar.h>
#include <unicode/unistr.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"

#include "common/text/concat.h"
#include "common/text/utf8.h"

namespace baton::text {
namespace {

// Longer runs of combining marks are put in canonical order before ICU sees them. The Stream-Safe
// Text Format (Unicode Standard Annex 15, section 13) finds 30 enough for any real text.
constexpr size_t kLongRun = 30;

constexpr uint32_t kFirstMark = 0x300;  // no character below it combines

bool IsAscii(std::string_view text) {
  return std::all_of(
      text.begin(), text.end(), [](char c) { return static_cast<uint8_t>(c) < 0x80; });
}

// A combining mark and its canonical combining class.
using Mark = std::pair<uint8_t, UChar32>;

void AppendMarks(UChar32 code_point, const icu::Normalizer2& nfc, std::vector<Mark>* marks) {
  icu::UnicodeString parts;
  if (!nfc.getDecomposition(code_point, parts)) parts = icu::UnicodeString(code_point);
  for (int32_t i = 0; i < parts.length(); i = parts.moveIndex32(i, 1)) {
    const UChar32 part = parts.char32At(i);
    marks->emplace_back(u_getCombiningClass(part), part);
  }
}

// A stable counting sort by class.
void FlushMarks(std::vector<Mark>* marks, std::string* out) {
  std::array<std::string, 256> by_class;
  for (const auto& [combining_class, mark] : *marks) {
    AppendUtf8(static_cast<uint32_t>(mark), &by_class[combining_class]);
  }
  for (const std::string& of_class : by_class) *out += of_class;
  marks->clear();
}

// Sorts runs of more than kLongRun combining marks into canonical order. ICU inserts marks one by
// one, which costs the square of the run's length; the sorted run is canonically equivalent, so its
// NFC is the same.
std::string SortLongRuns(std::string_view text, const icu::Normalizer2& nfc) {
  std::string out;
  out.reserve(text.size());
  std::vector<Mark> marks;
  size_t run_start = 0;
  size_t run_size = 0;
  const auto end_run = [&](size_t end) {
    if (run_size > kLongRun) {
      FlushMarks(&marks, &out);
    } else {
      marks.clear();
      out += text.substr(run_start, end - run_start);
    }
    run_size = 0;
  };
  size_t i = 0;
  while (i < text.size()) {
    const Utf8Item item = NextUtf8(text.substr(i));
    const auto code_point = static_cast<UChar32>(item.code_point);
    if (item.code_point >= kFirstMark &&
        u_getIntPropertyValue(code_point, UCHAR_LEAD_CANONICAL_COMBINING_CLASS) != 0) {
      if (run_size++ == 0) run_start = i;
      AppendMarks(code_point, nfc, &marks);
    } else {
      if (run_size > 0) end_run(i);
      out += text.substr(i, item.size);
    }
    i += item.size;
  }
  if (run_size > 0) end_run(text.size());
  return out;
}

}  // namespace

absl::StatusOr<std::string> NormalizeNfc(std::string_view text) {
  if (IsAscii(text)) return std::string(text);
  UErrorCode error = U_ZERO_ERROR;
  const icu::Normalizer2* nfc = icu::Normalizer2::getNFCInstance(error);
  if (U_FAILURE(error)) {
    return absl::InternalError(Concat("ICU has no NFC data: ", u_errorName(error)));
  }
  const std::string ordered = SortLongRuns(text, *nfc);
  std::string out;
  icu::StringByteSink<std::string> sink(&out, static_cast<int32_t>(ordered.size()));
  nfc->normalizeUTF8(0,
                     icu::StringPiece(ordered.data(), static_cast<int32_t>(ordered.size())),
                     sink,
                     nullptr,
                     error);
  if (U_FAILURE(error)) {
    return absl::InternalError(Concat("NFC failed in ICU: ", u_errorName(error)));
  }
  return out;
}

}  // namespace baton::text
